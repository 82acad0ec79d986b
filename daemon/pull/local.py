"""A file of this machine, copied into the store."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from daemon.errors import InvalidRequest, NotFound, PullFailed
from daemon.pull.source import FileSource
from daemon.pull.threads import chunks_of, in_thread, pour
from daemon.store.blobs import Blobs, Digest
from daemon.store.files import open_regular

# One sentence for absent, forbidden and not a regular file: the answer tells nothing about the server's disk.
UNREADABLE = "the file cannot be read: it must be a regular file that exists and that the daemon may read"


async def copy_file(
    source: FileSource, blobs: Blobs, digest: Digest | None, on_bytes: Callable[[int, int], None]
) -> Digest:
    """Copies the file, which must have `digest` if that is given; `on_bytes` is told bytes done and bytes in all.

    Raises InvalidRequest, NotFound, PullFailed (ContentMismatch, also when the file changes meanwhile), StorageFailed.
    """
    path = Path(source.path)
    if not path.is_absolute():
        raise InvalidRequest(
            "the path of a file must be absolute: the daemon has another current folder than you"
        )
    with ExitStack() as stack:
        try:
            file, size = await in_thread(_open, stack, path)
        except (OSError, ValueError):
            raise NotFound(UNREADABLE) from None
        try:
            return await pour(chunks_of(file), blobs, size, digest, lambda done: on_bytes(done, size))
        except OSError as error:
            raise PullFailed("the file could not be read to its end") from error


def _open(stack: ExitStack, path: Path) -> tuple[BinaryIO, int]:
    """The file and its size in bytes. The stack owns it even if the caller has gone."""
    file = stack.enter_context(os.fdopen(open_regular(path), "rb"))
    return file, os.fstat(file.fileno()).st_size
