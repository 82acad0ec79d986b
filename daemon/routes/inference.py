"""The one pipeline of every request to a model, given its dialect: parse, lease, ask, answer."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from daemon import chat
from daemon.chat import CountRequest, EmbedRequest, LoadRequest, RerankRequest
from daemon.errors import MgrError, NotSupported
from daemon.middleware import anthropic, ollama, openai, openai_completions, openai_embeddings
from daemon.middleware.access import to_response
from daemon.middleware.dialect import Dialect, Reply
from daemon.middleware.responses import ResponsesDialect
from daemon.middleware.responses_history import History
from daemon.routes import answering, embedding
from daemon.routes.prepare import purpose_of, weights
from daemon.routes.services import Services, read_body
from daemon.routes.streaming import ModelResponse, ReplyResponse

ROUTES: Mapping[str, Dialect] = {
    "/api/chat": ollama.CHAT,
    "/api/generate": ollama.GENERATE,
    "/api/embed": ollama.EMBED,
    "/api/embeddings": ollama.EMBEDDINGS,
    "/v1/chat/completions": openai.CHAT,
    "/v1/completions": openai_completions.COMPLETIONS,
    "/v1/embeddings": openai_embeddings.EMBEDDINGS,
    "/v1/rerank": openai_embeddings.RERANK,
    "/v1/messages": anthropic.MESSAGES,
    "/v1/messages/count_tokens": anthropic.COUNT_TOKENS,
}
RESPONSES = "/v1/responses"

# Known to clients of these APIs, and not built.
_LATER: Mapping[str, Sequence[str]] = {"/v1/audio/transcriptions": ["POST"]}


def router(services: Services) -> Router:
    routes = Router()
    responses = ResponsesDialect(History())
    for path, dialect in {**ROUTES, RESPONSES: responses}.items():
        routes.add_route(path, _endpoint(services, dialect), methods=["POST"])
    routes.add_route(f"{RESPONSES}/{{response_id}}", _stored(responses.retrieve), methods=["GET"])
    routes.add_route(f"{RESPONSES}/{{response_id}}", _stored(responses.delete), methods=["DELETE"])
    for path, methods in _LATER.items():
        routes.add_route(path, _not_built(path), methods=[*methods])
    return routes


def _not_built(path: str) -> Callable[[Request], Awaitable[Response]]:
    """501 also where a dialect says 400 for what it has not: its clients would repeat that, but for the header."""
    reply = dialect_of(path).error(NotSupported(f"{path} is not supported yet"))
    reply = replace(reply, status=501, headers={"x-should-retry": "false"})

    async def endpoint(request: Request) -> Response:
        return to_response(reply)

    return endpoint


def _stored(work: Callable[[str], Reply]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return to_response(work(str(request.path_params["response_id"])))

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
        return _response(services.asked_by(request.scope), dialect, parsed)

    return endpoint


def _response(services: Services, dialect: Dialect, request: chat.Request) -> Response:
    created = time.time()  # for display
    match request:
        case EmbedRequest():
            return ReplyResponse(dialect, partial(embedding.embed, services, dialect, request, created))
        case RerankRequest():
            return ReplyResponse(dialect, partial(embedding.rerank, services, dialect, request, created))
        case CountRequest():
            return ReplyResponse(dialect, partial(embedding.count, services, dialect, request))
        case LoadRequest():
            return ReplyResponse(dialect, partial(_load, services, dialect, request, created))
        case _:
            return ModelResponse(dialect, request, partial(answering.answer, services, dialect))


async def _load(services: Services, dialect: Dialect, request: LoadRequest, created: float) -> Reply:
    """Loads a model and nothing else, or unloads it."""
    model = await answering.find(services, request.model)
    target = weights(model, purpose_of(request, model))
    if request.keep_alive == 0:
        services.scheduler.unload(target.model, services.drain)
    else:
        _, load = ollama.read_options(model.params)
        async with services.lease(target, request.load.over(load), request.keep_alive):
            pass
    return dialect.loaded(request, created)
