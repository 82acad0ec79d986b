"""One daemon for each store: an flock on `mgr/lock`, which the kernel frees however its holder dies."""

import fcntl
import os
from pathlib import Path

from daemon.errors import Misconfigured


class StoreLocked(Misconfigured):
    """Another process holds the store; `pid` None where the file does not tell."""

    def __init__(self, pid: int | None) -> None:
        holder = "another process" if pid is None else f"another daemon (pid {pid})"
        super().__init__(
            f"the model store is in use by {holder}; stop it, or set MGR_MODELS to another folder"
        )
        self.pid = pid


class StoreLock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self) -> None:
        """Takes the lock at once, or raises StoreLocked. Raises OSError when the file cannot be opened."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            text = os.pread(fd, 32, 0).strip()
            os.close(fd)
            raise StoreLocked(int(text) if text.isdigit() else None) from None
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
