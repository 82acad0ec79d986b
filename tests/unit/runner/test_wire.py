"""Requests to the engine and its chunks, as measured on real builds."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import (
    ChatRequest,
    CompletionRequest,
    Done,
    Event,
    FinishReason,
    Message,
    Progress,
    Sampling,
    Text,
    TextDelta,
    ThinkingDelta,
    Timings,
    ToolCallDelta,
    Usage,
)
from daemon.errors import EngineFailed, InvalidRequest, PromptTooLong
from daemon.framing import SseDecoder, sse
from daemon.runner.wire import AnswerReader, body_for, error_from, path_for, plain_texts

CHAT = ChatRequest(
    model="m", messages=(Message("system", (Text("be"), Text("brief"))), Message("user", (Text("hi"),)))
)


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
    return json.dumps({"choices": [{"delta": delta, "finish_reason": reason}], **more}).encode()


def read(*data: bytes) -> list[Event]:
    """The pieces of a whole answer, and its end."""
    reader = AnswerReader()
    return [*(piece for each in data for piece in reader.read(each)), reader.end()]


TEXT = (
    '{"choices":[{"finish_reason":null,"index":0,"delta":{"content":%s}}],"created":1796005290,"id":"chatcmpl-xhxw",'
    '"model":"smollm2","system_fingerprint":"b11311-0c1e570","object":"chat.completion.chunk"}'
)


def plain(text: str) -> bytes:
    return (TEXT % json.dumps(text, ensure_ascii=False)).encode()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_the_short_way_reads_what_the_long_way_reads(texts: list[str]) -> None:
    stream = b"".join(sse(plain(text)) for text in texts)
    pieces, rest = plain_texts(stream)
    decoder, reader = SseDecoder(), AnswerReader()
    pieces += [piece for event in decoder.feed(rest) for piece in reader.read(event.data)]
    assert pieces == [TextDelta(text) for text in texts if text]


def test_the_short_way_takes_plain_texts_and_nothing_else() -> None:
    first = sse(plain("Hello")) + sse(plain(" w\u00f6rld"))
    pieces = [TextDelta("Hello"), TextDelta(" w\u00f6rld")]
    assert plain_texts(first) == (pieces, b"")
    others = [
        sse(plain("a\nb")),
        sse(plain('say "a"')),
        sse(plain("a").replace(b"null", b'"stop"')),
        sse(plain("a")[:-1] + b',"timings":{}}'),
        sse(plain("a").replace(b"content", b"reasoning_content")),
        sse(plain("a").replace(b'"index":0', b'"index":1')),
        sse(plain("")),
        sse(plain("a"))[:-1],
        sse(plain("a").replace(b'"a"', b'"\xff"')),
        sse(plain("a").replace(b'"a"', b'"\x01"')),
        b": comment\n\n",
        b"data: [DONE]\n\n",
    ]
    for other in others:
        assert plain_texts(first + other + first) == (pieces, other + first)


def test_every_request_is_streamed_and_reports_its_prefill() -> None:
    for request in (CHAT, CompletionRequest(model="m", prompt="hi")):
        body = body_for(request)
        assert body["stream"] is True
        assert body["return_progress"] is True


def test_a_chat_request() -> None:
    body = body_for(CHAT)
    assert path_for(CHAT) == "/v1/chat/completions"
    assert body["messages"] == [
        {"role": "system", "content": "bebrief"},
        {"role": "user", "content": "hi"},
    ]
    assert body["stream_options"] == {"include_usage": True}
    assert "temperature" not in body


def test_a_completion_takes_text_or_tokens() -> None:
    text = CompletionRequest(model="m", prompt="hi")
    assert path_for(text) == "/completion"
    assert body_for(text)["prompt"] == "hi"
    assert body_for(CompletionRequest(model="m", prompt=(1, 2)))["prompt"] == [1, 2]


def test_every_sampling_option_reaches_the_engine_under_its_name() -> None:
    sampling = Sampling(
        max_tokens=5, stop=("x",), seed=1, temperature=0.0, top_k=2, top_p=0.5, min_p=0.1, typical_p=0.9,
        repeat_last_n=3, repeat_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.3, num_keep=4,
    )  # fmt: skip
    body = body_for(CompletionRequest(model="m", prompt="p", sampling=sampling))
    expected = {
        "n_predict": 5, "stop": ("x",), "seed": 1, "temperature": 0.0, "top_k": 2, "top_p": 0.5, "min_p": 0.1,
        "typical_p": 0.9, "repeat_last_n": 3, "repeat_penalty": 1.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "n_keep": 4,
    }  # fmt: skip
    assert body.items() >= expected.items()


def test_which_stop_sequence_hit_is_asked_only_when_there_are_some() -> None:
    assert "verbose" not in body_for(CHAT)
    with_stop = ChatRequest(model="m", messages=CHAT.messages, sampling=Sampling(stop=("x",)))
    assert body_for(with_stop)["verbose"] is True


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
        ToolCallDelta(1, '{"a":', "c", "f"),
        Done(FinishReason.STOP, Usage(31, 24, 4), Timings(prompt=0.25, generation=0.5), "END"),
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
        b'{"choices":[{"delta":{"tool_calls":[{"id":3,"function":"f"}]},"finish_reason":"what"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":1e999,"completion_tokens":-1,"prompt_tokens_details":[1]}}',
        b'{"choices":[],"timings":{"prompt_n":2,"prompt_ms":1e999,"predicted_ms":"x"}}',
        b"[DONE]",
    )
    assert events == [TextDelta("a?b"), ToolCallDelta(0), Done(FinishReason.STOP, Usage(2, 0, 0))]


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b"nope", b"[" * 100_000])
def test_what_is_no_json_object_is_a_failure_of_the_engine(data: bytes) -> None:
    with pytest.raises(EngineFailed, match="not a JSON object"):
        AnswerReader().read(data)


def test_a_prompt_beyond_the_window_carries_both_counts() -> None:
    error = error_from(
        {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 4096}, 400
    )
    assert isinstance(error, PromptTooLong)
    assert (error.needed, error.available) == (9000, 4096)


def test_an_error_tells_no_path_of_the_engines_machine() -> None:
    error = error_from({"code": 500, "message": "cannot open /srv/models/x.gguf"}, 500)
    assert error.message == "the engine failed: cannot open <path>"


def test_other_refusals_are_the_clients_fault_and_failures_are_not() -> None:
    assert isinstance(error_from({"code": 400, "message": "bad grammar"}, 400), InvalidRequest)
    assert isinstance(error_from({"code": 500, "message": "oops"}, 500), EngineFailed)
    assert isinstance(error_from("text", 502), EngineFailed)
    assert isinstance(error_from({"code": 401, "message": "key"}, 401), EngineFailed)
