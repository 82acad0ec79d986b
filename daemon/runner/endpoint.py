"""Where one start of an engine listens: a fresh Unix socket in a private folder, and a one-time key.

A daemon that is killed leaves its folder behind, with sockets in it. So a run directory is locked (flock) for as long
as its daemon lives, which the kernel ends however that dies, and the next daemon removes what no lock holds. A pid and
its start time would not do: a daemon in another container that shares the temporary folder has a pid that is unknown
here. Cleaners like systemd-tmpfiles leave a locked folder alone, too.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from daemon.errors import Misconfigured

# sun_path of sockaddr_un holds 108 bytes on Linux and 104 on macOS, with the final NUL.
MAX_SOCKET_PATH_BYTES = 103

_PREFIX = "mgr-run-"
_TEMPORARY_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")  # the rest is `tempfile`'s
_SOCKETS = "[0-9a-f]" * 8 + ".sock"


@dataclass(frozen=True, slots=True)
class Endpoint:
    socket: Path
    key: str = field(repr=False)

    def remove(self) -> None:
        """Deletes the socket file; an engine that finds one there refuses to start."""
        self.socket.unlink(missing_ok=True)


class RunDirectory:
    """A folder that only this user can enter. Makes endpoints with names that were never used before."""

    def __init__(self, path: Path, *, temporary: bool = False) -> None:
        self.path = path
        self._temporary = temporary
        self._folder: int | None = None  # its descriptor, which has the lock

    @classmethod
    def open(cls, wanted: Path | None) -> "RunDirectory":
        """The folder `wanted`, made or checked (a real folder, ours, 0700); without one, a new temporary folder.

        What dead daemons left there is removed. Raises Misconfigured, and leaves no temporary folder then.
        """
        if wanted is None:
            _remove_dead_folders(Path(tempfile.gettempdir()))
        directory = cls._temporary_one() if wanted is None else cls(wanted)
        try:
            directory.check()
        except Misconfigured:
            directory.close()
            raise
        return directory

    @classmethod
    def _temporary_one(cls) -> "RunDirectory":
        try:
            return cls(Path(tempfile.mkdtemp(prefix=_PREFIX)), temporary=True)
        except OSError as error:
            raise Misconfigured(
                f"no temporary folder can be made for the run directory: {error.strerror}; set MGR_RUN_DIR"
            ) from None

    def check(self) -> None:
        """Makes and locks the folder if it is not there: something may have cleaned it away. Raises Misconfigured."""
        longest = len(os.fsencode(self._socket("0" * 8)))
        if longest > MAX_SOCKET_PATH_BYTES:
            raise Misconfigured(
                f"the run directory {self.path} is too long for a socket path "
                f"({longest} bytes, {MAX_SOCKET_PATH_BYTES} are possible); set MGR_RUN_DIR to a shorter one"
            )
        try:
            # Until it is locked, another daemon may take it for a dead one's and remove it.
            while not self._is_held(self._made()):
                self._hold()
        except OSError as error:
            raise Misconfigured(
                f"the run directory {self.path} cannot be used: {error.strerror}; set MGR_RUN_DIR"
            ) from None

    def _made(self) -> os.stat_result:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.path.lstat()
        if not _is_private(found):
            raise Misconfigured(
                f"the run directory {self.path} must be a folder of this user with mode 0700; "
                "remove it, or set MGR_RUN_DIR to another"
            )
        return found

    def _is_held(self, found: os.stat_result) -> bool:
        return self._folder is not None and os.path.samestat(os.fstat(self._folder), found)

    def _hold(self) -> None:
        """Locks the folder that is there now. Who is alone in it removes the sockets, which are of no use to anyone."""
        with contextlib.suppress(FileNotFoundError):
            folder = _opened(self.path)
            self._let_go()
            self._folder = folder
            with contextlib.suppress(OSError):  # a file system without locks: nobody removes anything there
                if _is_unlocked(folder):
                    for socket in self.path.glob(_SOCKETS):
                        socket.unlink()
                fcntl.flock(folder, fcntl.LOCK_SH)

    def _let_go(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            os.close(folder)

    def _socket(self, name: str) -> Path:
        return self.path / f"{name}.sock"

    def endpoint(self) -> Endpoint:
        endpoint = Endpoint(self._socket(secrets.token_hex(4)), secrets.token_urlsafe(32))
        endpoint.remove()
        return endpoint

    def close(self) -> None:
        """Removes the folder with all that is left in it, if it was made for this run; never raises."""
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        self._let_go()


def _is_private(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _is_unlocked(folder: int) -> bool:
    """Whether nobody else has it; then this descriptor has it alone. Raises OSError where there are no locks."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_dead_folders(place: Path) -> None:
    """Removes this user's run directories in `place` that no living daemon holds; never raises."""
    for path in [path for path in place.glob(f"{_PREFIX}*") if _TEMPORARY_NAME.fullmatch(path.name)]:
        with contextlib.suppress(OSError):
            folder = _opened(path)
            try:
                if _is_private(os.fstat(folder)) and _is_unlocked(folder):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(folder)
