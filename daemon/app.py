"""Composes everything: the services from the settings, and the ASGI application from the services."""

import asyncio
import importlib
import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from daemon.engines.places import finder
from daemon.engines.versions import Engines
from daemon.engines.watch import EngineWatch
from daemon.errors import InvalidRequest, MgrError, Misconfigured, NotFound
from daemon.middleware.access import Access, Policy, read_keys
from daemon.middleware.dialect import Reply
from daemon.pull.puller import Puller
from daemon.routes import cloud, create, inference, metrics, models, status
from daemon.routes.services import Services
from daemon.runner.endpoint import RunDirectory
from daemon.runner.engine import CHOICES, EngineFinder
from daemon.runner.launch import Launch
from daemon.runner.runner import OnExit, Runner
from daemon.scheduler.learned import Learned
from daemon.scheduler.ledger import Ledger
from daemon.scheduler.machine import Machine
from daemon.scheduler.placement import Defaults
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.state import Limits
from daemon.settings import Settings
from daemon.store.models import Store

# Every route that there is comes from one of these. Routes are tried in turn, so the busiest come first.
ROUTERS = (inference.router, status.router, models.router, create.router, metrics.router, cloud.router)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def mgr_version() -> str:
    try:
        return version("mgr")
    except PackageNotFoundError:
        return "0"


@dataclass(frozen=True, slots=True)
class Daemon:
    """Everything that runs, and `app`, which answers requests with it. `resources` is what outlives the work."""

    app: ASGIApp
    services: Services
    drain_timeout: float
    resources: ExitStack

    async def close(self, *, drain: bool = True) -> None:
        """Ends all work: pulls, requests and engines. New requests for a model are refused from the start.

        A call that was cancelled can be made again; without `drain` it does not wait for answers that are running.
        """
        await asyncio.gather(
            self.services.scheduler.close(self.drain_timeout if drain else 0), self.services.puller.close()
        )

    async def warm_up(self) -> None:
        """Does now what the first load would wait for; can be cancelled at any moment."""
        await self.services.engine.look()
        await asyncio.to_thread(importlib.import_module, "daemon.shaping.forced")

    def release(self) -> None:
        self.resources.close()


def build(settings: Settings, search_path: str) -> Daemon:
    """The daemon for these settings. `search_path` is where `llama-server` is looked for.

    Raises Misconfigured, and StoreLocked when another daemon has the store; nothing is left then.
    """
    policy = access_policy(settings)
    _check_engine(settings.engine)
    with ExitStack() as resources:
        run_directory = RunDirectory.open(settings.run_dir)
        resources.callback(run_directory.close)
        store = Store(settings.models)
        resources.callback(store.close)
        store.open(lock=True)
        engines = finder(settings.engine, Engines(settings.engines), run_directory.path, search_path)
        services = Services(
            store,
            _scheduler(settings, run_directory, engines),
            Puller(store, settings.hub_endpoint, settings.shortnames),
            EngineWatch(engines),
            identity(),
            settings.default_model,
            settings.drain_timeout,
        )
        app = application(services, policy)
        return Daemon(app, services, settings.drain_timeout, resources.pop_all())


def _scheduler(settings: Settings, run_directory: RunDirectory, engines: EngineFinder) -> Scheduler:
    def make_runner(launch: Launch, on_exit: OnExit) -> Runner:
        stall, hang = settings.load_timeout, settings.hang_timeout
        return Runner(launch, engines, run_directory, stall, on_exit, hang)

    limits = Limits(
        settings.max_queue, settings.max_waiting, settings.patience, recycle=settings.recycle_after
    )
    defaults = Defaults(settings.context_length, settings.num_parallel, settings.keep_alive)
    learned = Learned(settings.models / "mgr")
    ledger = Ledger(Machine(engines.environment), learned, defaults, settings.max_loaded_models, engines)
    return Scheduler(make_runner, limits, ledger, settings.wait_timeout)


def identity() -> dict[str, Any]:
    """Which program this is, which process, and in which boot of the machine."""
    boot_id = _BOOT_ID.read_text("ascii").strip() if _BOOT_ID.exists() else ""
    return {"version": mgr_version(), "pid": os.getpid(), "boot_id": boot_id}


def _check_engine(choice: str) -> None:
    """Raises Misconfigured for a path where no file is: no model could ever be loaded."""
    if choice not in CHOICES and not Path(choice).expanduser().is_file():
        raise Misconfigured(f"MGR_ENGINE is {choice!r}: no file is there; use {', '.join(CHOICES)} or a path")


def access_policy(settings: Settings) -> Policy:
    """Who may call. Raises Misconfigured for an address beyond this machine without a key, whatever set it."""
    keys = {} if settings.api_keys_file is None else _read_keys(settings.api_keys_file)
    address = settings.host
    if not address.is_loopback and not _is_known(address.host):
        raise Misconfigured(f"MGR_HOST names {address.host!r}, which is no address and no known name")
    if not address.is_loopback and not keys:
        raise Misconfigured(
            f"{address} can be reached from other machines and no API key is set; put keys into a file, one a "
            "line, and name it in MGR_API_KEYS_FILE, or set MGR_HOST, which goes before OLLAMA_HOST, to 127.0.0.1"
        )
    own = () if address.is_loopback else (address.host, socket.gethostname().lower())
    return Policy(
        hosts=frozenset(name for name in (*settings.hosts, *own) if name),
        any_ip=not address.is_loopback,
        any_host=address.socket is not None,
        origins=settings.origins,
        keys=keys,
    )


def _is_known(host: str) -> bool:
    try:
        return not host or bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def _read_keys(path: Path) -> dict[bytes, bool]:
    try:
        keys = read_keys(path.read_text("utf-8"))
    except OSError as error:
        reason = str(error.strerror)
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except ValueError as error:
        reason = str(error)
    else:
        if keys:
            return keys
        reason = "it has no key in it"
    raise Misconfigured(f"MGR_API_KEYS_FILE is {path}, which cannot be used: {reason}")


def application(services: Services, policy: Policy) -> ASGIApp:
    routes = [route for router in ROUTERS for route in router(services).routes]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused, ClientDisconnect: _left})
    app.router.redirect_slashes = False
    return Access(app, policy, error_reply)


def error_reply(path: str, error: MgrError) -> Reply:
    """The error in the dialect that is spoken on this path."""
    return inference.dialect_of(path).error(error)


async def _left(request: Request, error: Exception) -> Response:
    """A client that went away while it sent its request is no failure; nobody reads this."""
    return Response(status_code=400)


async def _refused(request: Request, error: Exception) -> Response:
    """What the router itself refuses: no such path, or another method, with the header that tells the right ones."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 404:
        reason: MgrError = NotFound("404 page not found")
    else:
        reason = InvalidRequest(f"{error.status_code} method not allowed")
    reply = error_reply(request.scope["path"], reason)
    return Response(reply.body, error.status_code, error.headers, reply.media_type)
