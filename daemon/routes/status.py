"""Is somebody there, who is it, and what is loaded?"""

import asyncio
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Router

from daemon.description.document import document
from daemon.framing import to_json
from daemon.routes.models import details
from daemon.routes.services import Services
from daemon.scheduler.state import Phase
from daemon.scheduler.view import LineView, LoadedView
from daemon.store.models import Model

# Some clients of Ollama compare versions and ask for features from 0.12 on.
API_VERSION = "0.12.11"

_FOR_EVER = timedelta(days=292 * 365)  # what Ollama's clients show as "Forever"


def router(services: Services) -> Router:
    routes = Router()

    async def root(request: Request) -> Response:
        return PlainTextResponse("Ollama is running")

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        troubles = services.scheduler.troubles()
        if not troubles:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "error": "; ".join(troubles)}, 503, {"Retry-After": "5"})

    async def version(request: Request) -> Response:
        # Asked anew each time: counted from 1970 it changes when the clock is set, for the one who compares it too.
        started = psutil.Process().create_time()
        mgr = {**services.identity, "started": started, "engine": services.engine.details()}
        return JSONResponse({"version": API_VERSION, "mgr": mgr})

    async def loaded(request: Request) -> Response:
        models = {model.load_key: model for model in await asyncio.to_thread(services.store.list)}
        seen = services.scheduler.snapshot()
        now = datetime.now(UTC)
        entries = [_entry(view, models.get(view.weights.model), now) for view in seen.loaded]
        entries.sort(key=lambda entry: str(entry["expires_at"]), reverse=True)
        return JSONResponse({"models": entries, "waiting": [_line(line) for line in seen.lines]})

    async def openapi(request: Request) -> Response:
        described = document(str(services.identity["version"]))
        return Response(to_json(described), media_type="application/json")

    routes.add_route("/openapi.json", openapi, methods=["GET"])
    routes.add_route("/", root, methods=["GET", "HEAD"])
    routes.add_route("/health/live", live, methods=["GET", "HEAD"])
    routes.add_route("/health/ready", ready, methods=["GET", "HEAD"])
    routes.add_route("/api/version", version, methods=["GET", "HEAD"])
    routes.add_route("/api/ps", loaded, methods=["GET", "HEAD"])
    return routes


def _entry(view: LoadedView, model: Model | None, now: datetime) -> dict[str, Any]:
    """One line of /api/ps in Ollama's shape, and in addition state, engine, slots and requests in work."""
    left = view.keep_alive if view.expires_in is None else view.expires_in
    until = now + (timedelta(seconds=left) if math.isfinite(left) and left < 1e9 else _FOR_EVER)
    if view.phase is Phase.STOPPING:
        until = now
    return {
        "name": view.weights.name,
        "model": view.weights.name,
        "size": view.weights.size,
        "digest": model.digest if model else "",
        "details": details(model) if model else {},
        "expires_at": until.isoformat().replace("+00:00", "Z"),
        "size_vram": round(view.weights.size * view.share),
        "context_length": view.window,
        "state": view.phase,
        "engine": view.engine,
        "slots": view.slots,
        "in_use": view.leases,
        "pid": view.pid,
        "devices": [*view.offload.devices] if view.offload else [],
    } | ({"stage": view.stage} if view.stage is not None else {})


def _line(line: LineView) -> dict[str, Any]:
    """Who waits: for which model, why, how many, and in seconds how long the first has, and the last will have."""
    return {
        "model": line.name,
        "reason": line.reason,
        "requests": line.requests,
        "longest_wait": round(line.longest, 3),
        "expected_wait": None if line.expected is None else round(line.expected, 3),
    }
