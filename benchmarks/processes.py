"""Processes that are measured, and what they cost, read from the kernel."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

# A guard against a hang, nothing is measured with it.
GUARD_SECONDS = 600.0

ROOT = Path(__file__).parents[1]

# The command `mgr`, as its entry point runs it.
MGR = (sys.executable, "-c", "import sys; from cli.main import main; sys.exit(main())")


class Unavailable(Exception):
    """A group cannot be measured on this machine; the text says what to install or to give."""


def cpu_ns(pid: int) -> int:
    """CPU time of a process so far, in ns: all its threads, in user and kernel mode.

    The kernel's clock for a process (its id as clock_getcpuclockid(3) makes it) counts what the scheduler gave it,
    not ticks.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


def resident_bytes(pid: int) -> int:
    """RSS of a process, as its smaps_rollup says it: exact, where that of its status may lag."""
    (kilobytes,) = re.findall(
        r"^Rss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE
    )
    return int(kilobytes) * 1024


def free_port() -> int:
    """A TCP port of loopback that nothing listened on a moment ago; for programs that cannot choose one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(folder: Path, **settings: object) -> dict[str, str]:
    """What mgr is started with: this environment, HOME and the store in `folder`, and `settings` as MGR_* variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MGR_", "OLLAMA_", "HF_", "XDG_"))}
    mgr = {f"MGR_{name.upper()}": str(value) for name, value in settings.items()}
    return {**kept, "HOME": str(folder), "PYTHONPATH": str(ROOT), "MGR_MODELS": str(folder / "models"), **mgr}


class Process:
    """A child in a session of its own, ended when the block is left. What it says goes to `log`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises RuntimeError with what it said when it has ended."""
        if self._process.poll() is not None:
            said = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.returncode}:\n{said}")

    def succeed(self) -> None:
        """Waits for the end. Raises RuntimeError when it failed."""
        if self._process.wait(GUARD_SECONDS) != 0:
            self.check()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait(GUARD_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def run_ms(command: Sequence[str], folder: Path, port: int = 0) -> float:
    """Milliseconds of a command from its start to its end, in mgr's environment for the daemon on `port`.

    Raises RuntimeError when it fails.
    """
    values = environment(folder, host=f"127.0.0.1:{port}")
    start = time.monotonic()
    Process(command, values, folder / "command.log").succeed()
    return (time.monotonic() - start) * 1000
