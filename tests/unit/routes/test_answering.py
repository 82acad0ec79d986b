"""What happens between a lease and the end of an answer."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest

from daemon.chat import (
    ChatRequest,
    CompletionRequest,
    Done,
    FinishReason,
    Message,
    Piece,
    Sink,
    Text,
    TextDelta,
    TokenRequest,
)
from daemon.errors import EngineGone, PromptTooLong
from daemon.routes import answering
from daemon.runner.calls import Calls
from tests.fakes.models import MODEL

if TYPE_CHECKING:
    from daemon.runner.runner import Runner

END = Done(FinishReason.STOP)


class Engine(Calls):
    """Refuses prompts of more than `window` words; a token is a word. With `dies` it is gone after its answer."""

    def __init__(self, window: int = 100, *, dies: bool = False) -> None:
        self.window, self.dies = window, dies
        self.asked: list[TokenRequest] = []

    async def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        assert body is not None
        if self.dies:
            raise EngineGone("gone")
        if path == "/apply-template":
            return {"prompt": " ".join(message["content"] for message in body["messages"])}
        if path == "/tokenize":
            return {"tokens": [*range(len(body["content"].split()))]}
        return {"input_tokens": sum(len(message["content"].split()) for message in body["messages"])}

    async def answer(self, request: TokenRequest, sink: Sink) -> Done:
        self.asked.append(request)
        if isinstance(request, ChatRequest):
            needed = sum(len(message.text.split()) for message in request.messages)
        else:
            needed = len(request.prompt.split() if isinstance(request.prompt, str) else request.prompt)
        if needed > self.window:
            raise PromptTooLong(needed, self.window)
        sink([TextDelta("two words")])
        return END


def turn(text: str) -> Message:
    return Message("user", (Text(text),))


async def answered(engine: Engine, request: TokenRequest) -> tuple[str, Done]:
    texts: list[str] = []

    def take(pieces: Sequence[Piece]) -> None:
        texts.extend(piece.text for piece in pieces if isinstance(piece, TextDelta))

    done = await answering.answered(cast("Runner", engine), MODEL, request, take)
    return "".join(texts), done


async def test_what_fits_is_asked_once_and_as_it_is() -> None:
    engine, request = Engine(), ChatRequest(model="m", messages=(turn("hi"),), truncate=True)
    assert await answered(engine, request) == ("two words", END)
    assert engine.asked == [request]


async def test_a_conversation_that_is_too_long_loses_its_oldest_turns_and_says_so() -> None:
    engine = Engine(4)
    request = ChatRequest(model="m", messages=(turn("a b c"), turn("d e"), turn("f")), truncate=True)
    text, done = await answered(engine, request)
    assert (text, done.truncated) == ("two words", True)
    assert [message.text for message in cast("ChatRequest", engine.asked[-1]).messages] == ["d e", "f"]


async def test_a_text_that_is_too_long_loses_its_middle() -> None:
    engine = Engine(8)
    text, done = await answered(engine, CompletionRequest(model="m", prompt="a " * 20, truncate=True))
    assert (text, done.truncated) == ("two words", True)
    assert cast("CompletionRequest", engine.asked[-1]).prompt == (16, 17, 18, 19)


async def test_nothing_is_cut_unasked() -> None:
    with pytest.raises(PromptTooLong):
        await answered(Engine(2), ChatRequest(model="m", messages=(turn("a b c"), turn("d"))))


async def test_the_context_is_that_of_prompt_and_answer() -> None:
    request = ChatRequest(model="m", messages=(turn("a b c"),), wants_context=True)
    assert (await answered(Engine(), request))[1].context == (0, 1, 2, 0, 1)


async def test_an_answer_that_was_given_is_not_asked_for_again_for_its_context() -> None:
    """An engine that is gone only then must not look like one that never answered."""
    engine = Engine(dies=True)
    request = ChatRequest(model="m", messages=(turn("hi"),), wants_context=True)
    assert await answered(engine, request) == ("two words", END)
    assert len(engine.asked) == 1


async def test_a_context_that_is_too_long_is_cut_like_any_text() -> None:
    engine = Engine(8)
    request = ChatRequest(model="m", messages=(turn("a b"),), context=tuple(range(100, 120)), truncate=True)
    text, done = await answered(engine, request)
    assert (text, done.truncated) == ("two words", True)
    assert cast("CompletionRequest", engine.asked[-1]).prompt == (118, 119, 0, 1)
