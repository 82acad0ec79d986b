import asyncio
import hmac
import json
import logging
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from daemon.errors import MgrError
from daemon.metrics import REQUESTS
from daemon.middleware.access import MAX_BODY_BYTES, Access, Policy, key_digest, read_keys
from daemon.middleware.dialect import STATUS, Reply
from tests.fakes.asgi import HOST, Answer, ask

KEYS = read_keys("secret-1\nsecret-2\n")


class App:
    """What is behind the gate. Its answer has the headers that a careless engine sends."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        await receive()
        headers = [(b"access-control-allow-origin", b"*"), (b"access-control-allow-credentials", b"true")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


def in_json(path: str, error: MgrError) -> Reply:
    return Reply(STATUS[error.kind], json.dumps({"path": path, "error": error.message}).encode())


async def gate(
    policy: Policy, headers: Iterable[tuple[str, str]], method: str = "POST", path: str = "/api/pull"
) -> Answer:
    """Checks on the way that a refused request reaches nothing and none of its body is read."""
    app = App()
    answer = await ask(Access(app, policy, in_json), method, path, headers)
    passed = answer.body == b"ok"
    assert (app.calls, answer.reads) == ((1, 1) if passed else (0, 0))
    assert len(answer.headers["x-request-id"]) == 16
    return answer


# ---- Host


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:11434",
        "127.9.9.9:1",
        "localhost",
        "LOCALHOST:11434",
        "localhost.",
        "app.localhost:11434",
        "[::1]",
        "[::1]:11434",
    ],
)
async def test_a_host_that_is_this_machine(host: str) -> None:
    assert (await gate(Policy(), [("host", host)])).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:11434",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evillocalhost",
        "127.0.0.1/?x",
        "127.0.0.1/",
        "127.0.0.1#x",
        "user@127.0.0.1",
        "127.0.0.1@evil.example",
        "127.0.0.1:11434@evil.example",
        "127.0.0.1:p",
        "[::1]:p",
        "[::1]evil.example",
        "[::1].evil.example",
        "[::1",
        "::1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "127.0.0.1 evil.example",
        "127.0.0.1,evil.example",
        "127.0.0.1\nevil.example",
        "127.0.0.1\n",
        "192.168.0.7",
        "[fe80::1]",
        "[localhost]",
        "b\u00fccher.localhost.example",
        "a/v1?",
    ],
)
async def test_a_foreign_host(host: str) -> None:
    """Must hold: a request whose Host is not this machine's is 403, whatever it asks for."""
    answer = await gate(Policy(), [("host", host)])
    assert answer.status == 403
    assert "Host" in json.loads(answer.body)["error"]


@pytest.mark.parametrize("hosts", [[], [HOST, HOST], [HOST, ("host", "evil.example")]])
async def test_there_is_exactly_one_host(hosts: list[tuple[str, str]]) -> None:
    """Must hold: two Host headers, or none, are 403; also on a Unix socket."""
    for policy in (Policy(), Policy(any_host=True)):
        answer = await gate(policy, hosts)
        assert answer.status == 403
        assert f"{len(hosts)} Host headers" in json.loads(answer.body)["error"]


async def test_names_that_were_set_are_hosts() -> None:
    policy = Policy(hosts=frozenset({"mgr.lan", "fd00::7"}))
    assert (await gate(policy, [("host", "MGR.lan.:80")])).status == 200
    assert (await gate(policy, [("host", "[fd00::7]:80")])).status == 200
    assert (await gate(policy, [("host", "x.mgr.lan")])).status == 403


async def test_beyond_loopback_every_address_is_a_host_and_no_other_name() -> None:
    policy = Policy(any_ip=True, keys=KEYS)
    key = ("authorization", "Bearer secret-1")
    assert (await gate(policy, [("host", "192.168.0.7:11434"), key])).status == 200
    assert (await gate(policy, [("host", "evil.example"), key])).status == 403


async def test_on_a_unix_socket_any_name_will_do() -> None:
    assert (await gate(Policy(any_host=True), [("host", "whatever")])).status == 200


# ---- Origin


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "http://localhost:3000",
        "https://localhost:3000",
        "http://127.0.0.1:8080",
        "http://[::1]:8080",
        "app://obsidian.md",
        "tauri://localhost",
        "vscode-webview://0a1b2c",
        "vscode-file://vscode-app",
        "HTTP://LOCALHOST:3000",
    ],
)
async def test_an_origin_on_this_machine(origin: str) -> None:
    answer = await gate(Policy(), [HOST, ("origin", origin)])
    assert answer.status == 200
    assert answer.headers.getlist("access-control-allow-origin") == [origin]
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "https://evil.example",
        "http://127.0.0.1.evil.example",
        "http://localhost.evil.example",
        "http://evillocalhost",
        "http://localhost@evil.example",
        "http://evil.example#localhost",
        "http://localhost:3000/path",
        "http://localhost\n",
        "http://[::1].evil.example",
        "http://127.0.0.2",
        "ftp://localhost",
        "file://",
        "xapp://localhost",
        "evil://app://x",
        "localhost",
        "chrome-extension://abc",
    ],
)
async def test_a_foreign_origin(origin: str) -> None:
    """Must hold: a request with a foreign Origin, or `Origin: null`, is 403 and nobody may read the answer."""
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        answer = await gate(Policy(), [HOST, ("origin", origin)], method)
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers


async def test_a_local_page_does_not_excuse_a_foreign_host() -> None:
    answer = await gate(Policy(), [("host", "evil.example"), ("origin", "http://localhost")])
    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers


async def test_two_origins_are_refused() -> None:
    origin = ("origin", "http://localhost")
    assert (await gate(Policy(), [HOST, origin, origin])).status == 403


async def test_a_page_that_we_served_is_no_stranger() -> None:
    policy = Policy(hosts=frozenset({"mgr.lan"}))
    host = ("host", "mgr.lan:11434")
    for scheme in ("http", "https"):
        assert (await gate(policy, [host, ("origin", f"{scheme}://mgr.lan:11434")])).status == 200
    assert (await gate(policy, [host, ("origin", "http://mgr.lan:1")])).status == 403


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("https://chat.example", "https://chat.example", "http://chat.example"),
        ("https://chat.example", "https://CHAT.example", "https://chat.example:8443"),
        ("https://*.chat.example", "https://a.chat.example", "https://chat.example"),
        ("https://chat.example:*", "https://chat.example:1", "https://chat.example"),
        ("chrome-extension://*", "chrome-extension://abc", "moz-extension://abc"),
        ("https://aa*aa", "https://aaaa", "https://aaa"),
    ],
)
async def test_origins_that_were_set(pattern: str, allowed: str, refused: str) -> None:
    policy = Policy(origins=("https://other.example", pattern))
    assert (await gate(policy, [HOST, ("origin", allowed)])).status == 200
    assert (await gate(policy, [HOST, ("origin", refused)])).status == 403
    assert (await gate(policy, [HOST, ("origin", "null")])).status == 403


async def test_a_star_allows_every_origin() -> None:
    for origin in ("https://chat.example", "null"):
        answer = await gate(Policy(origins=("*",)), [HOST, ("origin", origin)])
        assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "anything", ""])
async def test_a_page_of_another_site_without_an_origin(site: str) -> None:
    """Must hold: `Sec-Fetch-Site: cross-site` is 403, whatever the content type."""
    for content_type in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        headers = [HOST, ("sec-fetch-site", site), ("content-type", content_type)]
        assert (await gate(Policy(), headers)).status == 403
    assert (await gate(Policy(), [HOST, ("sec-fetch-site", "none"), ("sec-fetch-site", site)])).status == 403


@pytest.mark.parametrize("site", ["none", "same-origin"])
async def test_a_person_at_the_address_bar(site: str) -> None:
    assert (await gate(Policy(), [HOST, ("sec-fetch-site", site)])).status == 200


async def test_an_origin_that_is_allowed_may_be_on_another_site() -> None:
    headers = [HOST, ("origin", "http://localhost:3000"), ("sec-fetch-site", "cross-site")]
    assert (await gate(Policy(), headers)).status == 200


async def test_a_program_gets_no_cors_headers_whatever_is_behind_the_gate() -> None:
    answer = await gate(Policy(), [HOST])
    assert answer.status == 200
    assert [name for name in answer.headers if name.startswith("access-control")] == []


async def test_a_preflight_is_answered_by_the_gate_without_a_key() -> None:
    wanted = ("access-control-request-headers", "authorization,x-stainless-os")
    headers = [HOST, ("origin", "http://localhost:3000"), ("access-control-request-method", "DELETE"), wanted]
    answer = await gate(Policy(keys=KEYS), headers, "OPTIONS", "/api/delete")
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert answer.headers["access-control-allow-methods"] == "GET, POST, DELETE, HEAD, OPTIONS"
    assert answer.headers["access-control-allow-headers"] == "Authorization, *"


# ---- keys


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer secret-1")],
        [("authorization", "bearer  secret-2 ")],
        [("x-api-key", "secret-2")],
        [("x-api-key", "secret-1"), ("authorization", "Basic dTpw")],
    ],
)
async def test_a_key_that_is_known(headers: list[tuple[str, str]]) -> None:
    assert (await gate(Policy(keys=KEYS), [HOST, *headers])).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "secret-1")],
        [("authorization", "Basic secret-1")],
        [("authorization", "Bearer secret-1x")],
        [("authorization", "Bearer SECRET-1")],
        [("authorization", "Bearer cl\u00e9")],
        [("authorization", "Bearer \xff\xfe")],
        [("authorization", "Bearer " + "k" * 1_000_000)],
        [("authorization", "Bearer secret-1"), ("authorization", "Bearer secret-1")],
        [("authorization", "Bearer wrong"), ("x-api-key", "secret-1")],
        [("x-api-key", "")],
        [("x-api-key", "secret-1"), ("x-api-key", "secret-2")],
    ],
)
async def test_a_key_that_is_not(headers: list[tuple[str, str]]) -> None:
    answer = await gate(Policy(keys=KEYS), [HOST, *headers])
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "secret" not in answer.body.decode()


async def test_a_page_that_may_call_can_read_that_its_key_is_wrong() -> None:
    answer = await gate(Policy(keys=KEYS), [HOST, ("origin", "http://localhost:3000")])
    assert answer.status == 401
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


async def test_a_key_does_not_excuse_a_foreign_page() -> None:
    headers = [HOST, ("origin", "http://evil.example"), ("authorization", "Bearer secret-1")]
    assert (await gate(Policy(keys=KEYS), headers)).status == 403


@pytest.mark.parametrize("key", ["secret-1", "wrong"])
async def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    compared: list[Any] = []
    compare = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append(b)
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    await gate(Policy(keys=KEYS), [HOST, ("x-api-key", key)])
    assert compared == [*KEYS]


@pytest.mark.parametrize("path", ["/", "/health/live"])
async def test_what_needs_no_key(path: str) -> None:
    assert (await gate(Policy(keys=KEYS), [HOST], "GET", path)).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "",
        "//",
        "/.",
        "/x/..",
        "/health/live/",
        "//health/live",
        "/health/live/../../api/tags",
        "/HEALTH/LIVE",
        "/health/live\n",
        "/health",
        "/v1",
        "//v1",
        "/v1/../x",
        "/V1",
        "/openapi.json",
        "/docs",
        "*",
    ],
)
async def test_everything_else_needs_one(path: str) -> None:
    assert (await gate(Policy(keys=KEYS), [HOST], "GET", path)).status == 401


def test_the_keys_of_a_file() -> None:
    text = "# ours\n\n secret-1 \r\nsecret-2"
    assert read_keys(text) == {key_digest(b"secret-1"): False, key_digest(b"secret-2"): False}
    assert read_keys("\n# none\n") == {}
    assert read_keys("secret-1  batch \n") == {key_digest(b"secret-1"): True}


@pytest.mark.parametrize("line", ["cl\u00e9", "\ufeffsecret", "secret # mine", "a\tb", "a\x00b"])
def test_a_line_that_is_no_key_is_named_and_not_told(line: str) -> None:
    with pytest.raises(ValueError, match=r"^line 3 is not a key; a key is ASCII without spaces$"):
        read_keys(f"good\n\n{line}\n")


# ---- the rest


@pytest.mark.parametrize(
    ("length", "status"),
    [
        ("0", 200),
        (str(MAX_BODY_BYTES), 200),
        (str(MAX_BODY_BYTES + 1), 413),
        ("9" * 5000, 413),
        ("-1", 200),
        ("\u00b2", 200),
        ("x", 200),
    ],
)
async def test_a_body_that_announces_itself_as_too_long(length: str, status: int) -> None:
    assert (await gate(Policy(), [HOST, ("content-length", length)])).status == status


async def test_a_refusal_is_in_the_words_of_its_path() -> None:
    answer = await gate(Policy(), [], "POST", "/v1/messages")
    assert json.loads(answer.body)["path"] == "/v1/messages"


async def test_a_stranger_writes_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "mgr.access"):
        answer = await gate(Policy(), [HOST], "GET", "/\x1b[31m\nFAKE \u202e\r\x00")
    [record] = caplog.records
    message = record.getMessage()
    assert message.startswith(f"{answer.headers['x-request-id']} GET ")
    assert r"'/\x1b[31m\nFAKE \u202e\r\x00' 200" in message
    assert message.isprintable()


async def test_requests_have_different_ids() -> None:
    ids = {(await gate(Policy(), [HOST])).headers["x-request-id"] for _ in range(10)}
    assert len(ids) == 10


async def test_nothing_but_http_passes() -> None:
    app = App()

    async def nothing(*_: Message) -> Any:
        raise AssertionError

    with pytest.raises(RuntimeError, match="websocket is not served"):
        await Access(app, Policy(), in_json)({"type": "websocket", "headers": []}, nothing, nothing)
    assert app.calls == 0


# ---- what is counted


def counted(route: str, status: str) -> int:
    return REQUESTS.counts.get((route, status), 0)


async def test_a_request_is_counted_by_its_route_and_never_by_its_path() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = Route("/v1/models/{model:path}", app)  # as a router does
        await App()(scope, receive, send)

    before, series = counted("/v1/models/{model}", "200"), {*REQUESTS.counts}
    for path in ("/v1/models/a", "/v1/models/b"):
        await ask(Access(app, Policy(), in_json), "GET", path)
    assert counted("/v1/models/{model}", "200") == before + 2
    assert {*REQUESTS.counts} - series <= {("/v1/models/{model}", "200")}


async def test_a_request_that_reaches_no_route_is_counted_without_one() -> None:
    before = counted("none", "403")
    await gate(Policy(), [("host", "evil.example")])
    assert counted("none", "403") == before + 1


async def test_a_client_that_left_before_an_answer_is_counted_without_a_status() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise asyncio.CancelledError

    before = counted("none", "none")
    with pytest.raises(asyncio.CancelledError):
        await ask(Access(app, Policy(), in_json))
    assert counted("none", "none") == before + 1
