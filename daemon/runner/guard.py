"""Runs before an engine, in its process: ties its life to the daemon's, then becomes the engine.

    python -I -S guard.py DAEMON_PID COMMAND [ARGUMENT ...]

On Linux the kernel kills the process when its parent dies (PR_SET_PDEATHSIG, kept over exec) and forbids it new
privileges. A program of its own because code between fork and exec in a threaded process can deadlock, and because
`setpriv`, which does the same, needs `capset`, which a hardened service forbids. Standard library only: it must start
in a few milliseconds.
"""

import contextlib
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


def _bind_to_parent(daemon: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # noqa: PLC0415 - a third of this program's start-up, and needed on Linux only

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # The daemon may have died before the first call. Its pid was handed in: in a container it can be 1.
    if os.getppid() != daemon:
        sys.exit(1)
    # When memory runs out the kernel should take an engine, which can be started again, not the daemon.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as adjust:
        adjust.write("500")


def main(arguments: list[str]) -> None:
    daemon, *command = arguments
    _bind_to_parent(int(daemon))
    try:
        os.execv(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
