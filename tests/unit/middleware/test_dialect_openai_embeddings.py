import base64
import json
import re
import struct
from typing import Any

import pytest

from daemon.chat import Embeddings, EmbedRequest, Ranking, RerankRequest
from daemon.errors import InvalidRequest, PromptTooLong
from daemon.middleware.openai_embeddings import EMBEDDINGS, RERANK


def embed(**body: Any) -> EmbedRequest:
    request = EMBEDDINGS.parse(json.dumps({"model": "m", "input": "hi", **body}).encode())
    assert isinstance(request, EmbedRequest)
    return request


def rerank(**body: Any) -> RerankRequest:
    base = {"model": "m", "query": "q", "documents": ["a", "b", "c"]}
    request = RERANK.parse(json.dumps({**base, **body}).encode())
    assert isinstance(request, RerankRequest)
    return request


# ---- embeddings


def test_minimal() -> None:
    assert embed() == EmbedRequest(model="m", inputs=("hi",), truncate=False)


def test_options() -> None:
    request = embed(dimensions=64, encoding_format="base64", truncate=True, keep_alive=0, user="ann")
    assert request == EmbedRequest(
        model="m", inputs=("hi",), dimensions=64, base64=True, truncate=True, keep_alive=0
    )


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_inputs(given: Any, inputs: Any) -> None:
    assert embed(input=given).inputs == inputs


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": None}, "input is required"),
        ({"input": ""}, "input is empty"),
        ({"input": ["a", ""]}, "input[1] is empty"),
        ({"input": [[1], []]}, "input[1] is empty"),
        ({"input": []}, "input must have 1 to 2048 entries, not 0"),
        ({"input": ["a"] * 2049}, "input must have 1 to 2048 entries, not 2049"),
        ({"input": ["a", None]}, "input[1] must be a string or an array of token ids, not null"),
        ({"input": {"text": "a"}}, "input must be a string, token ids or an array of those, not an object"),
        ({"dimensions": 0}, "dimensions must be an integer from 1 to"),
        ({"encoding_format": "hex"}, 'encoding_format must be "float" or "base64", not "hex"'),
        ({"truncate": 1}, "truncate must be true or false, not 1"),
    ],
)
def test_wrong_embedding_fields(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        embed(**body)
    assert caught.value.message.startswith(message)


def test_vectors_as_numbers() -> None:
    reply = EMBEDDINGS.embedded(embed(input=["a", "b"]), Embeddings(((0.5, -1.0), (0.25, 2.0)), 7), 0)
    assert json.loads(reply.body) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]},
            {"object": "embedding", "index": 1, "embedding": [0.25, 2.0]},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def test_vectors_in_base64_are_little_endian_floats() -> None:
    reply = EMBEDDINGS.embedded(embed(encoding_format="base64"), Embeddings(((0.5, -1.0),), 7), 0)
    (only,) = json.loads(reply.body)["data"]
    assert only["embedding"] == "AAAAPwAAgL8="
    assert struct.unpack("<2f", base64.b64decode(only["embedding"])) == (0.5, -1.0)


def test_what_was_cut_is_named() -> None:
    reply = EMBEDDINGS.embedded(
        embed(input=["a", "b"], truncate=True), Embeddings(((1.0,), (1.0,)), 7, (1,)), 0
    )
    body = json.loads(reply.body)
    assert body["truncated"] is True
    assert body["warnings"] == ["input[1] was cut to fit the context window"]


# ---- ranking


def test_rerank_request() -> None:
    assert rerank() == RerankRequest(model="m", query="q", documents=("a", "b", "c"))
    request = rerank(
        documents=["a", {"text": "b", "title": "t"}], top_n=5, return_documents=True, keep_alive="1m"
    )
    assert request == RerankRequest(
        model="m", query="q", documents=("a", "b"), top=5, return_documents=True, keep_alive=60
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": None}, "query is required"),
        ({"query": ""}, "query is empty"),
        ({"documents": None}, "documents must be an array with 1 to 2048 entries"),
        ({"documents": []}, "documents must be an array with 1 to 2048 entries"),
        ({"documents": ["a", 1]}, "documents[1] must be a string or an object with text, not 1"),
        ({"documents": ["a", {}]}, "documents[1].text is required"),
        ({"top_n": 0}, "top_n must be an integer from 1 to"),
    ],
)
def test_wrong_rerank_fields(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rerank(**body)
    assert caught.value.message.startswith(message)


def test_ranking() -> None:
    ranking = Ranking(((2, 0.9), (0, 0.5), (1, -3.0)), 11)
    body = json.loads(RERANK.ranked(rerank(), ranking, 0).body)
    assert re.fullmatch(r"rerank-[0-9a-f]{24}", body.pop("id"))
    assert body == {
        "object": "list",
        "model": "m",
        "results": [
            {"index": 2, "relevance_score": 0.9},
            {"index": 0, "relevance_score": 0.5},
            {"index": 1, "relevance_score": -3.0},
        ],
        "usage": {"prompt_tokens": 11, "total_tokens": 11},
    }
    body = json.loads(RERANK.ranked(rerank(top_n=1, return_documents=True), ranking, 0).body)
    assert body["results"] == [{"index": 2, "relevance_score": 0.9, "document": {"text": "c"}}]


def test_errors_have_openais_envelope() -> None:
    for dialect in (EMBEDDINGS, RERANK):
        error = json.loads(dialect.error(PromptTooLong(9, 4, "input[1]")).body)["error"]
        assert error["code"] == "context_length_exceeded"
        assert "input[1] has 9 tokens" in error["message"]
