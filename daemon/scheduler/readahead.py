"""Reads a model's file ahead into the page cache, while its engine cannot start yet."""

import asyncio
import logging
import os
import threading
from pathlib import Path

log = logging.getLogger("mgr.scheduler")

# Linux answers one advice with at most the device's read-ahead window, 128 KiB unless it is set, and drops the rest.
STEP = 128 * 1024


async def read_ahead(path: Path, limit: int) -> int:
    """Has the first `limit` bytes of a file, at most all of it, read into the page cache; gives back how many.

    More than there is room for would push its own beginning out again, so `limit` is what is available. Ends at once
    when cancelled. It is a help and no more: a file that cannot be read, or a system without this, gives 0.
    """
    stop = threading.Event()
    try:
        return await asyncio.to_thread(_advise, path, limit, stop)
    except OSError as error:
        log.debug("%s is not read ahead: %s", path.name, error.strerror)
        return 0
    finally:
        stop.set()


def _advise(path: Path, limit: int, stop: threading.Event) -> int:
    if not hasattr(os, "posix_fadvise"):
        return 0
    done = 0
    with path.open("rb", buffering=0) as file:
        size = min(os.fstat(file.fileno()).st_size, limit)
        while done < size and not stop.is_set():
            length = min(STEP, size - done)
            os.posix_fadvise(file.fileno(), done, length, os.POSIX_FADV_WILLNEED)
            done += length
    return done
