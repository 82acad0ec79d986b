"""Content by its sha256, in Ollama's layout: `blobs/sha256-<64 hex>`.

Nothing is ever under such a name before its size and sha256 matched and it was fsynced.
"""

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from daemon.errors import InvalidRequest, PullFailed, StorageFailed
from daemon.store.files import open_regular, read_regular, storage_failed, sync_folder
from daemon.store.ledger import Ledger

Buffer: TypeAlias = bytes | bytearray | memoryview

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_NAME = re.compile(r"sha256-[0-9a-f]{64}", re.ASCII)
_TEMPORARY = ".mgr-ingest-"


class BadDigest(InvalidRequest):
    def __init__(self) -> None:
        super().__init__('invalid digest format: write "sha256:" and 64 lower-case hexadecimal digits')


class ContentMismatch(PullFailed):
    """What arrived is not what was announced."""


class WrongSize(ContentMismatch):
    """Sizes in bytes."""

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(f"size mismatch: expected {expected} bytes, got {got}; pull again")
        self.expected = expected
        self.got = got


class WrongDigest(ContentMismatch):
    def __init__(self, expected: "Digest", got: "Digest") -> None:
        super().__init__(f"digest mismatch: expected {expected}, got {got}; the source delivers another file")
        self.expected = expected
        self.got = got


class NoSpace(StorageFailed):
    """Sizes in bytes; `needed` None where the size was not known before."""

    def __init__(self, needed: int | None, free: int) -> None:
        wanted = "more space than there is" if needed is None else f"{_human(needed)} ({needed} bytes)"
        super().__init__(
            f"not enough space in the model store: this needs {wanted} and {_human(free)} ({free} bytes) are free; "
            "remove models or free space, then try again"
        )


def _human(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


@dataclass(frozen=True, slots=True)
class Digest:
    """A validated sha256, and the only way to the path of a blob. Source of the form: OCI, "sha256:<hex>"."""

    hex: str

    def __post_init__(self) -> None:
        if _DIGEST.fullmatch(f"sha256:{self.hex}") is None:
            raise BadDigest

    @classmethod
    def parse(cls, text: str) -> "Digest":
        """Raises BadDigest."""
        match = _DIGEST.fullmatch(text)
        if match is None:
            raise BadDigest
        return cls(match[1])

    @classmethod
    def of(cls, data: Buffer) -> "Digest":
        return cls(hashlib.sha256(data).hexdigest())

    def __str__(self) -> str:
        return f"sha256:{self.hex}"

    @property
    def short(self) -> str:
        return self.hex[:12]


class Blobs:
    """The blobs of one store. Calls do blocking disk I/O and may come from any thread."""

    def __init__(self, root: Path, ledger: Ledger) -> None:
        self._folder = root / "blobs"
        self._ledger = ledger

    def path(self, digest: Digest) -> Path:
        return self._folder / f"sha256-{digest.hex}"

    def size(self, digest: Digest) -> int | None:
        """Bytes; None where there is no such blob, or no regular file."""
        try:
            fd = open_regular(self.path(digest))
        except OSError:
            return None
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def has(self, digest: Digest, size: int | None = None) -> bool:
        """Whether the blob is there, and has `size` bytes where that is known."""
        found = self.size(digest)
        return found is not None and size in {None, found}

    def read(self, digest: Digest, limit: int) -> bytes:
        """A small blob. Raises StorageFailed when it is absent, not a regular file, or longer than `limit` bytes."""
        try:
            return read_regular(self.path(digest), limit)
        except OSError as error:
            raise storage_failed(error, f"read the blob {digest.short}") from error

    def ingest(self, size: int | None = None, digest: Digest | None = None) -> "Ingest":
        """A blob to be written; use it as a context manager. `size` (bytes) and `digest` are checked if given."""
        return Ingest(self, size, digest)

    def put(self, data: bytes) -> Digest:
        with self.ingest(len(data)) as ingest:
            ingest.write(data)
            return ingest.commit()

    def delete(self, digest: Digest) -> bool:
        """Removes the blob if mgr wrote it; tells whether it did. Raises StorageFailed."""
        path = self.path(digest)
        if not self._ledger.wrote(path):
            return False
        try:
            path.unlink(missing_ok=True)
            sync_folder(self._folder)
        except OSError as error:
            raise storage_failed(error, f"delete the blob {digest.short}") from error
        self._ledger.forget(path)
        return True

    def sweep(self) -> None:
        """Removes what a killed daemon left half written. Only for the holder of the store's lock."""
        for path in self._folder.glob(f"{_TEMPORARY}*"):
            path.unlink(missing_ok=True)

    def older_than(self, seconds: float) -> list[Digest]:
        """The blobs whose files were written so long ago, by the wall clock. Raises OSError."""
        limit = time.time() - seconds
        return [
            Digest(entry.name.removeprefix("sha256-"))
            for entry in os.scandir(self._folder)
            if _NAME.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < limit
        ]

    def _temporary(self) -> Path:
        return self._folder / f"{_TEMPORARY}{secrets.token_hex(8)}"

    def _adopt(self, temporary: Path, fd: int, digest: Digest) -> None:
        """Gives a complete, verified, fsynced file its final name."""
        path = self.path(digest)
        self._ledger.record(path, os.fstat(fd).st_mtime_ns)
        temporary.replace(path)
        sync_folder(self._folder)


class Ingest:
    """One blob on its way into the store.

    `write` as often as needed, then `commit`. Without a commit nothing remains. Raises StorageFailed (NoSpace when
    the disk is too small), WrongSize, WrongDigest.
    """

    def __init__(self, blobs: Blobs, size: int | None, digest: Digest | None) -> None:
        self._blobs = blobs
        self._size = size
        self._digest = digest
        self._hash = hashlib.sha256()
        self._path = blobs._temporary()
        self._fd = -1
        self.written = 0

    def open(self) -> None:
        """Checks and reserves the space, before the first byte."""
        try:
            free = self._free()
            if self._size is not None and self._size > free:
                raise NoSpace(self._size, free)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
            if self._size and hasattr(os, "posix_fallocate"):
                self._reserve(self._size)
        except OSError as error:
            raise self._failed(error) from error

    def _reserve(self, size: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            # Some file systems cannot; the writes will tell.
            if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}:
                raise

    def write(self, chunk: Buffer) -> None:
        view = memoryview(chunk).cast("B")
        total = self.written + len(view)
        if self._size is not None and total > self._size:
            raise WrongSize(self._size, total)
        self._hash.update(view)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise self._failed(error) from error
        self.written = total

    def commit(self) -> Digest:
        """Verifies, makes durable, and gives the final name, in this order."""
        if self._size is not None and self.written != self._size:
            raise WrongSize(self._size, self.written)
        digest = Digest(self._hash.hexdigest())
        if self._digest is not None and digest != self._digest:
            raise WrongDigest(self._digest, digest)
        if self._blobs.has(digest, self.written):
            return digest
        try:
            os.fchmod(self._fd, 0o444)
            os.fsync(self._fd)
            self._blobs._adopt(self._path, self._fd, digest)
        except OSError as error:
            raise self._failed(error) from error
        return digest

    def close(self) -> None:
        """Removes what was not committed. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._path.unlink(missing_ok=True)

    def _free(self) -> int:
        return shutil.disk_usage(self._path.parent).free

    def _failed(self, error: OSError) -> StorageFailed:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return NoSpace(self._size, self._free())
        return storage_failed(error, "write a blob")

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
