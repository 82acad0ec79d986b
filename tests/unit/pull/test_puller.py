"""Pulls as a whole, with files of this machine and a hub that is only a function."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from daemon.errors import BadModel, Conflict, Forbidden, MgrError, NotFound, NotSupported, PullFailed
from daemon.names import ModelName
from daemon.pull import huggingface, puller
from daemon.pull.local import UNREADABLE
from daemon.pull.puller import Puller, PullProgress
from daemon.pull.source import HubSource
from daemon.pull.threads import pour
from daemon.pull.transfer import Patience, RemoteFile
from daemon.store.blobs import Blobs, Digest
from daemon.store.models import Store
from tests.fakes.gguf_files import NOT_MODELS, gguf

TINY = gguf()
DIGEST = Digest.of(TINY)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "store").open(lock=True)) as opened:
        yield opened


@pytest.fixture
def pulls(store: Store) -> Puller:
    return Puller(store)


def model_file(tmp_path: Path, data: bytes = TINY) -> str:
    path = tmp_path / "My Model.gguf"
    path.write_bytes(data)
    return str(path)


async def lines(
    pulls: Puller, text: str, name: str | None = None, *, replace: bool = False
) -> list[PullProgress]:
    parsed = None if name is None else ModelName.parse(name)
    async with aclosing(pulls.pull(text, parsed, replace=replace, local_files=True)) as stream:
        return [line async for line in stream]


async def refusal(pulls: Puller, text: str, name: str | None = None) -> MgrError:
    with pytest.raises(MgrError) as caught:
        await lines(pulls, text, name)
    return caught.value


def blob_names(store: Store) -> list[str]:
    return sorted(path.name for path in store.blobs.path(DIGEST).parent.iterdir())


# ---- files of this machine


async def test_a_file_becomes_a_model(pulls: Puller, store: Store, tmp_path: Path) -> None:
    progress = await lines(pulls, model_file(tmp_path))
    size = len(TINY)
    assert progress == [
        PullProgress("pulling manifest"),
        PullProgress("copying file", None, size, size),
        PullProgress("verifying sha256 digest"),
        PullProgress("writing manifest"),
        PullProgress("success", model="My-Model:latest"),
    ]
    model = store.resolve("my-model")
    assert str(model.name) == "My-Model:latest"
    assert model.model_digest == DIGEST
    assert model.path.read_bytes() == TINY


async def test_a_name_may_be_given(pulls: Puller, store: Store, tmp_path: Path) -> None:
    await lines(pulls, f"file://{model_file(tmp_path).replace(' ', '%20')}", "mine:1")
    assert [str(model.name) for model in store.list()] == ["mine:1"]


@pytest.mark.parametrize(("data", "words"), NOT_MODELS.values(), ids=NOT_MODELS.keys())
async def test_what_is_not_a_model_leaves_nothing(
    pulls: Puller, store: Store, tmp_path: Path, data: bytes, words: str
) -> None:
    error = await refusal(pulls, model_file(tmp_path, data), "mine")
    assert isinstance(error, BadModel)
    assert words in error.message
    assert "\n" not in error.message
    assert (store.list(), blob_names(store)) == ([], [])


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (gguf({"split.count": 3}), NotSupported, "one of 3 parts"),
        (gguf({"general.type": "adapter"}), BadModel, "'adapter'"),
        (gguf({"llama.block_count": 0}), BadModel, "llama.block_count"),
    ],
)
async def test_what_no_engine_could_run(
    pulls: Puller, store: Store, tmp_path: Path, data: bytes, kind: type[MgrError], words: str
) -> None:
    error = await refusal(pulls, model_file(tmp_path, data))
    assert isinstance(error, kind)
    assert words in error.message
    assert blob_names(store) == []


async def test_one_sentence_for_every_file_that_cannot_be_read(pulls: Puller, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "link.gguf").symlink_to(model_file(tmp_path))
    for name in ("absent.gguf", "pipe.gguf", "link.gguf", "."):
        error = await refusal(pulls, f"{tmp_path}/{name}", "m")
        assert (type(error), error.message) == (NotFound, UNREADABLE)


async def test_a_relative_path_is_refused(pulls: Puller) -> None:
    for text in ("./m.gguf", "~/m.gguf"):
        assert "must be absolute" in (await refusal(pulls, text)).message


def test_files_are_forbidden_with_one_sentence(pulls: Puller, tmp_path: Path) -> None:
    messages = set()
    for path in (model_file(tmp_path), "/absent", str(tmp_path)):
        with pytest.raises(Forbidden) as caught:
            pulls.pull(path)
        messages.add(caught.value.message)
    assert len(messages) == 1
    assert str(tmp_path) not in messages.pop()


async def test_a_name_in_use(pulls: Puller, store: Store, tmp_path: Path) -> None:
    await lines(pulls, model_file(tmp_path), "m")
    await lines(pulls, model_file(tmp_path), "m")
    other = model_file(tmp_path, gguf({"general.name": "Other"}))
    before = blob_names(store)
    assert isinstance(await refusal(pulls, other, "M"), Conflict)
    assert blob_names(store) == before
    await lines(pulls, other, "M", replace=True)
    assert [model.summary.name for model in store.list()] == ["Other"]
    assert not store.blobs.has(DIGEST)


# ---- a hub


class Hub:
    """Replaces the look-up and the download; a download waits at half of the bytes while `gate` is closed."""

    def __init__(self, patch: pytest.MonkeyPatch, data: bytes = TINY) -> None:
        self.data = data
        self.fail: MgrError | None = None
        self.fetches = 0
        self.cancelled = 0
        self.halfway = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        patch.setattr(huggingface, "resolve", self.resolve)
        patch.setattr(puller, "fetch", self.fetch)

    async def resolve(self, source: HubSource, endpoint: str) -> RemoteFile:
        assert endpoint == "https://huggingface.co"
        if self.fail is not None:
            raise self.fail
        return RemoteFile(
            f"https://hub.test/{source.user}/{source.repo}", len(self.data), Digest.of(self.data)
        )

    async def fetch(
        self, file: RemoteFile, blobs: Blobs, on_bytes: Callable[[int], None], patience: Patience
    ) -> None:
        self.fetches += 1
        try:
            await pour(self._chunks(), blobs, file.size, file.digest, on_bytes)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _chunks(self) -> AsyncIterator[bytes]:
        half = len(self.data) // 2
        yield self.data[:half]
        self.halfway.set()
        await self.gate.wait()
        yield self.data[half:]


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


async def test_progress_of_a_download(pulls: Puller, store: Store, hub: Hub) -> None:
    progress = await lines(pulls, "hf.co/user/repo:Q4_K_M")
    assert progress[0] == PullProgress("pulling manifest")
    counted = progress[1:-3]
    assert {(line.status, line.digest, line.total) for line in counted} == {
        (f"pulling {DIGEST.short}", str(DIGEST), len(TINY))
    }
    completed = [line.completed or 0 for line in counted]
    assert completed == sorted(completed)
    assert completed[-1] == len(TINY)
    assert [line.status for line in progress[-3:]] == [
        "verifying sha256 digest",
        "writing manifest",
        "success",
    ]
    assert str(store.resolve("hf.co/user/repo:q4_k_m").name) == "hf.co/user/repo:Q4_K_M"


async def test_what_is_there_is_not_fetched_again(pulls: Puller, hub: Hub) -> None:
    await lines(pulls, "hf.co/user/repo")
    again = await lines(pulls, "hf.co/other/copy", "copy")
    assert hub.fetches == 1
    assert again[1] == PullProgress(f"pulling {DIGEST.short}", str(DIGEST), len(TINY), len(TINY))
    assert again[-1].status == "success"


async def test_twenty_pulls_are_one_download_until_the_last_leaves(
    pulls: Puller, store: Store, hub: Hub
) -> None:
    hub.gate.clear()
    tasks = [asyncio.ensure_future(lines(pulls, "hf.co/user/repo")) for _ in range(20)]
    await hub.halfway.wait()
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks[1:], return_exceptions=True)
    assert (hub.fetches, hub.cancelled) == (1, 0)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    assert hub.cancelled == 1
    assert blob_names(store) == []
    hub.gate.set()
    assert (await lines(pulls, "hf.co/user/repo"))[-1].status == "success"
    assert hub.fetches == 2


async def test_one_file_under_two_names_is_one_download(pulls: Puller, store: Store, hub: Hub) -> None:
    hub.gate.clear()
    tasks = [asyncio.ensure_future(lines(pulls, "hf.co/user/repo", name)) for name in ("a", "b")]
    await hub.halfway.wait()
    hub.gate.set()
    results = await asyncio.gather(*tasks)
    assert [result[-1].status for result in results] == ["success", "success"]
    assert hub.fetches == 1
    assert sorted(str(model.name) for model in store.list()) == ["a:latest", "b:latest"]


async def test_a_name_in_use_is_told_before_the_download(pulls: Puller, tmp_path: Path, hub: Hub) -> None:
    await lines(pulls, model_file(tmp_path, gguf({"general.name": "Other"})), "m")
    assert isinstance(await refusal(pulls, "hf.co/user/repo", "m"), Conflict)
    assert hub.fetches == 0


async def test_a_model_that_is_removed_during_another_pull_of_it(
    pulls: Puller, store: Store, hub: Hub
) -> None:
    """The second pull of a file relies on the blob of the first model."""
    await lines(pulls, "hf.co/user/repo", "first")
    stream = pulls.pull("hf.co/user/repo", ModelName.parse("second"))
    assert (await anext(stream)).status == "pulling manifest"
    store.remove("first")
    async with aclosing(stream):
        rest = [line.status async for line in stream]
    assert rest[-1] == "success"
    assert store.resolve("second").path.read_bytes() == TINY


async def test_stopping_all_pulls(pulls: Puller, hub: Hub) -> None:
    hub.gate.clear()
    task = asyncio.ensure_future(lines(pulls, "hf.co/user/repo"))
    await hub.halfway.wait()
    await pulls.close()
    with pytest.raises(PullFailed, match="stopped"):
        await task


# ---- short names


@pytest.fixture
def short(store: Store, tmp_path: Path) -> Puller:
    path = model_file(tmp_path).replace(" ", "%20")
    own = tmp_path / "shortnames.toml"
    own.write_text(
        f'[tiny]\nname = "tiny:1"\nsha256 = "{DIGEST.hex}"\nsources = ["hf.co/user/repo", "file://{path}"]\n'
    )
    return Puller(store, shortnames_path=own)


async def test_the_next_source_is_tried(short: Puller, store: Store, hub: Hub) -> None:
    hub.fail = PullFailed("the hub cannot be reached")
    assert (await lines(short, "tiny"))[-1].status == "success"
    assert str(store.resolve("tiny").name) == "tiny:1"


async def test_the_first_source_is_enough(short: Puller, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "My Model.gguf").unlink()
    assert (await lines(short, "tiny"))[-1].status == "success"
    assert hub.fetches == 1


async def test_the_errors_of_all_sources_are_told(
    short: Puller, store: Store, hub: Hub, tmp_path: Path
) -> None:
    hub.data = gguf({"general.name": "Other"})
    (tmp_path / "My Model.gguf").unlink()
    error = await refusal(short, "tiny")
    assert isinstance(error, PullFailed)
    assert (
        "no source of 'tiny' delivered it: hf.co/user/repo: the hub has another file there" in error.message
    )
    assert UNREADABLE in error.message
    assert (hub.fetches, store.list(), blob_names(store)) == (0, [], [])


async def test_the_digest_of_a_short_name_is_checked(
    short: Puller, store: Store, hub: Hub, tmp_path: Path
) -> None:
    hub.fail = PullFailed("down")
    model_file(tmp_path, gguf({"general.name": "Other"}))
    assert "digest mismatch" in (await refusal(short, "tiny")).message
    assert (store.list(), blob_names(store)) == ([], [])
