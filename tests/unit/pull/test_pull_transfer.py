"""Downloads, against a scripted transport."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import respx

from daemon.errors import NotFound, PullFailed
from daemon.pull.transfer import Patience, RemoteFile, fetch
from daemon.store.blobs import Blobs, Digest, WrongDigest, WrongSize
from daemon.store.ledger import Ledger

DATA = b"weights " * 100
DIGEST = Digest.of(DATA)
URL = "https://hub.test/u/r/resolve/main/m.gguf"
FILE = RemoteFile(URL, len(DATA), DIGEST, "hf_secret")
QUICK = Patience(attempts=3, pause=0)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    (tmp_path / "blobs").mkdir()
    return Blobs(tmp_path, Ledger(tmp_path))


@pytest.fixture
def net() -> Iterator[respx.MockRouter]:
    with respx.mock(assert_all_called=False) as router:
        yield router


async def failure(blobs: Blobs, file: RemoteFile = FILE) -> PullFailed:
    with pytest.raises(PullFailed) as caught:
        await fetch(file, blobs, lambda _: None, QUICK)
    assert not blobs.has(DIGEST)
    assert "hf_secret" not in caught.value.message
    return caught.value


async def test_a_file_is_fetched(blobs: Blobs, net: respx.MockRouter) -> None:
    route = net.get(URL).mock(return_value=httpx.Response(200, content=DATA))
    seen: list[int] = []
    await fetch(FILE, blobs, seen.append, QUICK)
    assert blobs.read(DIGEST, len(DATA)) == DATA
    assert seen == [len(DATA)]
    request = route.calls[0].request
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["authorization"] == "Bearer hf_secret"


@pytest.mark.parametrize(
    "fault",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("stalled"),
        httpx.RemoteProtocolError("closed early"),
        httpx.Response(500),
        httpx.Response(503),
        httpx.Response(429),
        httpx.Response(200, content=b""),
        httpx.Response(200, content=DATA[:-1]),
    ],
)
async def test_a_passing_fault_is_tried_again(
    blobs: Blobs, net: respx.MockRouter, fault: httpx.Response | httpx.TransportError
) -> None:
    route = net.get(URL).mock(side_effect=[fault, httpx.Response(200, content=DATA)])
    await fetch(FILE, blobs, lambda _: None, QUICK)
    assert blobs.has(DIGEST, len(DATA))
    assert route.call_count == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (httpx.ConnectError("refused"), "the connection to hub.test failed"),
        (httpx.ReadTimeout("stalled"), "hub.test sent nothing for too long"),
        (httpx.Response(500), "hub.test answered 500"),
        (httpx.Response(200, content=DATA[:-1]), "expected 800 bytes, got 799"),
    ],
)
async def test_tries_are_bounded(
    blobs: Blobs, net: respx.MockRouter, fault: httpx.Response | httpx.TransportError, words: str
) -> None:
    route = net.get(URL)
    route.side_effect = fault if isinstance(fault, Exception) else [fault] * 3
    assert words in (await failure(blobs)).message
    assert route.call_count == 3


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (httpx.Response(200, content=DATA[::-1]), WrongDigest, "digest mismatch"),
        (httpx.Response(200, content=DATA + b"!"), WrongSize, "expected 800 bytes, got 801"),
        (httpx.Response(401), PullFailed, "check the token in HF_TOKEN"),
        (httpx.Response(403), PullFailed, "refuses access"),
        (httpx.Response(206, content=DATA), PullFailed, "answered 206, which is not a file"),
        (
            httpx.Response(200, headers={"Content-Encoding": "gzip"}, content=gzip.compress(DATA)),
            PullFailed,
            "content encoding",
        ),
    ],
)
async def test_what_will_not_get_better_is_refused_at_once(
    blobs: Blobs, net: respx.MockRouter, reply: httpx.Response, kind: type[PullFailed], words: str
) -> None:
    route = net.get(URL).mock(return_value=reply)
    error = await failure(blobs)
    assert isinstance(error, kind)
    assert words in error.message
    assert route.call_count == 1


async def test_a_missing_file(blobs: Blobs, net: respx.MockRouter) -> None:
    net.get(URL).mock(return_value=httpx.Response(404))
    with pytest.raises(NotFound, match=r"not found at hub.test \(404\)"):
        await fetch(FILE, blobs, lambda _: None, QUICK)


@pytest.mark.parametrize(
    ("target", "with_token"),
    [
        ("https://hub.test/elsewhere", True),
        ("/elsewhere", True),
        ("https://hub.test:443/elsewhere", True),
        ("https://cdn.test/elsewhere", False),
        ("https://hub.test:8443/elsewhere", False),
        ("https://hub.test.evil.test/elsewhere", False),
        ("//cdn.test/elsewhere", False),
    ],
)
async def test_the_token_stays_at_its_origin(
    blobs: Blobs, net: respx.MockRouter, target: str, with_token: bool
) -> None:
    net.get(URL).mock(return_value=httpx.Response(302, headers={"Location": target}, content=b"moved"))
    second = net.get(path="/elsewhere").mock(return_value=httpx.Response(200, content=DATA))
    await fetch(FILE, blobs, lambda _: None, QUICK)
    assert blobs.has(DIGEST)
    assert ("authorization" in second.calls[0].request.headers) is with_token


@pytest.mark.parametrize(
    "target",
    ["http://hub.test/x", "file:///etc/passwd", "", "ftp://hub.test/x", "https://user:pass@hub.test/x"],
)
async def test_redirects_that_are_not_followed(blobs: Blobs, net: respx.MockRouter, target: str) -> None:
    net.get(URL).mock(return_value=httpx.Response(302, headers={"Location": target}))
    assert "redirects to an address that is not followed" in (await failure(blobs)).message


async def test_redirects_end(blobs: Blobs, net: respx.MockRouter) -> None:
    route = net.get(URL).mock(return_value=httpx.Response(302, headers={"Location": URL}))
    assert "more than 5 times" in (await failure(blobs)).message
    assert route.call_count == 6
