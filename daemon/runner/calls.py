"""What is asked of an engine besides streamed answers: each is one whole JSON answer."""

import base64
import binascii
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from daemon.chat import ChatRequest, Embeddings, Ranking
from daemon.errors import EngineFailed, InvalidRequest, PromptTooLong
from daemon.runner.received import as_object, count, number, objects, text
from daemon.runner.wire import CHAT_PATH, conversation

# Inputs of one request for embeddings: the whole answer is held in memory, and who leaves waits for as much to end.
_INPUTS_AT_ONCE = 64

Input = str | tuple[int, ...]


class Calls(ABC):
    """Questions to one engine; a child says how a request is made.

    Every method raises what `call` does.
    """

    @abstractmethod
    async def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object that the engine answers; without a body it is a GET.

        Raises EngineFailed, EngineGone, InvalidRequest or PromptTooLong. Cancelling closes the connection.
        """

    async def properties(self) -> dict[str, Any]:
        """What the engine says of itself and its model, such as `chat_template_caps` and `modalities`."""
        return await self.call("/props")

    async def render(self, chat: ChatRequest) -> str:
        """The prompt that the chat template makes."""
        return text(await self.call("/apply-template", conversation(chat)), "prompt")

    async def count(self, chat: ChatRequest) -> int:
        """How many tokens the prompt has; as many as a run of the same request counts."""
        answer = await self.call(f"{CHAT_PATH}/input_tokens", conversation(chat))
        return count(answer, "input_tokens")

    async def tokenize(self, content: str, *, special: bool = True) -> tuple[int, ...]:
        """The tokens that the engine makes of a prompt. `special`: with those that it puts around a whole one."""
        body = {"content": content, "add_special": special, "parse_special": True}
        tokens = (await self.call("/tokenize", body)).get("tokens")
        return tuple(token for token in tokens if isinstance(token, int)) if isinstance(tokens, list) else ()

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return text(await self.call("/detokenize", {"tokens": [*tokens]}), "content")

    async def rerank(self, query: str, documents: Sequence[str]) -> Ranking:
        """The score of every document, in their order."""
        answer = await self.call("/v1/rerank", {"query": query, "documents": [*documents]})
        found = {
            count(each, "index"): number(each.get("relevance_score"))
            for each in objects(answer.get("results"))
        }
        if {*found} != {*range(len(documents))}:
            raise EngineFailed("the engine did not rank every document")
        return Ranking(tuple(sorted(found.items())), _prompt_tokens(answer))

    async def embed(self, inputs: Sequence[Input]) -> Embeddings:
        """A vector for each input. An error of one input says which it is, where there are several."""
        parts = [
            await self._embed(inputs[start : start + _INPUTS_AT_ONCE], start, alone=len(inputs) == 1)
            for start in range(0, len(inputs), _INPUTS_AT_ONCE)
        ]
        vectors = tuple(vector for part in parts for vector in part.vectors)
        return Embeddings(vectors, sum(part.tokens for part in parts))

    async def _embed(self, inputs: Sequence[Input], start: int, *, alone: bool) -> Embeddings:
        """An engine does not tell which input it refuses, so halves are asked until it is known."""
        try:
            return await self._embed_together(inputs)
        except InvalidRequest as error:
            if len(inputs) > 1:
                half = len(inputs) // 2
                for offset, part in ((0, inputs[:half]), (half, inputs[half:])):
                    await self._embed(part, start + offset, alone=False)
                raise
            raise error if alone else _of_input(error, start) from None

    async def _embed_together(self, inputs: Sequence[Input]) -> Embeddings:
        body = {
            "input": [each if isinstance(each, str) else [*each] for each in inputs],
            "encoding_format": "base64",
        }
        answer = await self.call("/v1/embeddings", body)
        found = {count(each, "index"): _vector(each.get("embedding")) for each in objects(answer.get("data"))}
        if {*found} != {*range(len(inputs))}:
            raise EngineFailed("the engine did not embed every input")
        return Embeddings(tuple(found[i] for i in range(len(inputs))), _prompt_tokens(answer))


def _of_input(error: InvalidRequest, index: int) -> InvalidRequest:
    if isinstance(error, PromptTooLong):
        return PromptTooLong(error.needed, error.available, f"input {index}")
    return InvalidRequest(f"input {index}: {error.message}")


def _prompt_tokens(answer: Mapping[str, Any]) -> int:
    return count(as_object(answer.get("usage")), "prompt_tokens")


def _vector(value: object) -> tuple[float, ...]:
    """From base64 of little-endian 32-bit floats. Raises EngineFailed."""
    try:
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
        vector = struct.unpack(f"<{len(data) // 4}f", data)
    except (binascii.Error, struct.error):
        vector = ()
    if not vector:
        raise EngineFailed("the engine sent something that is not an embedding")
    return vector
