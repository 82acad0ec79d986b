"""The tokens of a conversation, which a client sends back to go on with it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from daemon.chat import (
    ChatRequest,
    CompletionRequest,
    JsonFormat,
    LoadOptions,
    Message,
    Piece,
    QuotedSink,
    Sampling,
    Text,
    TextDelta,
    ThinkingDelta,
)
from daemon.routes import context
from daemon.routes.context import Heard
from daemon.runner.calls import Calls

if TYPE_CHECKING:
    from daemon.runner.runner import Runner

FIRST, START = 1, 100  # the token that begins every whole prompt, and that of a word that begins at 0


class Engine(Calls):
    """Its tokens are numbers of letters; its template writes each turn in brackets."""

    async def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        assert body is not None
        if path == "/apply-template":
            turns = [f"[{message['role'][0]}:{message['content']}]" for message in body["messages"]]
            return {"prompt": "".join(turns)}
        assert path == "/tokenize"
        begin = [FIRST] if body["add_special"] else []
        return {"tokens": [*begin, *(START + ord(letter) for letter in body["content"])]}


ENGINE = cast("Runner", Engine())


def tokens(text: str) -> tuple[int, ...]:
    return tuple(START + ord(letter) for letter in text)


def chat(text: str, **more: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=(Message("user", (Text(text),)),), **more)


async def test_a_first_prompt_has_the_token_that_begins_it() -> None:
    assert await context.prompt_tokens(ENGINE, chat("hi")) == (FIRST, *tokens("[u:hi]"))


async def test_what_was_before_stays_as_it_is_and_is_not_begun_again() -> None:
    before = (FIRST, 7, 8)
    assert await context.prompt_tokens(ENGINE, chat("go", context=before)) == (*before, *tokens("[u:go]"))


def test_the_rest_of_the_request_goes_along() -> None:
    request = chat(
        "hi",
        load=LoadOptions(window=512),
        keep_alive=3.0,
        sampling=Sampling(seed=1, stop=("x",)),
        stream=True,
        include_usage=False,
        format=JsonFormat(),
        truncate=True,
        context=(1, 2),
    )
    assert context.continuation(request, (1, 2, 3)) == CompletionRequest(
        model="m",
        prompt=(1, 2, 3),
        load=LoadOptions(window=512),
        keep_alive=3.0,
        sampling=Sampling(seed=1, stop=("x",)),
        stream=True,
        include_usage=False,
        format=JsonFormat(),
        truncate=True,
    )


def test_the_text_of_an_answer_is_kept_and_everything_is_handed_on() -> None:
    got: list[Piece] = []

    def sink(pieces: Sequence[Piece]) -> None:
        got.extend(pieces)

    heard = Heard(sink)
    sent: list[Piece] = [TextDelta("Grü"), ThinkingDelta("hm"), TextDelta("ße")]
    heard(sent[:2])
    heard(sent[2:])
    heard.quoted(b'\\n\\"')
    assert heard.text == 'Grüße\n"'
    assert got == [*sent, TextDelta('\n"')]


def test_a_text_goes_the_short_way_where_there_is_one() -> None:
    got: list[bytes] = []

    class Short(QuotedSink):
        def __call__(self, pieces: Sequence[Piece]) -> None:
            raise AssertionError("the long way")

        def quoted(self, text: bytes) -> None:
            got.append(text)

    heard = Heard(Short())
    heard.quoted(b"a\\n")
    assert (got, heard.text) == ([b"a\\n"], "a\n")
