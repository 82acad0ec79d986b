"""Starts the daemon in the background when nothing listens on this machine's address.

It must outlive its caller and keep nothing of it: an own session, no descriptor (a program that reads `mgr run`
through a pipe waits for the last holder to close it), no working directory.
"""

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import platformdirs

from cli import output
from cli.client import Client, connect
from cli.errors import CliError, NotRunning
from daemon.settings import Settings, config_path, load

START_LIMIT = 60.0  # seconds
RIVAL_LIMIT = 3.0  # seconds in which another caller's daemon may answer after ours gave up the address
_POLL = 0.05
_TAIL_LINES = 10
_TAIL_BYTES = 8192
_CODE = Path(__file__).resolve().parents[1]


def connect_or_start() -> Client:
    """A client of a daemon that answers; one is started where the address is loopback or a Unix socket.

    Raises NotRunning for another machine's address, and CliError when the daemon does not start.
    """
    settings = load()
    client = connect(settings)
    if not answers(client):
        if not settings.host.is_loopback:
            raise NotRunning(settings.host)
        _start(client, settings)
    return client


def answers(client: Client) -> bool:
    """Whether a server is there; what it makes of a real request is the request's own matter."""
    try:
        client.version()
    except NotRunning:
        return False
    except CliError:
        return True
    return True


def _start(client: Client, settings: Settings) -> None:
    log = log_path()
    descriptor = _open_log(log)
    begin = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        child = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "cli.main",
                "serve",
            ],  # -P: import nothing from the working directory
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd=os.path.abspath(os.sep),
            env=child_environment(os.environ, settings),
            close_fds=True,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    output.announce(f"starting mgr on {settings.host} in the background; its log is {log}")
    if not _wait(client, child):
        child.kill()
        raise CliError(f"mgr did not start:\n{_tail(log, begin)}".rstrip(":\n"))


def _wait(client: Client, child: "subprocess.Popen[bytes]") -> bool:
    """Whether a daemon answers in time: ours, or that of a caller who was faster."""
    deadline = time.monotonic() + START_LIMIT
    exited = False
    while time.monotonic() < deadline:
        if answers(client):
            return True
        if not exited and child.poll() is not None:
            exited, deadline = True, time.monotonic() + RIVAL_LIMIT
        time.sleep(_POLL)
    return False


def child_environment(environ: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """The caller's environment, with every path made absolute: the daemon runs in another directory."""
    environment = dict(environ)
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, Path):
            environment[f"MGR_{item.name.upper()}"] = str(value)
    if settings.host.socket is not None:
        environment["MGR_HOST"] = str(settings.host.socket)
    if os.sep in settings.engine:
        environment["MGR_ENGINE"] = str(Path(settings.engine).expanduser().absolute())
    if environ.get("MGR_CONFIG"):
        environment["MGR_CONFIG"] = str(config_path(environ).absolute())
    environment["PYTHONPATH"] = os.pathsep.join(_import_path(environ.get("PYTHONPATH", "")))
    return environment


def _import_path(given: str) -> list[str]:
    """PYTHONPATH for the same code as this process, also where it runs from a checkout."""
    entries = [os.path.abspath(entry) for entry in given.split(os.pathsep) if entry]
    installed = str(_CODE) == sysconfig.get_path("purelib")
    return entries if installed or str(_CODE) in entries else [str(_CODE), *entries]


def log_path() -> Path:
    return platformdirs.user_log_path("mgr") / "serve.log"


def _open_log(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CliError(f"cannot start mgr: its log {path} cannot be written: {error.strerror}") from None


def _tail(path: Path, begin: int) -> str:
    """The last lines that were logged since `begin`, a byte offset."""
    with path.open("rb") as log:
        end = log.seek(0, os.SEEK_END)
        log.seek(max(begin, end - _TAIL_BYTES))
        lines = log.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])
