"""What an engine started and left behind: ended and reaped, wherever it went.

A signal to the engine's group does not reach what has made a session of its own (setsid). It still has the
environment that it inherited, and in it the key that no other start was given. Source: proc(5), waitpid(2).
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from daemon.runner.launch import KEY_VARIABLE

_REAP_SECONDS = 1.0
_PAUSE_SECONDS = 0.005


def end(engine: int, key: str) -> list[int]:
    """Kills what has the engine's `key` in its environment, and reaps it where it has become our child. Call it in a
    thread, once the engine itself, process `engine`, has been reaped. Returns the processes that were killed."""
    killed = [pid for pid in _with_key(key) if _kill(pid)]
    # As process 1 of a container we inherit what lost its parent, and nobody else would reap it.
    deadline = time.monotonic() + _REAP_SECONDS
    while any(map(_reap, [-engine, *killed])):
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE_SECONDS)
    return killed


def _with_key(key: str) -> list[int]:
    """The processes of this user that have it. None where there is no /proc."""
    entry = f"{KEY_VARIABLE}={key}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or it has just ended
            if entry in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _reap(pid: int) -> bool:
    """Reaps all that have ended of a child (or of a group, if negative); whether some have not ended yet."""
    try:
        while os.waitpid(pid, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True
