"""Questions with one whole answer: what is asked, what the answer means, and which input an error is about."""

import base64
import struct
from collections.abc import Mapping
from typing import Any

import pytest

from daemon.chat import ChatRequest, Embeddings, Message, Ranking, Text, Tool
from daemon.errors import EngineFailed, InvalidRequest, PromptTooLong
from daemon.runner.calls import Calls

CHAT = ChatRequest(model="m", messages=(Message("user", (Text("hi"),)),), tools=(Tool("f", "", {}),))


class Scripted(Calls):
    """Answers each request with the same object, and keeps what was asked."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self.answer = answer or {}
        self.asked: list[tuple[str, Any]] = []

    async def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self.asked.append((path, body))
        return self.answer


def encoded(*vector: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


class Embedder(Scripted):
    """The vector of a text is its length; refuses texts that are empty or have more than 9 characters."""

    async def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        await super().call(path, body)
        assert body is not None
        inputs = body["input"]
        if "" in inputs:
            raise InvalidRequest("the text is empty")
        if any(len(each) > 9 for each in inputs):
            raise PromptTooLong(max(len(each) for each in inputs), 9)
        data = [{"index": i, "embedding": encoded(len(each), 0.5)} for i, each in enumerate(inputs)]
        return {"data": data[::-1], "usage": {"prompt_tokens": 2 * len(inputs)}}


async def test_vectors_come_in_the_order_of_their_inputs() -> None:
    engine = Embedder()
    assert await engine.embed(["a", "bcd", (7, 8)]) == Embeddings(((1.0, 0.5), (3.0, 0.5), (2.0, 0.5)), 6)
    body = {"input": ["a", "bcd", [7, 8]], "encoding_format": "base64"}
    assert engine.asked == [("/v1/embeddings", body)]


async def test_many_inputs_are_asked_in_parts() -> None:
    engine = Embedder()
    made = await engine.embed(["x" * (1 + i % 3) for i in range(150)])
    assert [vector[0] for vector in made.vectors] == [1 + i % 3 for i in range(150)]
    assert made.tokens == 300
    assert len(engine.asked) == 3


@pytest.mark.parametrize("position", [0, 1, 63, 64, 99])
async def test_an_error_names_the_first_input_that_it_is_about(position: int) -> None:
    inputs = ["a"] * 100
    inputs[position] = ""
    inputs[-1] = inputs[-1] and "x" * 10
    with pytest.raises(InvalidRequest, match=f"^input {position}: the text is empty$"):
        await Embedder().embed(inputs)


async def test_a_text_that_is_too_long_keeps_its_counts() -> None:
    with pytest.raises(PromptTooLong, match=r"^input 2 has 12 tokens") as caught:
        await Embedder().embed(["a", "b", "x" * 12])
    assert (caught.value.needed, caught.value.available) == (12, 9)


async def test_of_a_single_input_no_number_is_told() -> None:
    with pytest.raises(PromptTooLong, match=r"^the prompt has 12 tokens"):
        await Embedder().embed(["x" * 12])
    with pytest.raises(InvalidRequest, match=r"^the text is empty$"):
        await Embedder().embed([""])


@pytest.mark.parametrize(
    "data",
    [
        [],
        [{"index": 1, "embedding": encoded(1)}],
        [{"index": 0, "embedding": "?"}],
        [{"index": 0, "embedding": "AAA="}],
        [{"index": 0, "embedding": [1]}],
        "x",
    ],
)
async def test_what_is_no_embedding_is_a_failure_of_the_engine(data: object) -> None:
    with pytest.raises(EngineFailed, match=r"the engine (sent|did not)"):
        await Scripted({"data": data}).embed(["a"])


async def test_a_ranking() -> None:
    results = [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": -1}]
    engine = Scripted({"results": results, "usage": {"prompt_tokens": 8}})
    assert await engine.rerank("q", ("a", "b")) == Ranking(((0, -1.0), (1, 0.5)), 8)
    assert engine.asked == [("/v1/rerank", {"query": "q", "documents": ["a", "b"]})]
    with pytest.raises(EngineFailed, match="did not rank every document"):
        await engine.rerank("q", ["a", "b", "c"])


async def test_a_prompt_is_counted_by_the_engine_with_its_tools() -> None:
    engine = Scripted({"input_tokens": 12})
    assert await engine.count(CHAT) == 12
    path, body = engine.asked[0]
    assert path == "/v1/chat/completions/input_tokens"
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert body["tools"][0]["function"]["name"] == "f"


async def test_the_prompt_of_a_chat() -> None:
    engine = Scripted({"prompt": "<user>hi"})
    assert await engine.render(CHAT) == "<user>hi"
    assert engine.asked[0][0] == "/apply-template"


async def test_tokens_and_text() -> None:
    engine = Scripted({"tokens": [1, 2], "content": "ab"})
    assert await engine.tokenize("ab", special=False) == (1, 2)
    assert await engine.tokenize("ab") == (1, 2)
    assert await engine.detokenize((1, 2)) == "ab"
    special = {"content": "ab", "parse_special": True}
    assert engine.asked == [
        ("/tokenize", {**special, "add_special": False}),
        ("/tokenize", {**special, "add_special": True}),
        ("/detokenize", {"tokens": [1, 2]}),
    ]


async def test_properties_are_only_read() -> None:
    engine = Scripted({"modalities": {"vision": True}})
    assert await engine.properties() == {"modalities": {"vision": True}}
    assert engine.asked == [("/props", None)]
