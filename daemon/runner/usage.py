"""The memory that a process really uses.

On Linux every mapping is asked for (`/proc/PID/smaps`), because only there is it told what belongs to the model's file:
engines map it as shared, and programs and libraries as private. Elsewhere the part that is the process's own is all
that there is to know.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes. `anonymous` is lost with the process, and counts what is swapped out; `mapped` are pages of files that it
    shares with the page cache, like weights."""

    anonymous: int
    mapped: int

    @property
    def total(self) -> int:
        return self.anonymous + self.mapped


def of(pid: int) -> Usage | None:
    """What the process uses now, None when it is gone or not ours. Takes a millisecond for each GiB or so: not for an
    event loop's thread."""
    try:
        process = psutil.Process(pid)
        if psutil.LINUX:
            return _sum(process.memory_maps(grouped=False))
        memory = process.memory_full_info()
    except (psutil.Error, OSError):
        return None
    return Usage(memory.uss, max(memory.rss - memory.uss, 0))


def _sum(mappings: Sequence[Any]) -> Usage | None:
    if not mappings:  # of a process that has ended and is not waited for yet
        return None
    files = (
        m for m in mappings if m.perms.endswith("s") and m.path.startswith("/") and not _is_device(m.path)
    )
    return Usage(
        anonymous=sum(mapping.anonymous + mapping.swap for mapping in mappings),
        mapped=sum(mapping.rss - mapping.anonymous for mapping in files),
    )


def _is_device(path: str) -> bool:
    """Shared memory too, which is no file that could be read again."""
    return path.startswith("/dev/")
