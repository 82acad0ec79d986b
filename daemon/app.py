"""Composes everything: the services from the settings, and the ASGI application from the services."""

import logging
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from daemon.errors import InvalidRequest, MgrError, Misconfigured, NotFound
from daemon.middleware import anthropic, ollama, openai
from daemon.middleware.access import Access, Policy, read_keys
from daemon.middleware.dialect import Reply
from daemon.pull.puller import Puller
from daemon.routes import inference, models, status
from daemon.routes.services import Services
from daemon.runner.endpoint import RunDirectory
from daemon.runner.engine import EngineFinder
from daemon.runner.launch import Launch
from daemon.runner.runner import OnExit, Runner
from daemon.scheduler.placement import AUTO_LOADED, Defaults
from daemon.scheduler.queue import Limits
from daemon.scheduler.scheduler import Scheduler
from daemon.settings import Address, Settings
from daemon.store.models import Store

log = logging.getLogger("mgr.app")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SUBMODULE_BUILD = Path(__file__).parents[1] / "native/llama.cpp/build/bin/llama-server"


def mgr_version() -> str:
    try:
        return version("mgr")
    except PackageNotFoundError:
        return "0"


@dataclass(frozen=True, slots=True)
class Daemon:
    """Everything that runs, and `app`, which answers requests with it."""

    app: ASGIApp
    services: Services
    run_directory: RunDirectory
    drain_timeout: float

    async def close(self) -> None:
        """Ends all work: pulls, then requests and engines. New requests are refused meanwhile."""
        await self.services.puller.close()
        await self.services.scheduler.close(self.drain_timeout)

    def release(self) -> None:
        self.services.store.close()
        self.run_directory.close()


def build(settings: Settings, search_path: str) -> Daemon:
    """The daemon for these settings. `search_path` is where `llama-server` is looked for.

    Raises Misconfigured, and StoreLocked when another daemon has the store.
    """
    policy = access_policy(settings)
    run_directory = RunDirectory.open(settings.run_dir)
    try:
        store = Store(settings.models).open(lock=True)
    except MgrError:
        run_directory.close()
        raise
    finder = EngineFinder(settings.engine, [_SUBMODULE_BUILD], search_path)

    def make_runner(launch: Launch, on_exit: OnExit) -> Runner:
        return Runner(launch, finder, run_directory, settings.load_timeout, on_exit)

    limits = Limits(settings.max_loaded_models or AUTO_LOADED, settings.max_queue, settings.max_waiting)
    defaults = Defaults(settings.context_length, settings.num_parallel, settings.keep_alive)
    scheduler = Scheduler(make_runner, limits, defaults, settings.wait_timeout)
    puller = Puller(store, settings.hub_endpoint, settings.shortnames)
    services = Services(store, scheduler, puller, identity())
    return Daemon(application(services, policy), services, run_directory, settings.drain_timeout)


def identity() -> dict[str, Any]:
    """Which process this is: pid, its start time in seconds since 1970, and the boot it belongs to."""
    process = psutil.Process()
    boot_id = _BOOT_ID.read_text("ascii").strip() if _BOOT_ID.exists() else ""
    return {
        "version": mgr_version(),
        "pid": process.pid,
        "started": process.create_time(),
        "boot_id": boot_id,
    }


def access_policy(settings: Settings) -> Policy:
    """Who may call. Raises Misconfigured for an address beyond this machine without a key, whatever set it."""
    keys: tuple[bytes, ...] = ()
    if settings.api_keys_file is not None:
        try:
            keys = read_keys(settings.api_keys_file.read_text("utf-8").splitlines())
        except (OSError, UnicodeDecodeError):
            raise Misconfigured(f"the file of API keys {settings.api_keys_file} cannot be read") from None
        if not keys:
            raise Misconfigured(f"the file of API keys {settings.api_keys_file} has no key in it")
    address: Address = settings.host
    if not address.is_loopback and not keys:
        raise Misconfigured(
            f"{address} can be reached from other machines and no API key is set; put keys into a file, one a "
            "line, and name it in MGR_API_KEYS_FILE, or listen on 127.0.0.1"
        )
    return Policy(
        hosts=frozenset(name.lower() for name in (*settings.hosts, address.host) if name),
        any_ip=not address.is_loopback,
        any_host=address.socket is not None,
        origins=frozenset(origin.lower() for origin in settings.origins),
        key_digests=keys,
    )


def application(services: Services, policy: Policy) -> ASGIApp:
    app = FastAPI(title="mgr", version=mgr_version(), docs_url=None, redoc_url=None)
    for routes in (status.router(services), models.router(services), inference.router(services)):
        app.include_router(routes)
    app.add_exception_handler(HTTPException, _refused)
    return Access(app, policy, error_reply)


def error_reply(path: str, error: MgrError) -> Reply:
    """The error in the dialect that is spoken on this path."""
    if path.startswith("/v1/messages"):
        return anthropic.MESSAGES.error(error)
    if path.startswith("/v1/"):
        return openai.CHAT.error(error)
    return ollama.CHAT.error(error)


async def _refused(request: Request, error: Exception) -> Response:
    """What the router itself refuses: no such path, or another method."""
    status_code = error.status_code if isinstance(error, HTTPException) else 500
    path = request.scope["path"]
    if status_code == 404:
        reason: MgrError = NotFound("404 page not found")
    else:
        reason = InvalidRequest(f"{status_code} method not allowed")
    reply = error_reply(path, reason)
    return Response(reply.body, status_code, media_type=reply.media_type)
