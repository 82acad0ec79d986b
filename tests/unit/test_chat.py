import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import (
    Answer,
    Assembly,
    Done,
    Event,
    FinishReason,
    Image,
    LoadOptions,
    Message,
    Progress,
    Sampling,
    Text,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from tests.fakes.answers import assemble

DONE = Done(FinishReason.STOP, Usage(3, 1, 2))


def test_text_of_a_message_joins_its_text_parts() -> None:
    assert Message("user", (Text("a"), Image("", "image/png"), Text("b"))).text == "ab"
    assert Message("assistant").text == ""


def test_sampling_over_defaults_keeps_falsy_values() -> None:
    given_ones = Sampling(temperature=0.0, stop=(), top_k=0, logprobs=False)
    defaults = Sampling(temperature=0.8, stop=("x",), top_k=40, logprobs=True, seed=7)
    assert given_ones.over(defaults) == Sampling(temperature=0.0, stop=(), top_k=0, logprobs=False, seed=7)


def test_load_options_over_defaults() -> None:
    defaults = LoadOptions(gpu_layers=9, mmap=True, window=4096)
    assert LoadOptions(gpu_layers=0, mmap=False).over(defaults) == LoadOptions(
        gpu_layers=0, mmap=False, window=4096
    )


def test_assembly_joins_everything_in_order_of_calls() -> None:
    events: list[Event] = [
        Progress(1, 2),
        ThinkingDelta("h"),
        ThinkingDelta("m"),
        TextDelta("Hi", ({"token": "Hi"},)),
        TextDelta("!", ({"token": "!"},)),
        ToolCallDelta(0, "", "c0", "f"),
        ToolCallDelta(0, '{"x"'),
        ToolCallDelta(0, ":1}"),
        ToolCallDelta(1, "{}", "c1", "g"),
        DONE,
    ]
    assert assemble(events) == Answer(
        "Hi!",
        "hm",
        (ToolCall("c0", "f", '{"x":1}'), ToolCall("c1", "g", "{}")),
        DONE,
        ({"token": "Hi"}, {"token": "!"}),
    )


def test_assembly_has_no_answer_before_its_end() -> None:
    assembly = Assembly()
    assembly.feed(TextDelta("Hi"))
    with pytest.raises(ValueError, match="has not ended"):
        assembly.answer()


@given(st.lists(st.text()))
def test_assembly_is_the_concatenation(pieces: list[str]) -> None:
    events: list[Event] = [TextDelta(piece) for piece in pieces]
    events.append(DONE)
    assert assemble(events).text == "".join(pieces)


@pytest.mark.parametrize("value", [Text("a"), Sampling(), DONE, Message("user"), ThinkingDelta("a")])
def test_values_are_frozen_and_slotted(value: object) -> None:
    assert not hasattr(value, "__dict__")
    assert dataclasses.is_dataclass(value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(value)[0].name, None)


def test_the_value_that_each_chunk_makes_is_slotted_too() -> None:
    assert not hasattr(TextDelta("a"), "__dict__")
