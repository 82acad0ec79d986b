"""Where one start of an engine listens: a fresh Unix socket in a private folder, and a one-time key."""

import os
import secrets
import shutil
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from daemon.errors import Misconfigured

# sun_path of sockaddr_un holds 108 bytes on Linux and 104 on macOS, with the final NUL.
MAX_SOCKET_PATH_BYTES = 103


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

    @classmethod
    def open(cls, wanted: Path | None) -> "RunDirectory":
        """The folder `wanted`, made or checked (a real folder, ours, 0700); without one, a new temporary folder.

        Raises Misconfigured, and leaves no temporary folder then.
        """
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
            return cls(Path(tempfile.mkdtemp(prefix="mgr-")), temporary=True)
        except OSError as error:
            raise Misconfigured(
                f"no temporary folder can be made for the run directory: {error.strerror}; set MGR_RUN_DIR"
            ) from None

    def check(self) -> None:
        """Makes the folder where it is not there (something may have cleaned it away). Raises Misconfigured."""
        longest = len(os.fsencode(self._socket("0" * 8)))
        if longest > MAX_SOCKET_PATH_BYTES:
            raise Misconfigured(
                f"the run directory {self.path} is too long for a socket path "
                f"({longest} bytes, {MAX_SOCKET_PATH_BYTES} are possible); set MGR_RUN_DIR to a shorter one"
            )
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.lstat()
        except OSError as error:
            raise Misconfigured(
                f"the run directory {self.path} cannot be used: {error.strerror}; set MGR_RUN_DIR"
            ) from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise Misconfigured(
                f"the run directory {self.path} must be a folder of this user with mode 0700; "
                "remove it, or set MGR_RUN_DIR to another"
            )

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
