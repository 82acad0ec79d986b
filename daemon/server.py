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
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import uvicorn

from daemon.app import Daemon, build, mgr_version
from daemon.errors import MgrError, Misconfigured
from daemon.runner.output import printable
from daemon.settings import Address, Settings
from daemon.store.lock import StoreLocked

log = logging.getLogger("mgr.server")

EXIT_FAILED = 1
EXIT_LOCKED = 75
EXIT_MISCONFIGURED = 78

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BACKLOG = 2048
_FORCED_SECONDS = 1  # for connections that are still open when everything has ended


class CannotListen(MgrError):
    """The address is taken or not ours."""


def serve(settings: Settings) -> int:
    """Runs the daemon until it is told to stop. Returns the exit code; why it failed is on stderr."""
    _set_up_logging(settings)
    try:
        with ExitStack() as resources:
            for number in _STOP_SIGNALS:  # until the loop listens to them; what is open by then is closed
                resources.callback(signal.signal, number, signal.signal(number, _leave))
            daemon = build(settings, os.environ.get("PATH", os.defpath))
            resources.callback(daemon.release)
            listener = resources.enter_context(bind(settings.host))
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(_run(daemon, listener, settings.host))
    except StoreLocked as error:
        return _failed(error, EXIT_LOCKED)
    except Misconfigured as error:
        return _failed(error, EXIT_MISCONFIGURED)
    except CannotListen as error:
        return _failed(error, EXIT_FAILED)
    return 0


def _leave(number: int, frame: object) -> None:
    raise SystemExit(0)


def _failed(error: MgrError, code: int) -> int:
    print(f"Error: {error.message}", file=sys.stderr)  # noqa: T201
    return code


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return None
    return uvloop.Loop


def _protocol() -> "type[asyncio.Protocol] | str":
    try:
        from daemon.protocol import BoundedProtocol  # noqa: PLC0415 - its parser is not on every platform
    except ImportError:
        return "h11"  # which has a bound of its own
    return BoundedProtocol


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which would stop accepting before the answers have been drained; and
    without its ten looks a second at `should_exit`, each of which takes a core from an engine that uses them all."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._exits = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def exit(self) -> None:
        self.should_exit = True
        self._exits.set()

    async def main_loop(self) -> None:
        # A tick whose number is a multiple of ten writes the Date header anew.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._exits.wait()


async def _run(daemon: Daemon, listener: socket.socket, address: Address) -> None:
    config = uvicorn.Config(
        daemon.app,
        http=_protocol(),
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
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, told.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="server")
    log.info("mgr %s listens on %s", mgr_version(), _bound(listener, address))
    warming = asyncio.create_task(daemon.warm_up(), name="warm-up")
    waiting = asyncio.create_task(told.wait(), name="signal")
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    warming.cancel()
    log.info("stopping")
    try:
        # First the work, so that open streams get their last event; the listener answers 503 meanwhile.
        await _close(daemon)
    finally:
        if address.socket is not None:
            address.socket.unlink(missing_ok=True)  # while we listen: afterwards it may be another daemon's
        server.exit()
        await asyncio.wait({warming})
        await serving


async def _close(daemon: Daemon) -> None:
    """Ends all work. A second signal means: at once, do not wait for the answers that are running."""
    closing = asyncio.create_task(daemon.close(), name="close")
    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, closing.cancel)
    await asyncio.wait({closing})
    if closing.cancelled():
        log.info("stopping at once")
        await daemon.close(drain=False)
    else:
        closing.result()


def _bound(listener: socket.socket, address: Address) -> Address:
    """The address with the port that the system chose, if it was asked to."""
    return address if address.socket else replace(address, port=listener.getsockname()[1])


def bind(address: Address) -> socket.socket:
    """A listening socket. Raises CannotListen, which names who holds a busy port as far as that can be seen."""
    return _bind_tcp(address) if address.socket is None else _bind_unix(address.socket)


def _bind_tcp(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host or "0.0.0.0", address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise CannotListen(f"the address {address} is not known; set MGR_HOST") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            holder = _holder(str(where[0]), address.port)
            raise CannotListen(
                f"{address} is in use by {holder}; stop it, or set MGR_HOST to another address"
            ) from None
        raise CannotListen(f"cannot listen on {address}: {error.strerror}; set MGR_HOST") from None
    listener.setblocking(False)
    return listener


def _holder(ip: str, port: int) -> str:
    """Who listens on the port, at an address that gets in the way of `ip`."""
    everywhere = {"0.0.0.0", "::"}
    try:
        for connection in psutil.net_connections("tcp"):
            held = connection.laddr
            if not (held and connection.pid and connection.status == psutil.CONN_LISTEN):
                continue
            if held.port == port and (held.ip == ip or everywhere & {ip, held.ip}):
                name = psutil.Process(connection.pid).name()
                return f"{printable(name)} (process {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return "another program"


def _bind_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)  # the socket file is for this user alone from its first moment
    try:
        if _is_stale(path):
            path.unlink()
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = _why_not(path) if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise CannotListen(f"cannot listen on {path}: {reason}; set MGR_HOST") from None
    finally:
        os.umask(umask)
    listener.setblocking(False)
    return listener


def _is_stale(path: Path) -> bool:
    """Whether it is a socket that nobody listens on any more; a busy listener refuses in other ways."""
    if not _is_socket(path):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _why_not(path: Path) -> str:
    return "another program listens there" if _is_socket(path) else "there is a file of that name"


class _Text(logging.Formatter):
    """A line for each record, those that belong to it indented: no text of a stranger looks like another record."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(printable(line) for line in super().format(record).splitlines())


class _JsonLines(logging.Formatter):
    """One JSON object a line, in ASCII; times are in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _set_up_logging(settings: Settings) -> None:
    handler = logging.StreamHandler()
    text = _Text("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else text)
    level = getattr(logging, settings.log_level.upper())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("mgr").setLevel(level)
