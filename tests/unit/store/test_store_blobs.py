"""Blobs: nothing under a final name before it is whole, right and durable."""

import errno
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.errors import StorageFailed
from daemon.store.blobs import BadDigest, Blobs, ContentMismatch, Digest, NoSpace, WrongDigest, WrongSize
from daemon.store.ledger import Ledger

DATA = b"weights " * 1000
DIGEST = Digest.of(DATA)
OTHER = Digest.of(b"other")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "blobs").mkdir()
    return tmp_path


@pytest.fixture
def blobs(root: Path) -> Blobs:
    return Blobs(root, Ledger(root))


def store_data(blobs: Blobs, size: int | None = None, digest: Digest | None = None) -> Digest:
    with blobs.ingest(size, digest) as ingest:
        ingest.write(DATA)
        return ingest.commit()


def names(root: Path) -> list[str]:
    return sorted(os.listdir(root / "blobs"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 65,
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 64 + "\n",
        "sha256-" + "a" * 64,
        "sha512:" + "a" * 64,
        "sha256:" + "g" * 64,
        "sha256:" + "\u0661" * 64,
        "sha256:../../../../etc/passwd",
        "../../../../etc/passwd",
        "sha256:" + "a" * 62 + "/.",
    ],
)
def test_a_digest_is_exactly_64_hexadecimal_digits(text: str) -> None:
    with pytest.raises(BadDigest, match="invalid digest format"):
        Digest.parse(text)
    with pytest.raises(BadDigest):
        Digest(text.removeprefix("sha256:"))


def test_a_digest_names_its_blob(blobs: Blobs, root: Path) -> None:
    digest = Digest.parse("sha256:" + "ab" * 32)
    assert str(digest) == "sha256:" + "ab" * 32
    assert digest.short == "abababababab"
    assert blobs.path(digest) == root / "blobs" / ("sha256-" + "ab" * 32)


def test_a_blob_appears_whole(blobs: Blobs, root: Path) -> None:
    with blobs.ingest(len(DATA), DIGEST) as ingest:
        ingest.write(DATA[:5])
        ingest.write(memoryview(DATA)[5:])
        assert ingest.written == len(DATA)
        assert not blobs.has(DIGEST)
        assert ingest.commit() == DIGEST
    assert names(root) == [f"sha256-{DIGEST.hex}"]
    assert blobs.path(DIGEST).read_bytes() == DATA
    assert blobs.path(DIGEST).stat().st_mode & 0o777 == 0o444
    assert blobs.size(DIGEST) == len(DATA)
    assert blobs.has(DIGEST, len(DATA))
    assert not blobs.has(DIGEST, len(DATA) + 1)
    assert blobs.read(DIGEST, len(DATA)) == DATA
    with pytest.raises(StorageFailed, match="longer than 5 bytes"):
        blobs.read(DIGEST, 5)


def test_the_order_of_a_commit(blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def spy(owner: Any, name: str, tell: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def spied(*args: Any) -> Any:
            steps.append(tell(*args))
            return real(*args)

        monkeypatch.setattr(owner, name, spied)

    def kind(fd: int) -> str:
        return "folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "file"

    spy(os, "fsync", lambda fd: f"fsync {kind(fd)}")
    spy(Path, "replace", lambda _source, target: f"rename to {Path(target).name[:7]}")
    with blobs.ingest() as ingest:
        ingest.write(DATA)
        ingest.commit()
    assert steps == ["fsync file", "rename to sha256-", "fsync folder"]


def test_the_wrong_size_is_refused(blobs: Blobs, root: Path) -> None:
    with pytest.raises(WrongSize, match="expected 9000 bytes, got 8000"):
        store_data(blobs, 9000)
    with blobs.ingest(7999) as ingest, pytest.raises(WrongSize, match="expected 7999 bytes, got 8000"):
        ingest.write(DATA)
    assert names(root) == []


def test_the_wrong_content_is_refused(blobs: Blobs, root: Path) -> None:
    with pytest.raises(WrongDigest) as caught:
        store_data(blobs, len(DATA), OTHER)
    assert str(OTHER) in caught.value.message
    assert str(DIGEST) in caught.value.message
    assert isinstance(caught.value, ContentMismatch)
    assert names(root) == []


def test_without_a_commit_nothing_remains(blobs: Blobs, root: Path) -> None:
    with blobs.ingest(len(DATA)) as ingest:
        ingest.write(DATA)
        assert len(names(root)) == 1
    assert names(root) == []


def test_too_small_a_disk_is_told_before_the_first_byte(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 60_000_000, 60_000_000))
    ingest = blobs.ingest(98_362_432)
    with pytest.raises(NoSpace, match=r"98.4 MB \(98362432 bytes\) and 60.0 MB \(60000000 bytes\) are free"):
        ingest.open()
    assert names(root) == []
    with blobs.ingest(60_000_000 // 8) as ingest:
        assert len(names(root)) == 1


@pytest.mark.parametrize("call", ["write", "posix_fallocate", "fsync"])
def test_a_full_disk_is_told_with_numbers(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(NoSpace, match="are free"):
        store_data(blobs, len(DATA))
    assert names(root) == []


def test_a_failed_fsync_fails_the_commit(blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageFailed, match="cannot write a blob: Input/output error"):
        store_data(blobs)
    assert (names(root), len(calls)) == ([], 1)


def test_a_file_system_that_cannot_reserve_space_is_fine(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    with blobs.ingest(len(DATA), DIGEST) as ingest:
        ingest.write(DATA)
        assert ingest.commit() == DIGEST


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_planted_as_a_blob_is_none(blobs: Blobs, root: Path, kind: str) -> None:
    target = root / "target"
    target.write_bytes(DATA)
    path = blobs.path(DIGEST)
    match kind:
        case "link":
            path.symlink_to(target)
        case "pipe":
            os.mkfifo(path)
        case _:
            path.mkdir()
    assert not blobs.has(DIGEST)
    with pytest.raises(StorageFailed):
        blobs.read(DIGEST, 10**6)
    if kind != "folder":
        assert blobs.put(DATA) == DIGEST
        assert path.is_file()
        assert not path.is_symlink()
    assert target.read_bytes() == DATA


def test_only_leftovers_of_mgr_are_swept(blobs: Blobs, root: Path) -> None:
    abandoned = blobs.ingest()
    abandoned.open()
    partial = root / "blobs" / f"sha256-{OTHER.hex}-partial"
    partial.write_bytes(b"x")
    blobs.put(DATA)
    blobs.sweep()
    assert names(root) == sorted([f"sha256-{DIGEST.hex}", partial.name])
    abandoned.close()


def test_only_what_mgr_wrote_is_deleted(blobs: Blobs, root: Path) -> None:
    blobs.path(OTHER).write_bytes(b"other")
    assert not blobs.delete(OTHER)
    blobs.put(DATA)
    assert blobs.delete(DIGEST)
    assert names(root) == [f"sha256-{OTHER.hex}"]
    assert not blobs.delete(DIGEST)


def test_a_blob_that_was_there_before_does_not_become_mgrs_own(blobs: Blobs) -> None:
    blobs.path(DIGEST).write_bytes(DATA)
    assert blobs.put(DATA) == DIGEST
    assert not blobs.delete(DIGEST)
    assert blobs.has(DIGEST, len(DATA))


def test_a_blob_that_another_program_replaced_is_that_programs(blobs: Blobs) -> None:
    blobs.put(DATA)
    blobs.path(DIGEST).unlink()
    blobs.path(DIGEST).write_bytes(DATA)
    os.utime(blobs.path(DIGEST), ns=(1, 1))
    assert not blobs.delete(DIGEST)
