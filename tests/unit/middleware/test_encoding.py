"""What no encoder can get wrong: one end, exactly once. Tested on one that writes what it is told."""

import pytest

from daemon.chat import Done, FinishReason, Progress, TextDelta, ThinkingDelta, ToolCallDelta
from daemon.errors import Busy, EngineFailed, MgrError
from daemon.middleware.encoding import StreamEncoder, arguments_object, notes

DONE = Done(FinishReason.STOP)


class Plain(StreamEncoder):
    def feed_quoted(self, text: bytes) -> bytes:
        return b"text " + text

    def _thinking(self, delta: ThinkingDelta) -> bytes:
        return f"thinking {delta.text}".encode()

    def _call(self, delta: ToolCallDelta) -> bytes:
        return f"call {delta.name}".encode()

    def _ping(self) -> bytes:
        return b"ping"

    def _end(self, done: Done) -> bytes:
        return b"end"

    def _error(self, error: MgrError) -> bytes:
        return error.message.encode()


def test_a_stream() -> None:
    encoder = Plain()
    assert encoder.feed(Progress(1, 2)) == b""
    assert encoder.keep_alive() == b"ping"
    assert encoder.feed(ThinkingDelta("hm")) == b"thinking hm"
    assert encoder.feed(TextDelta("Hi")) == b"text Hi"
    assert encoder.feed(ToolCallDelta(0, "{}", "id", "f")) == b"call f"
    assert encoder.feed(DONE) == b""
    assert encoder.finish() == b"end"


def test_empty_deltas_are_nothing() -> None:
    encoder = Plain()
    assert encoder.feed(TextDelta("")) == encoder.feed(ThinkingDelta("")) == b""
    assert encoder.feed(ToolCallDelta(0, "", "id", "name")) != b""


def test_logprobs_are_for_those_who_show_them() -> None:
    class Scored(Plain):
        def _scored(self, delta: TextDelta) -> bytes:
            return f"scored {delta.text} {len(delta.logprobs)}".encode()

    delta = TextDelta("Hi", ({"token": "Hi", "logprob": -0.5},))
    assert Plain().feed(delta) == b"text Hi"
    assert Scored().feed(delta) == b"scored Hi 1"
    assert Scored().feed(TextDelta("Hi")) == b"text Hi"
    # A token that is a part of a character has no text yet.
    part = TextDelta("", delta.logprobs)
    assert (Plain().feed(part), Scored().feed(part)) == (b"", b"scored  1")


def test_nothing_follows_the_end() -> None:
    finished = Plain()
    finished.feed(DONE)
    assert finished.finish() == b"end"
    failed = Plain()
    assert failed.fail(Busy("full")) == b"full"
    for encoder in (finished, failed):
        assert encoder.feed(TextDelta("x")) == encoder.keep_alive() == b""
        assert encoder.finish() == encoder.fail(Busy("again")) == b""


def test_an_error_after_done_is_still_an_error() -> None:
    encoder = Plain()
    encoder.feed(DONE)
    assert encoder.fail(EngineFailed("broken")) == b"broken"
    assert encoder.finish() == b""


def test_an_answer_without_its_end_is_an_error() -> None:
    encoder = Plain()
    encoder.feed(TextDelta("Hi"))
    assert encoder.finish() == b"the engine's answer broke off"
    assert encoder.finish() == b""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        (" \n", {}),
        ('{"x": 1, "y": [true, null]}', {"x": 1, "y": [True, None]}),
        ("{", {"raw": "{"}),
        ("[1]", {"raw": "[1]"}),
        ('"x"', {"raw": '"x"'}),
        ('{"x": NaN}', {"raw": '{"x": NaN}'}),
        ('{"x": "\\ud800"}', {"raw": '{"x": "\\ud800"}'}),
        ('{"x":' + "[" * 100_000, {"raw": '{"x":' + "[" * 100_000}),
    ],
)
def test_arguments_are_always_an_object(text: str, value: dict[str, object]) -> None:
    assert arguments_object(text) == value


def test_notes_are_there_when_there_is_something_to_say() -> None:
    cut = Done(FinishReason.STOP, truncated=True)
    warned = Done(FinishReason.STOP, warnings=("a", "b"))
    assert notes([DONE]) == notes([]) == {}
    assert notes([DONE, cut]) == {"truncated": True}
    assert notes([warned, Done(FinishReason.STOP, warnings=("b", "c"))]) == {"warnings": ["a", "b", "c"]}
    assert notes([cut, warned]) == {"truncated": True, "warnings": ["a", "b"]}
