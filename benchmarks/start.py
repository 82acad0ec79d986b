"""Start-up times: the daemon to its first answer, and a short command."""

import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.daemons import paced_daemon
from benchmarks.figures import Bar, Row, difference_row, ratio_row
from benchmarks.options import Options
from benchmarks.pairs import pairs
from benchmarks.processes import MGR, Process, Unavailable, environment, free_port, run_ms

GROUP = "start"

_IMPORTED = ("fastapi", "uvicorn", "httpx")


async def measure(options: Options) -> list[Row]:
    """See each row; everything has been compiled to bytecode before. Raises Unavailable where a package is missing."""
    for package in _IMPORTED:
        if find_spec(package) is None:
            raise Unavailable(f"the start is measured against the import of {package}; pip install {package}")
    with tempfile.TemporaryDirectory(prefix="mgr-b-") as name:
        folder = Path(name)
        return [await _daemon(folder, options), await _list(folder / "list", options)]


async def _daemon(folder: Path, options: Options) -> Row:
    """Time from the start of the daemon's process to the first 200 of `GET /`, over that of
    `python -c "import fastapi, uvicorn, httpx"` to its end."""
    await _answer_ms(folder)
    ready, imports = await pairs(
        partial(_answer_ms, folder),
        partial(_run, [sys.executable, "-c", f"import {', '.join(_IMPORTED)}"], folder),
        options.count(9),
        options,
        "ms to the first answer",
    )
    return ratio_row(GROUP, "daemon to its first answer over its imports", ready, imports, "ms", Bar(1.6))


async def _answer_ms(folder: Path) -> float:
    port = free_port()
    start = time.monotonic()
    command = [sys.executable, "-m", "daemon"]
    with Process(command, environment(folder, host=f"127.0.0.1:{port}"), folder / "daemon.log") as process:
        while not _answers(port):
            process.check()
            time.sleep(0.001)  # noqa: ASYNC251 - nothing else runs here
        return (time.monotonic() - start) * 1000


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return connection.recv(4096).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


async def _list(folder: Path, options: Options) -> Row:
    """Time of `mgr list`, with a daemon that runs and a store with one model, less that of `python -c pass`."""
    with paced_daemon(folder) as daemon:
        command = [*MGR, "list"]
        await _run(command, folder, port=daemon.port)
        listed, nothing = await pairs(
            partial(_run, command, folder, port=daemon.port),
            partial(_run, [sys.executable, "-c", "pass"], folder),
            options.count(15),
            options,
            "ms of mgr list",
        )
    return difference_row(GROUP, "mgr list, less python -c pass", listed, nothing, "ms", Bar(250))


async def _run(command: Sequence[str], folder: Path, port: int = 0) -> float:
    return run_ms(command, folder, port)
