import json
import math
from typing import Any

import pytest

from daemon.chat import Embeddings, EmbedRequest, LoadOptions, LoadRequest, Request, Timings
from daemon.errors import InvalidRequest, ModelNotFound, PromptTooLong
from daemon.middleware import ollama
from daemon.middleware.dialect import Dialect

VECTORS = ((0.6, 0.8), (1.0, 0.0))
FOUND = Embeddings(VECTORS, tokens=7, timings=Timings(total=2.0, load=0.5))


def parse(dialect: Dialect, **body: Any) -> Request:
    return dialect.parse(json.dumps({"model": "m", **body}).encode())


def embed(**body: Any) -> EmbedRequest:
    request = parse(ollama.EMBED, **body)
    assert isinstance(request, EmbedRequest)
    return request


def written(dialect: Dialect, request: EmbedRequest, embeddings: Embeddings) -> Any:
    reply = dialect.embedded(request, embeddings, 0)
    assert (reply.status, reply.media_type) == (200, "application/json; charset=utf-8")
    return json.loads(reply.body)


def test_embed() -> None:
    assert embed(input="a") == EmbedRequest(model="m", inputs=("a",))
    assert embed(
        input=["a", "", "b"], dimensions=64, truncate=False, keep_alive=-1, options={"num_ctx": 32}
    ) == EmbedRequest(
        model="m",
        inputs=("a", "", "b"),
        dimensions=64,
        truncate=False,
        keep_alive=math.inf,
        load=LoadOptions(window=32),
    )
    assert embed(input=[""]).inputs == ("",)
    assert embed(input="a", dimensions=0, truncate=None) == embed(input="a")


@pytest.mark.parametrize("given", [5, {}, [1, 2], ["a", None], [["a"]], True])
def test_wrong_input(given: Any) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^input has an invalid input type: it must be a string or an array"
    ):
        embed(input=given)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"dimensions": -1}, "dimensions must be an integer"),
        ({"truncate": "no"}, 'truncate must be true or false, not "no"'),
        ({"model": None}, "model is required"),
    ],
)
def test_wrong_fields(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        embed(input="a", **body)
    assert caught.value.message.startswith(message)


def test_vectors() -> None:
    assert written(ollama.EMBED, embed(input=["a", "b"]), FOUND) == {
        "model": "m",
        "embeddings": [[0.6, 0.8], [1.0, 0.0]],
        "total_duration": 2_000_000_000,
        "load_duration": 500_000_000,
        "prompt_eval_count": 7,
    }


def test_inputs_that_were_cut_are_named() -> None:
    body = written(ollama.EMBED, embed(input=["a", "b"]), Embeddings(VECTORS, tokens=0, truncated=(1,)))
    assert body == {"model": "m", "embeddings": [[0.6, 0.8], [1.0, 0.0]], "truncated": [1]}


def test_legacy_route_takes_one_text() -> None:
    request = parse(ollama.EMBEDDINGS, prompt="a", keep_alive=5)
    assert request == EmbedRequest(model="m", inputs=("a",), keep_alive=5)
    assert written(ollama.EMBEDDINGS, request, Embeddings(VECTORS[:1], tokens=7)) == {"embedding": [0.6, 0.8]}
    cut = written(ollama.EMBEDDINGS, request, Embeddings(VECTORS[:1], tokens=7, truncated=(0,)))
    assert cut == {"embedding": [0.6, 0.8], "truncated": True}
    with pytest.raises(InvalidRequest, match=r"^prompt must be a string, not an array$"):
        parse(ollama.EMBEDDINGS, prompt=["a"])


@pytest.mark.parametrize(
    ("dialect", "body", "answer"),
    [
        (ollama.EMBED, {}, {"model": "m", "embeddings": []}),
        (ollama.EMBED, {"input": None}, {"model": "m", "embeddings": []}),
        (ollama.EMBED, {"input": ""}, {"model": "m", "embeddings": []}),
        (ollama.EMBED, {"input": []}, {"model": "m", "embeddings": []}),
        (ollama.EMBEDDINGS, {}, {"embedding": []}),
        (ollama.EMBEDDINGS, {"prompt": ""}, {"embedding": []}),
    ],
)
def test_without_a_text_the_model_is_loaded(dialect: Dialect, body: Any, answer: Any) -> None:
    request = parse(dialect, **body, keep_alive=60, options={"num_ctx": 64})
    assert request == LoadRequest(model="m", keep_alive=60, load=LoadOptions(window=64), embed=True)
    reply = dialect.loaded(request, 0)
    assert (reply.status, json.loads(reply.body)) == (200, answer)


def test_errors() -> None:
    for dialect in (ollama.EMBED, ollama.EMBEDDINGS):
        missing = dialect.error(ModelNotFound("m"))
        assert (missing.status, json.loads(missing.body)) == (404, {"error": "model 'm' not found"})
        long = dialect.error(PromptTooLong(900, 512, "input 1"))
        words = "the input length exceeds the context length: input 1 has 900 tokens and the context window has 512; "
        assert (long.status, json.loads(long.body)["error"][: len(words)]) == (400, words)
