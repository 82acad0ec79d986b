"""Pulls from a hub that misbehaves, through huggingface-hub and real sockets."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from daemon.errors import MgrError, NotFound, NotSupported, PullFailed
from daemon.pull.puller import Patience, Puller, PullProgress
from daemon.store.blobs import Digest
from daemon.store.models import Store
from tests.fakes.gguf_files import GIT_LFS_POINTER, gguf
from tests.fakes.hub import (
    COMMIT,
    Encoded,
    FakeHub,
    Fault,
    LongBody,
    Pause,
    Redirect,
    ShortBody,
    Status,
    WrongBytes,
)

TINY = gguf({"tokenizer.ggml.tokens": [f"token{n}" for n in range(200_000)]})
REPO, FILE = "user/repo", "model-Q4_K_M.gguf"
SOURCE = "hf.co/user/repo"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return "hf_secret"


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub() as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "store").open(lock=True)) as opened:
        yield opened


async def lines(store: Store, endpoint: str, text: str = SOURCE, stall: float = 30) -> list[PullProgress]:
    puller = Puller(store, endpoint, patience=Patience(stall=stall, attempts=3, pause=0))
    async with aclosing(puller.pull(text)) as stream:
        return [line async for line in stream]


async def refusal(store: Store, endpoint: str, text: str = SOURCE, stall: float = 30) -> MgrError:
    with pytest.raises(MgrError) as caught:
        await lines(store, endpoint, text, stall)
    assert "hf_secret" not in caught.value.message
    assert list(store.blobs.path(Digest.of(TINY)).parent.iterdir()) == []
    assert store.list() == []
    return caught.value


async def test_a_pull(hub: FakeHub, store: Store) -> None:
    digest = hub.add(REPO, FILE, TINY)
    hub.add(REPO, "README.md", b"# model")
    progress = await lines(store, hub.endpoint)
    assert progress[-1].status == "success"
    assert store.resolve("hf.co/user/repo").model_digest.hex == digest
    (download,) = hub.downloads
    assert download.path == f"/user/repo/resolve/{COMMIT}/{FILE}"
    assert download.headers["authorization"] == "Bearer hf_secret"
    assert download.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("fault", [Status(500), Status(503), ShortBody(), ShortBody(announced=False)])
async def test_a_fault_that_passes(hub: FakeHub, store: Store, fault: Fault) -> None:
    hub.add(REPO, FILE, TINY)
    hub.script(fault, fault)
    progress = await lines(store, hub.endpoint)
    counts = [line.completed for line in progress if line.completed is not None]
    assert counts == sorted(counts)
    assert counts[-1] == len(TINY)
    assert len(hub.downloads) == 3
    assert store.resolve(SOURCE).path.read_bytes() == TINY


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ([Status(404)], "was not found at 127.0.0.1 (404)"),
        ([Status(403)], "refuses access (403)"),
        ([Status(500)] * 3, "answered 500"),
        ([ShortBody()] * 3, "the connection to 127.0.0.1 failed"),
        ([ShortBody(announced=False)] * 3, f"expected {len(TINY)} bytes, got {len(TINY) // 2}"),
        ([WrongBytes()], "digest mismatch"),
        ([LongBody()], f"expected {len(TINY)} bytes, got {len(TINY) + 1}"),
        ([Encoded()], "content encoding"),
        ([Redirect("{path}")] * 6, "more than 5 times"),
    ],
)
async def test_a_fault_that_stays(hub: FakeHub, store: Store, faults: list[Fault], words: str) -> None:
    hub.add(REPO, FILE, TINY)
    hub.script(*faults)
    assert words in (await refusal(store, hub.endpoint)).message
    assert len(hub.downloads) == len(faults)


async def test_a_stall_is_noticed(hub: FakeHub, store: Store) -> None:
    hub.add(REPO, FILE, TINY)
    hub.script(Pause(), Pause(), Pause())
    assert "sent nothing for too long" in (await refusal(store, hub.endpoint, stall=0.2)).message


async def test_a_redirect_to_another_host_gets_no_token(hub: FakeHub, store: Store) -> None:
    async with FakeHub() as cdn:
        hub.add(REPO, FILE, TINY)
        cdn.add(REPO, FILE, TINY)
        hub.script(Redirect(cdn.endpoint + "{path}"))
        await lines(store, hub.endpoint)
        assert "authorization" in hub.downloads[0].headers
        assert "authorization" not in cdn.downloads[0].headers
        assert "hf_secret" not in str(cdn.asked)
    assert store.resolve(SOURCE).path.read_bytes() == TINY


async def test_a_cancelled_pull_leaves_nothing_and_works_again(
    hub: FakeHub, store: Store, tmp_path: Path
) -> None:
    hub.add(REPO, FILE, TINY)
    pause = Pause()
    hub.script(pause)
    task = asyncio.ensure_future(lines(store, hub.endpoint))
    await pause.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list((tmp_path / "store" / "blobs").iterdir()) == []
    assert (await lines(store, hub.endpoint))[-1].status == "success"


@pytest.mark.parametrize(
    ("status", "error", "kind", "words"),
    [
        (404, "RepoNotFound", NotFound, "hf.co/user/repo not found on the hub"),
        (401, "RepoNotFound", NotFound, "hf.co/user/repo not found on the hub"),
        (403, "GatedRepo", PullFailed, "hf.co/user/repo is gated: accept its terms"),
        (403, "", PullFailed, "refuses access to hf.co/user/repo (403)"),
        (429, "", PullFailed, "the hub answered 429"),
        (500, "", PullFailed, "the hub answered 500"),
    ],
)
async def test_a_look_up_that_fails(
    hub: FakeHub, store: Store, status: int, error: str, kind: type[MgrError], words: str
) -> None:
    hub.add(REPO, FILE, TINY)
    hub.listing_status, hub.listing_error = status, error
    refused = await refusal(store, hub.endpoint)
    assert type(refused) is kind
    assert words in refused.message
    assert hub.downloads == []


async def test_an_unreachable_hub_is_told_quickly(store: Store) -> None:
    async with FakeHub() as gone:
        endpoint = gone.endpoint
    assert (await refusal(store, endpoint)).message == (
        "the hub at 127.0.0.1 cannot be reached; check the network and the proxy"
    )


async def test_a_file_that_is_no_model(hub: FakeHub, store: Store) -> None:
    hub.add(REPO, FILE, GIT_LFS_POINTER)
    assert "git-lfs pointer" in (await refusal(store, hub.endpoint)).message


@pytest.mark.parametrize(
    "name", ["../../../other/repo/resolve/main/x.gguf", "a/../x.gguf", "a\\x.gguf", "/x.gguf"]
)
async def test_a_listed_name_that_climbs_out(hub: FakeHub, store: Store, name: str) -> None:
    hub.add(REPO, name, TINY)
    assert "is not the name of a file" in (await refusal(store, hub.endpoint)).message
    assert hub.downloads == []


async def test_a_listing_without_a_usable_checksum(hub: FakeHub, store: Store) -> None:
    hub.add(REPO, FILE, TINY, sha256="../../x")
    assert "a checksum" in (await refusal(store, hub.endpoint)).message


async def test_a_choice_that_is_not_there(hub: FakeHub, store: Store) -> None:
    hub.add(REPO, "m-Q8_0.gguf", TINY)
    hub.add(REPO, "m-F16-00001-of-00002.gguf", TINY)
    assert "one of F16, Q8_0" in (await refusal(store, hub.endpoint, SOURCE + ":Q2_K")).message
    assert isinstance(await refusal(store, hub.endpoint, SOURCE + ":F16"), NotSupported)
