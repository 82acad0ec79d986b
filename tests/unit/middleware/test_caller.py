"""Which client a request is of, and whether somebody waits for its answer."""

from typing import Any

import pytest
from starlette.datastructures import Headers

from daemon.middleware.access import key_digest
from daemon.middleware.caller import name_of, wants_batch


def scope(
    client: str | None, server: tuple[str, int | None] = ("127.0.0.1", 11434), **more: Any
) -> dict[str, Any]:
    return {"type": "http", "client": None if client is None else (client, 50000), "server": server, **more}


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("testclient", "testclient"),
        ("", "local socket"),
        (None, "local socket"),
    ],
)
def test_without_a_key_a_client_is_its_address(client: str | None, name: str) -> None:
    assert name_of(scope(client), None) == name


def test_programs_on_the_unix_socket_are_one_client() -> None:
    assert name_of(scope("whatever", server=("/run/mgr.sock", None)), None) == "local socket"


def test_a_key_goes_before_the_address_and_is_not_told() -> None:
    names = [name_of(scope(client), key_digest(b"secret-1")) for client in ("127.0.0.1", "192.0.2.7")]
    assert names == ["key f7e7c36e458e"] * 2
    assert name_of(scope("127.0.0.1"), key_digest(b"secret-2")) != names[0]


def test_what_a_proxy_says_is_not_believed() -> None:
    told = scope("127.0.0.1", headers=[(b"x-forwarded-for", b"192.0.2.7"), (b"forwarded", b"for=192.0.2.7")])
    assert name_of(told, None) == "127.0.0.1"


@pytest.mark.parametrize(
    ("headers", "batch"),
    [
        ({}, False),
        ({"X-Priority": "batch"}, True),
        ({"x-priority": " Batch "}, True),
        ({"X-Priority": "interactive"}, False),
        ({"X-Priority": ""}, False),
        ({"Priority": "u=7"}, True),
        ({"Priority": "u=7, i"}, True),
        ({"Priority": "i,u=7"}, True),
        ({"Priority": "i=?0 , u=7;x=1"}, True),
        ({"Priority": "u=6"}, False),
        ({"Priority": "u=1, i"}, False),
        ({"Priority": "u=70"}, False),
        ({"Priority": "u=-7"}, False),
        ({"Priority": "u=7.5"}, False),
        ({"Priority": "mu=7"}, False),
        ({"Priority": "u=7, u=3"}, False),
        ({"Priority": "u=3, u=7"}, True),
        ({"Priority": "u"}, False),
        ({"Priority": "\x00,,,u=7=7"}, False),
    ],
)
def test_batch_is_what_says_so(headers: dict[str, str], batch: bool) -> None:
    assert wants_batch(Headers(headers)) is batch


def test_a_header_that_comes_twice_is_one_list() -> None:
    raw = [(b"priority", b"u=7"), (b"priority", b"u=2")]
    assert not wants_batch(Headers(raw=raw))
    assert wants_batch(Headers(raw=raw[::-1]))
