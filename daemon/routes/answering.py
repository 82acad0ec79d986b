"""From a request for tokens to its answer: the model found, prepared, leased and asked.

A lease is held until the answer has ended, however it ends.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from daemon.chat import ChatRequest, Done, Piece, Sink, TokenRequest
from daemon.errors import EngineFailed, EngineGone, ModelNotFound, PromptTooLong
from daemon.middleware.dialect import Dialect
from daemon.routes import context, truncation
from daemon.routes.prepare import prepare, weights
from daemon.routes.services import Services
from daemon.runner.runner import Runner
from daemon.shaping.shape import Abilities, Shaped, shape
from daemon.store.models import Model

# Clients of Anthropic's API ask for models of these names, whatever there is.
_ANTHROPIC_NAMES = "claude-"


async def find(services: Services, name: str) -> Model:
    """The stored model that a request names. Raises ModelNotFound, BadModel, StorageFailed."""
    resolve = services.store.resolve
    # A thread takes a third of the time that mgr adds to the first token of a loaded model.
    if (model := services.store.just_resolved(name)) is not None:
        return model
    try:
        return await asyncio.to_thread(resolve, name)
    except ModelNotFound as error:
        if not name.startswith(_ANTHROPIC_NAMES):
            raise
        if not services.default_model:
            error.message += "; set MGR_DEFAULT_MODEL to the model that names like this one stand for"
            raise
    return await asyncio.to_thread(resolve, services.default_model)


async def answer(services: Services, dialect: Dialect, request: TokenRequest, sink: Sink) -> Done:
    """Gives the answer's pieces to `sink` and returns its end.

    An engine that died before it answered at all costs only time: another is asked, once.
    """
    started = time.monotonic()
    model = await find(services, request.model)
    prepared = prepare(request, model, dialect.defaults, strict=dialect.strict_thinking)
    try:
        return await _leased(services, model, prepared, sink, started)
    except EngineGone:
        return await _leased(services, model, prepared, sink, started)


async def _leased(
    services: Services, model: Model, request: TokenRequest, sink: Sink, started: float
) -> Done:
    async with services.lease(weights(model), request.load, request.keep_alive, request) as lease:
        done = await answered(lease.runner, model, request, sink)
        # These times only this side of the engine knows.
        total = time.monotonic() - started
        return replace(done, timings=replace(done.timings, total=total, load=lease.waited))


async def answered(runner: Runner, model: Model, request: TokenRequest, sink: Sink) -> Done:
    """The answer of a leased engine. A conversation with a context, or that wants one, is a text of tokens, too."""
    if not isinstance(request, ChatRequest) or not (request.context or request.wants_context):
        return await _fitting(runner, model, request, sink)
    prompt = await context.prompt_tokens(runner, request) if request.context else None
    heard = context.Heard(sink)
    asked = request if prompt is None else context.continuation(request, prompt)
    done = await _fitting(runner, model, asked, heard)
    if not request.wants_context:
        return done
    try:
        before = await context.prompt_tokens(runner, request) if prompt is None else prompt
        return replace(done, context=(*before, *await runner.tokenize(heard.text, special=False)))
    except EngineFailed:
        return done  # the answer is whole, and must not be asked for again


async def _fitting(runner: Runner, model: Model, request: TokenRequest, sink: Sink) -> Done:
    """An engine says that a prompt is too long before it says anything else, so it can be asked again."""
    try:
        return await _shaped(runner, model, request, sink)
    except PromptTooLong as error:
        if not request.truncate:
            raise
        shorter = await _shortened(runner, request, error.available or runner.launch.window)
    return replace(await _shaped(runner, model, shorter, sink), truncated=True)


async def _shortened(runner: Runner, request: TokenRequest, window: int) -> TokenRequest:
    if isinstance(request, ChatRequest):
        return await truncation.fitted(request, window, runner.count)
    prompt = request.prompt
    tokens = await runner.tokenize(prompt) if isinstance(prompt, str) else prompt
    return replace(request, prompt=truncation.cut(tokens, window, request.sampling.num_keep or 0))


async def _shaped(runner: Runner, model: Model, request: TokenRequest, sink: Sink) -> Done:
    return await _read(runner, shape(request, abilities(model)), sink)


async def _read(runner: Runner, shaped: Shaped, sink: Sink) -> Done:
    reader = shaped.reader
    if reader is None:
        return await runner.answer(shaped.request, sink)
    feed = reader.feed

    def take(pieces: Sequence[Piece]) -> Awaitable[None] | None:
        shown = [made for piece in pieces for made in feed(piece)]
        return sink(shown) if shown else None

    rest, done = reader.end(await runner.answer(shaped.request, take))
    if rest and (waiting := sink(rest)) is not None:
        await waiting
    return done


def abilities(model: Model) -> Abilities:
    return Abilities(thinking="thinking" in model.capabilities, tools="tools" in model.capabilities)
