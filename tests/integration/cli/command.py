"""`mgr` as a command: how it is run, and what came of it."""

import socket
import subprocess
import sys
from collections.abc import Callable

MGR = (sys.executable, "-m", "cli.main")
GUARD = 60.0  # seconds; no test waits that long unless something hangs
Completed = subprocess.CompletedProcess[bytes]
Mgr = Callable[..., Completed]


def outcome(done: Completed) -> tuple[int, str, str]:
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
