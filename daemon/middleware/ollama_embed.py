"""Ollama's /api/embed, and /api/embeddings, which came before it and takes one text.

Source: Ollama's API documentation and the types of its server. A request without a text only loads the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daemon.chat import (
    Answer,
    Embeddings,
    EmbedRequest,
    LoadRequest,
    Request,
    TokenRequest,
)
from daemon.errors import MgrError, PromptTooLong
from daemon.framing import to_json
from daemon.middleware import request as pieces
from daemon.middleware.dialect import Dialect, Encoder, Reply, read_object
from daemon.middleware.fields import BadField, Fields
from daemon.middleware.ollama_options import Target
from daemon.middleware.ollama_stream import JSON, NDJSON, error_reply, numbers


def _embed(fields: Fields) -> EmbedRequest | LoadRequest:
    target = Target.read(fields)
    inputs = _inputs(fields)
    if not inputs:
        return target.load_only(embed=True)
    return EmbedRequest(
        model=target.model,
        load=target.load,
        keep_alive=target.keep_alive,
        inputs=inputs,
        dimensions=fields.integer("dimensions", 0, pieces.MAX_INT) or None,
        truncate=fields.boolean("truncate") is not False,
    )


def _inputs(fields: Fields) -> tuple[str, ...]:
    """None for an empty text, but an empty text in an array is an input like others."""
    try:
        return () if fields.data.get("input") == "" else fields.strings("input") or ()
    except BadField:
        raise BadField(
            "input", "has an invalid input type: it must be a string or an array of strings"
        ) from None


def _embeddings(fields: Fields) -> EmbedRequest | LoadRequest:
    target = Target.read(fields)
    prompt = fields.string("prompt")
    if not prompt:
        return target.load_only(embed=True)
    return EmbedRequest(model=target.model, load=target.load, keep_alive=target.keep_alive, inputs=(prompt,))


def _all(model: str, embeddings: Embeddings) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "embeddings": embeddings.vectors}
    body |= numbers(embeddings.timings, embeddings.tokens)
    return body | ({"truncated": embeddings.truncated} if embeddings.truncated else {})


def _one(_model: str, embeddings: Embeddings) -> dict[str, Any]:
    body: dict[str, Any] = {"embedding": embeddings.vectors[0] if embeddings.vectors else []}
    return body | ({"truncated": True} if embeddings.truncated else {})


@dataclass(frozen=True, slots=True)
class OllamaEmbedDialect(Dialect):
    """One of the two routes."""

    read: Callable[[Fields], Request]
    write: Callable[[str, Embeddings], dict[str, Any]]

    @property
    def stream_media_type(self) -> str:
        return NDJSON

    def parse(self, body: bytes) -> Request:
        return self.read(Fields(read_object(body)))

    def encoder(self, request: TokenRequest, created: float) -> Encoder:
        raise TypeError("this route has no request for text")

    def reply(self, request: TokenRequest, answer: Answer, created: float) -> Reply:
        raise TypeError("this route has no request for text")

    def embedded(self, request: EmbedRequest, embeddings: Embeddings, created: float) -> Reply:
        return Reply(200, to_json(self.write(request.model, embeddings)), JSON)

    def loaded(self, request: LoadRequest, created: float) -> Reply:
        return Reply(200, to_json(self.write(request.model, Embeddings((), 0))), JSON)

    def error(self, error: MgrError) -> Reply:
        """Clients look for Ollama's words about a text that is too long; which one it is, and its counts, follow."""
        if isinstance(error, PromptTooLong):
            return error_reply(error, f"the input length exceeds the context length: {error.message}")
        return error_reply(error)


EMBED = OllamaEmbedDialect(_embed, _all)
EMBEDDINGS = OllamaEmbedDialect(_embeddings, _one)
