"""Chunks of the engine's answers, as measured on real builds."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import (
    Assembly,
    Done,
    Event,
    FinishReason,
    Progress,
    TextDelta,
    ThinkingDelta,
    Timings,
    ToolCallDelta,
    Usage,
)
from daemon.errors import EngineFailed
from daemon.runner.reader import AnswerReader


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
    return json.dumps({"choices": [{"delta": delta, "finish_reason": reason}], **more}).encode()


def read(*data: bytes) -> list[Event]:
    """The pieces of a whole answer, and its end."""
    reader = AnswerReader()
    return [*(piece for each in data for piece in reader.read(each)), reader.end()]


def test_a_whole_chat_answer() -> None:
    events = read(
        chunk(
            {"role": "assistant", "content": None},
            prompt_progress={"total": 31, "cache": 24, "processed": 24, "time_ms": 0},
        ),
        chunk({"reasoning_content": "hm"}),
        chunk({"content": "Hel"}),
        chunk({"tool_calls": [{"index": 1, "id": "c", "function": {"name": "f", "arguments": '{"a":'}}]}),
        chunk({}, "stop", __verbose={"stopping_word": "END"}),
        json.dumps(
            {
                "choices": [],
                "timings": {
                    "cache_n": 24,
                    "prompt_n": 7,
                    "prompt_ms": 250,
                    "predicted_n": 4,
                    "predicted_ms": 500,
                },
            }
        ).encode(),
        b"[DONE]",
    )
    assert events == [
        Progress(24, 31, 24),
        ThinkingDelta("hm"),
        TextDelta("Hel"),
        ToolCallDelta(0, '{"a":', "c", "f"),
        Done(FinishReason.TOOL_CALLS, Usage(31, 24, 4), Timings(prompt=0.25, generation=0.5), "END"),
    ]


def test_usage_is_enough_where_there_are_no_timings() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
    events = read(chunk({}, "length"), json.dumps({"choices": [], "usage": usage}).encode(), b"[DONE]")
    assert events == [Done(FinishReason.LENGTH, Usage(3, 1, 2))]


def test_a_whole_completion() -> None:
    final = {"content": "", "stop": True, "stop_type": "word", "stopping_word": "x"}
    events = read(
        json.dumps({"content": "a", "stop": False}).encode(),
        json.dumps({**final, "timings": {"prompt_n": 1, "predicted_n": 1}}).encode(),
    )
    assert events == [TextDelta("a"), Done(FinishReason.STOP, Usage(1, 0, 1), stop_sequence="x")]


def test_an_answer_that_was_cut_off_is_an_error() -> None:
    reader = AnswerReader()
    reader.read(chunk({"content": "a"}))
    with pytest.raises(EngineFailed, match="middle of the answer"):
        reader.end()


def test_an_error_inside_the_stream() -> None:
    with pytest.raises(EngineFailed, match="slot broke"):
        AnswerReader().read(json.dumps({"error": {"code": 500, "message": "slot broke"}}).encode())


def test_parts_of_a_wrong_type_are_left_out_and_text_can_always_be_encoded() -> None:
    events = read(
        b'{"choices":[{"delta":"x"},{"delta":{"content":5}},{"delta":{"content":"a\\ud800b"}},7]}',
        b'{"choices":[{"delta":{"tool_calls":[3]},"logprobs":[4],"finish_reason":"what"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":1e999,"completion_tokens":-1,"prompt_tokens_details":[1]}}',
        b'{"choices":[],"timings":{"prompt_n":2,"prompt_ms":1e999,"predicted_ms":"x"}}',
        b"[DONE]",
    )
    assert events == [TextDelta("a?b"), Done(FinishReason.STOP, Usage(2, 0, 0))]


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b"nope", b"[" * 100_000])
def test_what_is_no_json_object_is_a_failure_of_the_engine(data: bytes) -> None:
    with pytest.raises(EngineFailed, match="not a JSON object"):
        AnswerReader().read(data)


# ---- tool calls


def call(index: object, arguments: str = "", **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": more.pop("name")} if "name" in more else {})}
    return {"index": index, "function": function, **more}


def calls(*deltas: list[dict[str, Any]]) -> list[tuple[int, str | None, str | None, str]]:
    pieces = read(*(chunk({"tool_calls": delta}) for delta in deltas), chunk({}, "tool_calls"))
    return [(p.index, p.id, p.name, p.arguments) for p in pieces if isinstance(p, ToolCallDelta)]


def test_calls_are_numbered_from_0_in_the_order_they_begin() -> None:
    assert calls([call(2, "{", id="a", name="f")], [call(2, "}")], [call(5, "{}", id="b", name="g")]) == [
        (0, "a", "f", "{"),
        (0, None, None, "}"),
        (1, "b", "g", "{}"),
    ]


def test_two_calls_in_one_chunk() -> None:
    both = [call(0, "{}", id="a", name="f"), call(1, "{}", id="b", name="f")]
    assert calls(both) == [(0, "a", "f", "{}"), (1, "b", "f", "{}")]


def test_another_id_at_the_same_index_is_another_call_and_the_same_id_is_not() -> None:
    found = calls([call(0, "{", id="a", name="f")], [call(0, "}", id="a")], [call(0, "{}", id="b", name="g")])
    assert found == [(0, "a", "f", "{"), (0, None, None, "}"), (1, "b", "g", "{}")]


def test_a_call_without_an_id_gets_one_of_its_own() -> None:
    found = calls([call(0, "{", name="f")], [call(0, "}")], [call(1, "{}", id="", name="g")])
    assert [index for index, *_ in found] == [0, 0, 1]
    first, later, second = [call_id for _, call_id, *_ in found]
    assert later is None
    assert first != second
    assert all(re.fullmatch("call_[0-9a-f]{24}", call_id or "") for call_id in (first, second))


@pytest.mark.parametrize(
    ("said", "reason"), [("stop", "tool_calls"), ("length", "length"), ("tool_calls", "tool_calls")]
)
def test_an_answer_with_calls_that_was_not_cut_ends_with_them(said: str, reason: str) -> None:
    *_, done = read(chunk({"tool_calls": [call(0, "{}", id="a", name="f")]}), chunk({}, said))
    assert isinstance(done, Done)
    assert done.reason == reason


@given(st.lists(st.integers(1, 4), max_size=12), st.booleans())
def test_fragments_of_calls_assemble_to_the_same_calls(cuts: list[int], with_ids: bool) -> None:
    arguments = ['{"city":"Zürich"}', "{}"]
    reader, assembly = AnswerReader(), Assembly()
    for index, text in enumerate(arguments):
        begin = call(index, "", name=f"f{index}", **({"id": f"id{index}"} if with_ids else {}))
        rest = text
        fragments = [begin]
        for size in cuts:
            fragments.append(call(index, rest[:size]))
            rest = rest[size:]
        for fragment in [*fragments, call(index, rest)]:
            for piece in reader.read(chunk({"tool_calls": [fragment]})):
                assembly.feed(piece)
    reader.read(chunk({}, "tool_calls"))
    assembly.feed(reader.end())
    found = assembly.answer().tool_calls
    assert [(each.name, each.arguments) for each in found] == [("f0", arguments[0]), ("f1", arguments[1])]
    assert [each.id for each in found] == ["id0", "id1"] or not with_ids


# ---- logprobs


def entry(token: str, logprob: float = -0.5, **more: Any) -> dict[str, Any]:
    return {"id": 7, "token": token, "bytes": [*token.encode()], "logprob": logprob, **more}


def said(token: str, logprob: float = -0.5) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": [*token.encode()]}


def with_logprobs(delta: dict[str, Any], *entries: dict[str, Any]) -> bytes:
    return json.dumps({"choices": [{"delta": delta, "logprobs": {"content": entries}}]}).encode()


def test_logprobs_have_openais_shape_and_as_many_others_as_asked_on_both_routes() -> None:
    sent = entry("a", top_logprobs=[entry("a"), entry("b", -3.4e38), entry("c")])
    expected = TextDelta("a", ({**said("a"), "top_logprobs": [said("a"), said("b", -9999.0)]},))
    plain_route = json.dumps({"content": "a", "stop": False, "completion_probabilities": [sent]}).encode()
    assert AnswerReader(2).read(with_logprobs({"content": "a"}, sent)) == [expected]
    assert AnswerReader(2).read(plain_route) == [expected]
    without = TextDelta("a", ({**said("a"), "top_logprobs": []},))
    assert AnswerReader().read(plain_route) == [without]


def test_a_token_that_was_held_back_goes_with_the_text_that_it_became_part_of() -> None:
    reader = AnswerReader()
    assert reader.read(with_logprobs({}, entry("\u00e9"))) == []
    pieces = reader.read(with_logprobs({"content": "\u00e9!"}, entry("!")))
    assert pieces == [
        TextDelta("\u00e9!", tuple({**said(each), "top_logprobs": []} for each in ("\u00e9", "!")))
    ]


def test_tokens_of_thinking_and_of_calls_are_not_the_texts() -> None:
    reader = AnswerReader()
    reader.read(with_logprobs({"reasoning_content": "hm"}, entry("hm")))
    reader.read(with_logprobs({"tool_calls": [call(0, "{", id="a", name="f")]}, entry("{")))
    assert reader.read(chunk({"content": "a"})) == [TextDelta("a")]
