"""Embeddings, rankings and counts of tokens: requests that have one whole answer."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from daemon.chat import ChatRequest, CountRequest, Embeddings, EmbedRequest, Ranking, RerankRequest, Timings
from daemon.errors import InvalidRequest, PromptTooLong
from daemon.middleware import ollama
from daemon.middleware.dialect import Dialect, Reply
from daemon.routes.answering import abilities, find
from daemon.routes.prepare import prepare, purpose_of, ranks, weights
from daemon.routes.services import Services
from daemon.runner.runner import Runner
from daemon.shaping.shape import shape


async def embed(services: Services, dialect: Dialect, request: EmbedRequest, created: float) -> Reply:
    """A vector of length 1 for each input. With `truncate` an input that is too long is cut at its end."""
    started = time.monotonic()
    model = await find(services, request.model)
    _, load = ollama.read_options(model.params)
    target = weights(model, purpose_of(request, model))
    async with services.lease(target, request.load.over(load), request.keep_alive, request) as lease:
        made = await _embedded(lease.runner, request)
        waited = lease.waited
    vectors = tuple(normal(vector, request.dimensions) for vector in made.vectors)
    timings = Timings(total=time.monotonic() - started, load=waited)
    return dialect.embedded(request, replace(made, vectors=vectors, timings=timings), created)


async def _embedded(runner: Runner, request: EmbedRequest) -> Embeddings:
    try:
        return await runner.embed(request.inputs)
    except PromptTooLong:
        if not request.truncate:
            raise
    # Two tokens are what an engine may put around a text.
    room = runner.launch.window - 2
    tokens = [await runner.tokenize(text) if isinstance(text, str) else text for text in request.inputs]
    cut = tuple(index for index, each in enumerate(tokens) if len(each) > room)
    inputs = [tokens[i][:room] if i in cut else text for i, text in enumerate(request.inputs)]
    return replace(await runner.embed(inputs), truncated=cut)


def normal(vector: Sequence[float], dimensions: int | None) -> tuple[float, ...]:
    """The first `dimensions` of a vector, with length 1. Raises InvalidRequest when it has not that many."""
    if dimensions is not None and dimensions > len(vector):
        raise InvalidRequest(f"dimensions is {dimensions}, and the model's vectors have only {len(vector)}")
    part = vector[:dimensions]
    length = math.hypot(*part)
    if not math.isfinite(length):
        raise InvalidRequest("the embedding contains NaN or Inf values")
    return tuple(value / length for value in part) if length else tuple(part)


async def rerank(services: Services, dialect: Dialect, request: RerankRequest, created: float) -> Reply:
    model = await find(services, request.model)
    if not ranks(model):
        raise InvalidRequest(
            f'"{request.model}" does not support reranking; use a model that was made for it'
        )
    _, load = ollama.read_options(model.params)
    target = weights(model, purpose_of(request, model))
    async with services.lease(target, request.load.over(load), request.keep_alive, request) as lease:
        ranking = await lease.runner.rerank(request.query, request.documents)
    best = sorted(ranking.scores, key=lambda score: -score[1])[: request.top]
    return dialect.ranked(request, Ranking(tuple(best), ranking.tokens), created)


async def count(services: Services, dialect: Dialect, request: CountRequest) -> Reply:
    """As many tokens as the prompt has when the same request is really run."""
    model = await find(services, request.model)
    prepared = prepare(request.chat, model, dialect.defaults, strict=dialect.strict_thinking)
    asked = shape(prepared, abilities(model)).request
    conversation = asked if isinstance(asked, ChatRequest) else request.chat
    async with services.lease(weights(model), asked.load, asked.keep_alive) as lease:
        return dialect.counted(request, await lease.runner.count(conversation))
