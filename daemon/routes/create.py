"""New models from what is here: the upload of their files, and /api/create."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from daemon.engines.quantize import quantize, tool_of
from daemon.errors import InvalidRequest
from daemon.middleware import ollama
from daemon.pull.threads import CHUNK, chunks_of, in_thread, pour
from daemon.routes.create_body import parse
from daemon.routes.endpoint import answering
from daemon.routes.progress import ProgressResponse, Step
from daemon.routes.services import Services, read_body
from daemon.store import recipe as recipes
from daemon.store.blobs import Digest, WrongDigest
from daemon.store.manifests import Layer
from daemon.store.models import Store
from daemon.store.recipe import Plan, Recipe, Text

# The order of a model's layers.
_KINDS = ("model", "projector", "adapter", "template", "prompt", "system", "params", "messages", "license")


def router(services: Services) -> Router:
    routes = Router()
    for path, method, work in (
        ("/api/create", "POST", _create),
        ("/api/blobs/{digest}", "HEAD", _has_blob),
        ("/api/blobs/{digest}", "POST", _upload),
    ):
        routes.add_route(path, answering(services, ollama.CHAT, work), methods=[method])
    return routes


# ---- blobs


async def _has_blob(services: Services, request: Request) -> Response:
    there = await asyncio.to_thread(services.store.blobs.has, _digest(request))
    return Response(status_code=200 if there else 404)


async def _upload(services: Services, request: Request) -> Response:
    """The body is hashed while it goes to the disk; of one that is not what it is called nothing is kept."""
    digest, blobs = _digest(request), services.store.blobs
    if await asyncio.to_thread(blobs.has, digest):
        return Response(status_code=200)
    length = request.headers.get("content-length", "")
    size = int(length) if length.isascii() and length.isdigit() else None
    try:
        await pour(_pieces(request), blobs, size, digest, lambda written: None)
    except WrongDigest as error:
        raise InvalidRequest(f'digest mismatch, expected "{error.expected}" got "{error.got}"') from None
    return Response(status_code=201)


def _digest(request: Request) -> Digest:
    """Ollama takes the form of the file's name, too."""
    return Digest.parse(str(request.path_params["digest"]).replace("sha256-", "sha256:", 1))


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """The body in pieces that are worth a write each."""
    piece = bytearray()
    async for chunk in request.stream():
        piece += chunk
        if len(piece) >= CHUNK:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


# ---- create


async def _create(services: Services, request: Request) -> Response:
    recipe, stream = parse(await read_body(request))
    return ProgressResponse(_steps(services, recipe), stream=stream)


async def _steps(services: Services, recipe: Recipe) -> AsyncGenerator[Step, None]:
    """Everything that can be wrong with a request is found before the first step."""
    store = services.store
    plan = await in_thread(recipes.plan, store, recipe)
    tool = tool_of(await services.engine.engine()) if plan.quantize else None
    held = ExitStack()
    made: list[Digest] = []
    try:
        for layer in plan.layers:
            await in_thread(held.enter_context, store.hold(layer.digest))
        for note in plan.notes:
            yield {"status": f"warning: {note}"}
        if tool is not None:
            yield {"status": f"quantizing {plan.summary.file_type} model to {plan.quantize}"}
            plan = await _quantized(store, plan, tool, held)
            made.append(plan.model)
        for layer in plan.layers:
            yield {"status": f"using existing layer {layer.digest}"}
        layers = [*plan.layers]
        for text in plan.texts:
            layer, is_new = await in_thread(_put, store, text, held)
            made += [layer.digest] * is_new
            layers.append(layer)
            yield {"status": f"{'creating new' if is_new else 'using existing'} layer {layer.digest}"}
        layers.sort(key=_place)
        yield {"status": "writing manifest"}
        await in_thread(store.define, recipe.name, layers, plan.final_config())
        made += recipe.files.values()  # an upload has served its purpose when it was quantized
    finally:
        held.close()
        # Nothing of this stays if no manifest came to name it.
        await in_thread(partial(_discard, store, made))
    yield {"status": "success"}


def _place(layer: Layer) -> int:
    return _KINDS.index(layer.kind) if layer.kind in _KINDS else len(_KINDS)


def _put(store: Store, text: Text, held: ExitStack) -> tuple[Layer, bool]:
    """The text as a layer that stays until `held` is closed, and whether it is new."""
    digest = Digest.of(text.data)
    held.enter_context(store.hold(digest))
    is_new = not store.blobs.has(digest, len(text.data))
    if is_new:
        store.blobs.put(text.data)
    return Layer(text.kind, digest, len(text.data)), is_new


def _discard(store: Store, digests: list[Digest]) -> None:
    for digest in digests:
        store.discard(digest)


async def _quantized(store: Store, plan: Plan, tool: Path, held: ExitStack) -> Plan:
    folder = await in_thread(TemporaryDirectory, dir=store.scratch, prefix="quantize-")
    try:
        target = Path(folder.name) / "model.gguf"
        await quantize(tool, store.blobs.path(plan.model), target, plan.quantize)
        with target.open("rb") as file:
            digest = await pour(
                chunks_of(file), store.blobs, target.stat().st_size, None, lambda written: None
            )
        await in_thread(held.enter_context, store.hold(digest))
        summary = await in_thread(store.summary, digest)
        return plan.with_model(digest, target.stat().st_size, summary)
    finally:
        await in_thread(folder.cleanup)
