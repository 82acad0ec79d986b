"""File operations that survive a crash and do not follow a planted link."""

import errno
import os
import secrets
import stat
from pathlib import Path

from daemon.errors import StorageFailed

# They say nothing about the file: without a descriptor to spare, a model is neither missing nor damaged.
_NOT_OF_THE_FILE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def open_regular(path: Path) -> int:
    """A descriptor to read the regular file at `path`. Raises OSError for a link, a pipe, a folder, ... too, and
    StorageFailed when no file could be opened now."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOT_OF_THE_FILE:
            raise storage_failed(error, "open a file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return fd


def read_regular(path: Path, limit: int) -> bytes:
    """The whole file, of at most `limit` bytes. Raises OSError (EFBIG beyond the limit)."""
    with os.fdopen(open_regular(path), "rb") as file:
        # Not read(limit): that would allocate the limit.
        data = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"longer than {limit} bytes")
    return data


def write_durably(path: Path, data: bytes) -> None:
    """Puts `data` at `path` so that a reader, also after a power cut, sees all of the old or all of the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".mgr-{secrets.token_hex(8)}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Makes a rename or an unlink in the folder last."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def storage_failed(error: OSError, what: str) -> StorageFailed:
    """The sentence for the client; it names no path of the server."""
    return StorageFailed(f"the model store cannot {what}: {error.strerror or 'input/output error'}")
