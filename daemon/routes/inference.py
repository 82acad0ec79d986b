"""The one pipeline of every request to a model, given its dialect: parse, lease, ask, answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from daemon.chat import (
    CompletionRequest,
    Done,
    LoadRequest,
    Message,
    Sampling,
    Sink,
    Text,
    TokenRequest,
)
from daemon.errors import EngineGone, InvalidRequest, MgrError, NotSupported
from daemon.middleware import anthropic, ollama, openai
from daemon.middleware.access import to_response
from daemon.middleware.dialect import Dialect, Reply
from daemon.routes.services import Services, read_body
from daemon.routes.streaming import ModelResponse, known, until_client_leaves
from daemon.scheduler.queue import Weights
from daemon.store.models import Model

ROUTES: Mapping[str, Dialect] = {
    "/api/chat": ollama.CHAT,
    "/api/generate": ollama.GENERATE,
    "/v1/chat/completions": openai.CHAT,
    "/v1/messages": anthropic.MESSAGES,
}


# Known to clients of these APIs, and not built yet.
_LATER: Mapping[str, Sequence[str]] = {
    "/api/embed": ["POST"],
    "/api/embeddings": ["POST"],
    "/api/create": ["POST"],
    "/api/copy": ["POST"],
    "/api/push": ["POST"],
    "/api/blobs/{digest}": ["HEAD", "POST"],
    "/v1/completions": ["POST"],
    "/v1/embeddings": ["POST"],
    "/v1/responses": ["POST"],
    "/v1/messages/count_tokens": ["POST"],
    "/v1/audio/transcriptions": ["POST"],
}


def router(services: Services) -> APIRouter:
    routes = APIRouter()
    for path, methods in _LATER.items():
        routes.add_api_route(path, _not_built(path), methods=[*methods])
    for path, dialect in ROUTES.items():
        routes.add_api_route(path, _endpoint(services, dialect), methods=["POST"])
    return routes


def _not_built(path: str) -> Callable[[Request], Awaitable[Response]]:
    dialect = dialect_of(path)
    reply = dialect.error(NotSupported(f"{path} is not supported yet"))

    async def endpoint(request: Request) -> Response:
        return to_response(reply)

    return endpoint


def dialect_of(path: str) -> Dialect:
    """The dialect whose errors a client of this path understands."""
    if path.startswith("/v1/messages"):
        return anthropic.MESSAGES
    return openai.CHAT if path.startswith("/v1/") else ollama.CHAT


def _endpoint(services: Services, dialect: Dialect) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            parsed = dialect.parse(await read_body(request))
        except MgrError as error:
            return to_response(dialect.error(error))
        if isinstance(parsed, LoadRequest):
            return _LoadResponse(services, dialect, parsed)
        if not isinstance(parsed, TokenRequest):
            return to_response(dialect.error(NotSupported("this is not supported yet")))
        return ModelResponse(dialect, parsed, partial(_answer, services, dialect.defaults, parsed))

    return endpoint


async def _answer(services: Services, defaults: Sampling, request: TokenRequest, sink: Sink) -> Done:
    """Gives the answer's pieces to `sink` and returns its end. The lease is held until then, however it ends.

    An engine that died before it answered at all costs only time: another is asked, once.
    """
    started = time.monotonic()
    model = await asyncio.to_thread(services.store.resolve, request.model)
    prepared = prepare(request, model, defaults)
    try:
        return await _leased(services, model, prepared, sink, started)
    except EngineGone:
        return await _leased(services, model, prepared, sink, started)


async def _leased(
    services: Services, model: Model, request: TokenRequest, sink: Sink, started: float
) -> Done:
    async with services.scheduler.lease(weights(model), request.load, request.keep_alive) as lease:
        done = await lease.runner.answer(request, sink)
        # These times only this side of the engine knows.
        total = time.monotonic() - started
        return replace(done, timings=replace(done.timings, total=total, load=lease.waited))


def prepare(request: TokenRequest, model: Model, defaults: Sampling) -> TokenRequest:
    """The request with what the model brings along: its parameters, its system prompt, its example messages.

    What the request says wins over the model, and the model over `defaults`, the ones of the API.
    Raises InvalidRequest for a model that cannot do what is asked.
    """
    if "completion" not in model.capabilities:
        raise InvalidRequest(f'"{request.model}" does not support chat; it is an embedding model')
    sampling, load = ollama.read_options(model.params)
    request = replace(
        request, sampling=request.sampling.over(sampling).over(defaults), load=request.load.over(load)
    )
    if isinstance(request, CompletionRequest):
        return request
    own = [ollama.read_message(message) for message in model.messages]
    if model.system and not (request.messages and request.messages[0].role == "system"):
        own.insert(0, Message("system", (Text(model.system),)))
    return replace(request, messages=(*own, *request.messages))


def weights(model: Model) -> Weights:
    return Weights(
        key=str(model.model_digest),
        path=model.path,
        name=str(model.name),
        trained_window=model.summary.context_length or 0,
        size=model.size,
    )


class _LoadResponse(Response):
    """Loads a model and nothing else, or unloads it; a client that leaves ends the wait."""

    def __init__(self, services: Services, dialect: Dialect, request: LoadRequest) -> None:
        self.status_code = 200
        self.background = None
        self._services = services
        self._dialect = dialect
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer() -> None:
            await to_response(await self._reply())(scope, receive, send)

        await until_client_leaves(answer, receive)

    async def _reply(self) -> Reply:
        request, scheduler = self._request, self._services.scheduler
        try:
            model = await asyncio.to_thread(self._services.store.resolve, request.model)
            if request.keep_alive == 0:
                scheduler.unload(str(model.model_digest))
            else:
                _, load = ollama.read_options(model.params)
                async with scheduler.lease(weights(model), request.load.over(load), request.keep_alive):
                    pass
            return self._dialect.loaded(request, time.time())
        except Exception as error:
            return self._dialect.error(known(error))
