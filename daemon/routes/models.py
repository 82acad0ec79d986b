"""The models in the store: list, show, pull, delete."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from ipaddress import ip_address
from typing import Any

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from daemon.framing import ndjson
from daemon.middleware import ollama, openai
from daemon.middleware.access import to_response
from daemon.middleware.dialect import Dialect, read_object
from daemon.middleware.fields import Fields
from daemon.names import ModelName
from daemon.pull.puller import PullProgress
from daemon.routes.services import Services, read_body
from daemon.routes.streaming import Body, known, until_client_leaves
from daemon.store.modelfile import modelfile, parameter_lines
from daemon.store.models import Model

_Endpoint = Callable[[Request], Awaitable[Response]]


def router(services: Services) -> APIRouter:
    routes = APIRouter()
    for path, dialect, methods, work in (
        ("/api/tags", ollama.CHAT, ["GET", "HEAD"], _tags),
        ("/api/show", ollama.CHAT, ["POST"], _show),
        ("/api/delete", ollama.CHAT, ["DELETE"], _delete),
        ("/api/pull", ollama.CHAT, ["POST"], _pull),
        ("/v1/models", openai.CHAT, ["GET"], _openai_list),
        ("/v1/models/{model:path}", openai.CHAT, ["GET"], _openai_one),
    ):
        routes.add_api_route(path, _answering(services, dialect, work), methods=methods)
    return routes


def _answering(
    services: Services, dialect: Dialect, work: Callable[[Services, Request], Awaitable[Response]]
) -> _Endpoint:
    """An endpoint whose errors are in the dialect's envelope."""

    async def endpoint(request: Request) -> Response:
        try:
            return await work(services, request)
        except ClientDisconnect:
            raise
        except Exception as error:
            return to_response(dialect.error(known(error)))

    return endpoint


# ---- Ollama's


async def _tags(services: Services, request: Request) -> Response:
    models = await asyncio.to_thread(services.store.list)
    return JSONResponse({"models": [_listed(model) for model in models]})


async def _show(services: Services, request: Request) -> Response:
    fields = Fields(read_object(await read_body(request)))
    model = await asyncio.to_thread(services.store.resolve, _name(fields))
    summary = model.summary
    shown = {
        "license": "\n".join(model.licenses) or None,
        "modelfile": modelfile(
            str(model.name),
            template=model.template,
            system=model.system,
            params=model.params,
            messages=model.messages,
            licenses=model.licenses,
        ),
        "parameters": parameter_lines(model.params) or None,
        "template": model.template or summary.chat_template,
        "system": model.system,
        "messages": [*model.messages] or None,
        "details": details(model),
        "model_info": summary.model_info(),
        "tensors": [{"name": t.name, "type": t.type, "shape": [*t.shape]} for t in summary.tensors],
        "capabilities": [*model.capabilities],
        "modified_at": _timestamp(model.modified_at),
    }
    return JSONResponse({key: value for key, value in shown.items() if value is not None})


async def _delete(services: Services, request: Request) -> Response:
    """An engine that still answers with the model keeps its file open until it has ended."""
    fields = Fields(read_object(await read_body(request)))
    model = await asyncio.to_thread(services.store.resolve, _name(fields))
    await asyncio.to_thread(services.store.remove, str(model.name))
    services.scheduler.unload(str(model.model_digest))
    return Response(status_code=200)


async def _pull(services: Services, request: Request) -> Response:
    """Ollama's fields, and in addition `as`, the name to store it under, and `replace`."""
    fields = Fields(read_object(await read_body(request)))
    name = fields.string("as")
    progress = services.puller.pull(
        _name(fields),
        ModelName.parse(name) if name else None,
        replace=fields.boolean("replace") or False,
        local_files=_is_local(request),
    )
    return _PullResponse(progress, stream=fields.boolean("stream") is not False)


def _name(fields: Fields) -> str:
    return fields.string("model") or fields.required("name")


_TELLS_ANOTHER_CALLER = ("origin", "forwarded", "x-forwarded-for", "x-real-ip", "via")


def _is_local(request: Request) -> bool:
    """Whether the caller is a program on this machine, which may name files of it.

    A web page is not, and neither is whoever stands behind a proxy on this machine.
    """
    if any(name in request.headers for name in _TELLS_ANOTHER_CALLER):
        return False
    server, client = request.scope.get("server"), request.client
    if server is not None and server[1] is None:
        return True  # the Unix socket
    try:
        return client is not None and ip_address(client.host).is_loopback
    except ValueError:
        return False


def details(model: Model) -> dict[str, Any]:
    config, summary = model.config, model.summary
    family = config.get("model_family") or summary.architecture
    return {
        "parent_model": "",
        "format": config.get("model_format") or "gguf",
        "family": family,
        "families": config.get("model_families") or [family],
        "parameter_size": config.get("model_type") or "",
        "quantization_level": config.get("file_type") or summary.file_type,
        "context_length": summary.context_length,
        "embedding_length": summary.embedding_length,
    }


def _listed(model: Model) -> dict[str, Any]:
    return {
        "name": str(model.name),
        "model": str(model.name),
        "modified_at": _timestamp(model.modified_at),
        "size": model.size,
        "digest": model.digest,
        "details": details(model),
        "capabilities": [*model.capabilities],
    }


def _timestamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


class _PullResponse(Response):
    """Progress as NDJSON, or only its last object; a client that leaves no longer waits for the download."""

    def __init__(self, progress: AsyncGenerator[PullProgress, None], *, stream: bool) -> None:
        self.status_code = 200
        self.background = None
        self._progress = progress
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(send, ollama.NDJSON)

        async def answer() -> None:
            last: dict[str, Any] = {}
            try:
                async with aclosing(self._progress) as steps:
                    async for step in steps:
                        last = _step(step)
                        if self._stream:
                            await body.write(ndjson(last))
            except Exception as error:
                if not body.started:
                    await to_response(ollama.CHAT.error(known(error)))(scope, receive, send)
                    return
                await body.write(ndjson({"error": known(error).message}))
            if self._stream:
                await body.end()
            else:
                await JSONResponse(last)(scope, receive, send)

        await until_client_leaves(answer, receive)


def _step(progress: PullProgress) -> dict[str, Any]:
    step = {
        "status": progress.status,
        "digest": progress.digest,
        "total": progress.total,
        "completed": progress.completed,
        "model": progress.model,
    }
    return {key: value for key, value in step.items() if value}


# ---- OpenAI's


async def _openai_list(services: Services, request: Request) -> Response:
    models = await asyncio.to_thread(services.store.list)
    return JSONResponse(
        {"object": "list", "data": [_openai_entry(model, str(model.name)) for model in models]}
    )


async def _openai_one(services: Services, request: Request) -> Response:
    text = str(request.path_params["model"])
    model = await asyncio.to_thread(services.store.resolve, text)
    return JSONResponse(_openai_entry(model, text))


def _openai_entry(model: Model, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(model.modified_at.timestamp()),
        "owned_by": model.name.namespace,
        "context_length": model.summary.context_length,
    }
