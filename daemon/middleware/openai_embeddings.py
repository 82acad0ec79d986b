"""OpenAI's /v1/embeddings, and /v1/rerank, which Cohere, Jina, vLLM and llama.cpp have in nearly one shape.

Source: OpenAI's API reference and the types of its Python SDK; for the ranking Jina's API reference and llama.cpp's
tools/server. Extra fields of embeddings are `keep_alive` and `truncate`: an input that does not fit is an error unless
`truncate` is true, and an answer then says what was cut.
"""

import base64
import struct
from collections.abc import Sequence
from typing import Any

from daemon.chat import (
    Answer,
    Embeddings,
    EmbedRequest,
    Ranking,
    Request,
    RerankRequest,
    TokenRequest,
)
from daemon.framing import to_json
from daemon.middleware import request as pieces
from daemon.middleware.dialect import Encoder, Reply, read_object
from daemon.middleware.fields import BadField, Fields, shown
from daemon.middleware.openai_common import OpenAIDialect, identifier, inputs

MAX_DOCUMENTS = 2048


class _WholeOnly(OpenAIDialect):
    """A route that generates no text."""

    def encoder(self, request: TokenRequest, created: float) -> Encoder:
        raise TypeError("this route has no streams")

    def reply(self, request: TokenRequest, answer: Answer, created: float) -> Reply:
        raise TypeError("this route has no text as its answer")


# ---- embeddings


def _embeddings(fields: Fields) -> EmbedRequest:
    return EmbedRequest(
        model=pieces.model(fields),
        keep_alive=pieces.keep_alive(fields),
        inputs=_texts(fields),
        dimensions=fields.integer("dimensions", 1, pieces.MAX_INT),
        truncate=fields.boolean("truncate") is True,
        base64=_base64(fields),
    )


def _texts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    found = inputs(fields, "input")
    for index, text in enumerate(found):
        if not text:
            place = f"input[{index}]" if isinstance(fields.data["input"], list) else "input"
            raise BadField(place, "is empty")
    return found


def _base64(fields: Fields) -> bool:
    match fields.string("encoding_format"):
        case None | "float":
            return False
        case "base64":
            return True
        case other:
            raise BadField("encoding_format", f'must be "float" or "base64", not {shown(other)}')


def _packed(vector: Sequence[float]) -> str:
    """Little-endian 32-bit floats, in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _cut(truncated: Sequence[int]) -> dict[str, Any]:
    if not truncated:
        return {}
    return {
        "truncated": True,
        "warnings": [f"input[{index}] was cut to fit the context window" for index in truncated],
    }


class _Embeddings(_WholeOnly):
    def parse(self, body: bytes) -> Request:
        return _embeddings(Fields(read_object(body)))

    def embedded(self, request: EmbedRequest, embeddings: Embeddings, created: float) -> Reply:
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _packed(vector) if request.base64 else vector,
            }
            for index, vector in enumerate(embeddings.vectors)
        ]
        body = {"object": "list", "data": data, "model": request.model, "usage": _usage(embeddings.tokens)}
        return Reply(200, to_json(body | _cut(embeddings.truncated)))


# ---- ranking


def _rerank(fields: Fields) -> RerankRequest:
    query = fields.required("query")
    if not query:
        raise BadField("query", "is empty")
    return RerankRequest(
        model=pieces.model(fields),
        keep_alive=pieces.keep_alive(fields),
        query=query,
        documents=_documents(fields),
        top=fields.integer("top_n", 1, pieces.MAX_INT),
        return_documents=fields.boolean("return_documents") is True,
    )


def _documents(fields: Fields) -> tuple[str, ...]:
    """Texts, or objects that hold one as `text`."""
    items = fields.data.get("documents")
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_DOCUMENTS:
        raise BadField("documents", f"must be an array with 1 to {MAX_DOCUMENTS} entries")
    return tuple(_document(f"documents[{index}]", item) for index, item in enumerate(items))


def _document(name: str, item: object) -> str:
    if isinstance(item, dict):
        return Fields(item, f"{name}.").required("text")
    if not isinstance(item, str):
        raise BadField(name, f"must be a string or an object with text, not {shown(item)}")
    return item


class _Rerank(_WholeOnly):
    def parse(self, body: bytes) -> Request:
        return _rerank(Fields(read_object(body)))

    def ranked(self, request: RerankRequest, ranking: Ranking, created: float) -> Reply:
        results = [
            {"index": index, "relevance_score": score}
            | ({"document": {"text": request.documents[index]}} if request.return_documents else {})
            for index, score in ranking.scores[: request.top]
        ]
        body = {"id": identifier("rerank"), "object": "list", "model": request.model}
        return Reply(200, to_json(body | {"results": results, "usage": _usage(ranking.tokens)}))


EMBEDDINGS = _Embeddings()
RERANK = _Rerank()
