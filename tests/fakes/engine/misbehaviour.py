"""What an engine does wrong outside of its answers."""

import asyncio
import os
import resource
import signal
import subprocess
import sys

from tests.fakes.engine.behaviour import Behaviour, Log

# What no log should hold: a terminal's control sequence, NUL, bytes that are no UTF-8. There is no line end in it.
GARBAGE = b"\x1b[31mspam \x00\xff\xfe\xc3\x28 "
_SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


def at_start(behaviour: Behaviour, log: Log) -> None:
    """Before anything is served."""
    for line in behaviour.say:
        print(line, flush=True)
    if behaviour.exit_code is not None:
        sys.exit(behaviour.exit_code)
    if behaviour.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour.fork or behaviour.setsid:
        grandchild = subprocess.Popen(_SLEEPER, start_new_session=behaviour.setsid)
        log("forked", grandchild=grandchild.pid)
    spam(behaviour.spam_bytes)


async def when_ready(behaviour: Behaviour) -> None:
    if behaviour.crash_after is not None:
        await asyncio.sleep(behaviour.crash_after)
        crash()


def spam(size: int) -> None:
    """Prints about so many bytes without a line end; returns when they have been taken."""
    while size > 0:
        size -= os.write(sys.stdout.fileno(), GARBAGE * 1000)


def crash() -> None:
    """Ends as by a fault of memory, without a core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)
