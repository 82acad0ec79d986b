"""The models in the store: list, show, copy, pull, delete."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Router

from daemon.middleware import anthropic, ollama, openai
from daemon.middleware.dialect import read_object
from daemon.middleware.fields import Fields
from daemon.names import ModelName
from daemon.pull.puller import PullProgress
from daemon.routes.create_body import model_name
from daemon.routes.endpoint import answering
from daemon.routes.progress import ProgressResponse, Step
from daemon.routes.services import Services, read_body
from daemon.store.gguf import read_arrays
from daemon.store.modelfile import modelfile, parameter_lines
from daemon.store.models import Model


def router(services: Services) -> Router:
    routes = Router()
    for path, dialect, methods, work in (
        ("/api/tags", ollama.CHAT, ["GET", "HEAD"], _tags),
        ("/api/show", ollama.CHAT, ["POST"], _show),
        ("/api/delete", ollama.CHAT, ["DELETE"], _delete),
        ("/api/copy", ollama.CHAT, ["POST"], _copy),
        ("/api/pull", ollama.CHAT, ["POST"], _pull),
        ("/v1/models", openai.CHAT, ["GET"], _openai_list),
        ("/v1/models/{model:path}", openai.CHAT, ["GET"], _openai_one),
    ):
        routes.add_route(path, answering(services, dialect, work), methods=methods)
    return routes


# ---- Ollama's


async def _tags(services: Services, request: Request) -> Response:
    models = await asyncio.to_thread(services.store.list)
    return JSONResponse({"models": [_listed(model) for model in models]})


async def _show(services: Services, request: Request) -> Response:
    """`system` and `options` of the request are shown as if they were the model's."""
    fields = Fields(read_object(await read_body(request)))
    name = model_name(fields)
    model = await asyncio.to_thread(services.store.resolve, name)
    changed = replace(
        model,
        system=fields.string("system") or model.system,
        params={**model.params, **fields.object("options").data},
    )
    arrays = None
    if fields.boolean("verbose"):
        arrays = await asyncio.to_thread(read_arrays, model.path)
    shown = _shown(changed, arrays)
    if request.headers.get("user-agent", "").startswith("GitHubCopilotChat/"):
        shown["model_info"]["general.basename"] = name  # which it shows and asks for
    return JSONResponse({key: value for key, value in shown.items() if value is not None})


def _shown(model: Model, arrays: Mapping[str, list[Any]] | None) -> dict[str, Any]:
    summary = model.summary
    return {
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
        "details": {**details(model), "parent_model": model.parent},
        "model_info": summary.model_info(arrays),
        "projector_info": next((head.model_info() for head in model.projector_heads), None),
        "tensors": [{"name": t.name, "type": t.type, "shape": [*t.shape]} for t in summary.tensors],
        "capabilities": [*model.capabilities],
        "modified_at": _timestamp(model.modified_at),
        "requires": model.config.get("requires"),
    }


async def _delete(services: Services, request: Request) -> Response:
    """An engine that still answers with the model keeps its file open until it has ended."""
    fields = Fields(read_object(await read_body(request)))
    model = await asyncio.to_thread(services.store.resolve, model_name(fields))
    await asyncio.to_thread(services.store.remove, str(model.name))
    services.scheduler.unload(model.load_key)
    return Response(status_code=200)


async def _copy(services: Services, request: Request) -> Response:
    fields = Fields(read_object(await read_body(request)))
    destination = ModelName.parse(fields.required("destination"))
    await asyncio.to_thread(services.store.copy, fields.required("source"), destination)
    return Response(status_code=200)


async def _pull(services: Services, request: Request) -> Response:
    """Ollama's fields, and in addition `as`, the name to store it under, and `replace`."""
    fields = Fields(read_object(await read_body(request)))
    name = fields.string("as")
    progress = services.puller.pull(
        model_name(fields),
        ModelName.parse(name) if name else None,
        replace=fields.boolean("replace") or False,
        local_files=_is_local(request),
    )
    return ProgressResponse(_steps(progress), stream=fields.boolean("stream") is not False)


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


async def _steps(progress: AsyncGenerator[PullProgress, None]) -> AsyncGenerator[Step, None]:
    async with aclosing(progress) as lines:
        async for line in lines:
            yield _step(line)


def _step(progress: PullProgress) -> Step:
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
    if _speaks_anthropic(request):
        return JSONResponse(anthropic.models_list([(str(model.name), model.modified_at) for model in models]))
    return JSONResponse(
        {"object": "list", "data": [_openai_entry(model, str(model.name)) for model in models]}
    )


async def _openai_one(services: Services, request: Request) -> Response:
    text = str(request.path_params["model"])
    model = await asyncio.to_thread(services.store.resolve, text)
    if _speaks_anthropic(request):
        return JSONResponse(anthropic.model_one((text, model.modified_at)))
    return JSONResponse(_openai_entry(model, text))


def _speaks_anthropic(request: Request) -> bool:
    """Both APIs have these paths; Anthropic's clients say which version of theirs they speak."""
    return "anthropic-version" in request.headers


def _openai_entry(model: Model, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(model.modified_at.timestamp()),
        "owned_by": model.name.namespace,
        "context_length": model.summary.context_length,
    }
