"""Which process answers on an address, so that a signal reaches the daemon and never another program."""

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cli.client import Client, Json
from cli.errors import CliError

if TYPE_CHECKING:
    import psutil

STOP_LIMIT = 15.0  # seconds; the daemon promises 10
# Start times are compared in seconds since 1970, which is the time since boot plus the clock's idea of the boot:
# whole seconds, and moved when the clock is set.
START_TOLERANCE = 1.5
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL = 0.05


def daemon_process(client: Client) -> "psutil.Process":
    """The process that the daemon says it is, if pid, start time and boot all agree.

    Raises CliError with the reason where they do not: another server, another machine, a number used again.
    """
    import psutil

    address = client.address
    told = client.version().get("mgr")
    if not isinstance(told, dict):
        raise CliError(f"the server on {address} is not mgr; stop it in its own way")
    here = boot_id()
    if here is not None and told.get("boot_id") != here:
        raise CliError(f"the mgr on {address} runs on another machine; stop it there")
    pid, started = _numbers(told, address)
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) <= START_TOLERANCE
    except psutil.Error:
        same = False
    if not same or pid == os.getpid():
        raise CliError(f"the mgr on {address} says it is process {pid}, which is another program here")
    return process


def boot_id() -> str | None:
    """This boot of this machine; None where the system has no such name for it."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else None


def _numbers(told: Json, address: object) -> tuple[int, float]:
    pid, started = told.get("pid"), told.get("started")
    if type(pid) is int and pid > 0 and isinstance(started, int | float):
        return pid, float(started)
    raise CliError(f"the mgr on {address} does not say which process it is; stop it in its own way")


def terminate(process: "psutil.Process") -> None:
    """SIGTERM, and the wait until it is gone. A process that took over the number is not signalled."""
    import psutil

    try:
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_LIMIT
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                raise CliError(f"process {process.pid} has not stopped after {STOP_LIMIT:.0f} seconds")
            time.sleep(_POLL)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        raise CliError(f"process {process.pid} belongs to another user, who alone can stop it") from None
