"""Binds, runs, stops. Exit codes: 0 clean, 1 failed, 75 the store is in use, 78 a setting is wrong."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import psutil
import uvicorn

from daemon.app import Daemon, build, mgr_version
from daemon.errors import MgrError, Misconfigured
from daemon.settings import Address, Settings
from daemon.store.lock import StoreLocked

log = logging.getLogger("mgr.server")

EXIT_FAILED = 1
EXIT_LOCKED = 75
EXIT_MISCONFIGURED = 78

_BACKLOG = 2048
_FORCED_SECONDS = 1  # for connections that are still open when everything has ended


class CannotListen(MgrError):
    """The address is taken or not ours."""


def serve(settings: Settings) -> int:
    """Runs the daemon until it is told to stop. Returns the exit code; why it failed is on stderr."""
    _set_up_logging(settings)
    try:
        daemon = build(settings, os.environ.get("PATH", os.defpath))
    except StoreLocked as error:
        return _failed(error, EXIT_LOCKED)
    except Misconfigured as error:
        return _failed(error, EXIT_MISCONFIGURED)
    try:
        listener = bind(settings.host)
    except CannotListen as error:
        daemon.release()
        return _failed(error, EXIT_FAILED)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(daemon, listener, settings.host))
    finally:
        daemon.release()
        if settings.host.socket is not None:
            settings.host.socket.unlink(missing_ok=True)
    return 0


def _failed(error: MgrError, code: int) -> int:
    print(f"Error: {error.message}", file=sys.stderr)  # noqa: T201
    return code


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return None
    return uvloop.Loop


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: it would stop accepting before the answers have been drained."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def _run(daemon: Daemon, listener: socket.socket, address: Address) -> None:
    config = uvicorn.Config(
        daemon.app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        headers=[("Server", f"mgr/{mgr_version()}")],
        timeout_graceful_shutdown=_FORCED_SECONDS,
        proxy_headers=False,
    )
    server = _Server(config)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="server")
    log.info("mgr %s listens on %s", mgr_version(), _bound(listener, address))
    waiting = asyncio.create_task(stopping.wait(), name="signal")
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    log.info("stopping")
    # First the work, so that open streams get their last event; the listener answers 503 meanwhile.
    await daemon.close()
    server.should_exit = True
    await serving


def _bound(listener: socket.socket, address: Address) -> Address:
    """The address with the port that the system chose, if it was asked to."""
    return address if address.socket else replace(address, port=listener.getsockname()[1])


def bind(address: Address) -> socket.socket:
    """A listening socket. Raises CannotListen, which names who holds a busy port as far as that can be seen."""
    if address.socket is not None:
        return _bind_unix(address.socket)
    host = address.host or "0.0.0.0"
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise CannotListen(f"the address {address} is not known; set MGR_HOST") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"{address} is in use by {_holder(address)}; stop it, or set MGR_HOST to another address"
            ) from None
        raise CannotListen(f"cannot listen on {address}: {error.strerror}; set MGR_HOST") from None
    listener.setblocking(False)
    return listener


def _bind_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror
        raise CannotListen(f"cannot listen on {path}: {reason}; set MGR_HOST") from None
    listener.setblocking(False)
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def _holder(address: Address) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.pid
            if listens and connection.laddr[1:] == (address.port,):
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        pass
    return "another program"


class _JsonLines(logging.Formatter):
    """One JSON object a line, so that no text of a stranger can forge another."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _set_up_logging(settings: Settings) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else text)
    level = getattr(logging, settings.log_level.upper())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("mgr").setLevel(level)
