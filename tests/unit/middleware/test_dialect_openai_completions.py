import json
import re
from typing import Any

import pytest

from daemon.chat import (
    Answer,
    Batch,
    Choice,
    CompletionRequest,
    Done,
    Event,
    FinishReason,
    Progress,
    Sampling,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
)
from daemon.errors import EngineFailed, InvalidRequest, NotSupported
from daemon.framing import SseDecoder
from daemon.middleware.openai_completions import COMPLETIONS

CREATED = 1_767_323_045.9
DONE = Done(FinishReason.STOP, Usage(30, 20, 7))
TOP = [{"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "b", "logprob": -1.5, "bytes": [98]}]


def scored(token: str, top: list[Any] | None = None) -> dict[str, Any]:
    return {"token": token, "logprob": -0.5, "bytes": [*token.encode()], "top_logprobs": top or []}


def parse_any(**body: Any) -> Any:
    return COMPLETIONS.parse(json.dumps({"model": "m", "prompt": "hi", **body}).encode())


def parse(**body: Any) -> CompletionRequest:
    request = parse_any(**body)
    assert isinstance(request, CompletionRequest)
    return request


def batch(**body: Any) -> Batch:
    request = parse_any(**body)
    assert isinstance(request, Batch)
    return request


# ---- requests


def test_minimal() -> None:
    assert parse() == CompletionRequest(model="m", prompt="hi")


def test_options() -> None:
    request = parse(
        suffix="end",
        echo=True,
        stream=True,
        max_tokens=5,
        seed=3,
        stop=["x"],
        temperature=0,
        logit_bias={"7": -1},
        keep_alive="5m",
        truncate=True,
        best_of=1,
        user="ann",
    )
    assert request == CompletionRequest(
        model="m",
        prompt="hi",
        suffix="end",
        echo=True,
        stream=True,
        include_usage=False,
        sampling=Sampling(max_tokens=5, seed=3, stop=("x",), temperature=0, logit_bias=((7, -1.0),)),
        keep_alive=300,
        truncate=True,
    )
    assert parse(stream=True, stream_options={"include_usage": True}).include_usage is True


def test_logprobs_are_a_number() -> None:
    assert parse(logprobs=0).sampling == Sampling(logprobs=True)
    assert parse(logprobs=5).sampling == Sampling(logprobs=True, top_logprobs=5)
    assert parse(logprobs=None).sampling == Sampling()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", ("",)),
        ("a", ("a",)),
        (["a"], ("a",)),
        ([1, 2], ((1, 2),)),
        ([[1, 2]], ((1, 2),)),
        (["a", "b"], ("a", "b")),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [1]], ("a", (1,))),
    ],
)
def test_prompts(prompt: Any, expected: Any) -> None:
    request = parse_any(prompt=prompt)
    requests: Any = request.requests if isinstance(request, Batch) else (request,)
    assert tuple(each.prompt for each in requests) == expected


def test_each_prompt_has_its_n_answers_in_openais_order() -> None:
    requests: Any = batch(prompt=["a", "b"], n=2, seed=5).requests
    assert [(request.prompt, request.sampling.seed) for request in requests] == [
        ("a", 5),
        ("a", 6),
        ("b", 5),
        ("b", 6),
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": None}, "model is required"),
        ({"prompt": None}, "prompt is required"),
        ({"prompt": 5}, "prompt must be a string, token ids or an array of those, not 5"),
        ({"prompt": []}, "prompt must have 1 to 2048 entries, not 0"),
        ({"prompt": ["a", 5]}, "prompt[1] must be a string or an array of token ids, not 5"),
        ({"prompt": [1, "a"]}, 'prompt[1] must be a token id, not "a"'),
        ({"prompt": [[1], [-1]]}, "prompt[1][0] must be a token id, not -1"),
        ({"prompt": [[1, True]]}, "prompt[0][1] must be a token id, not true"),
        ({"prompt": [1, 2**31]}, "prompt[1] must be a token id, not 2147483648"),
        ({"prompt": ["a"] * 129}, "n asks for 129 answers in all; at most 128 are given at once"),
        ({"n": 17}, "n must be an integer from 1 to 16, not 17"),
        ({"n": 3, "best_of": 2}, "best_of must not be less than n, which is 3, not 2"),
        ({"logprobs": 21}, "logprobs must be an integer from 0 to 20, not 21"),
        ({"logprobs": True}, "logprobs must be an integer from 0 to 20, not true"),
        ({"max_tokens": 0}, "max_tokens must be an integer from 1 to"),
        ({"suffix": 1}, "suffix must be a string, not 1"),
        ({"echo": 1}, "echo must be true or false, not 1"),
    ],
)
def test_wrong_fields(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_any(**body)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"best_of": 2}, "best_of above n is not supported; leave it out"),
        ({"echo": True, "logprobs": 1}, "echo with logprobs is not supported"),
        ({"echo": True, "prompt": [1, 2]}, "echo of token ids is not supported"),
    ],
)
def test_what_is_not_built_is_said(body: dict[str, Any], message: str) -> None:
    with pytest.raises(NotSupported) as caught:
        parse_any(**body)
    assert caught.value.message.startswith(message)
    assert COMPLETIONS.error(caught.value).status == 400


# ---- answers


def chunks(output: bytes) -> list[Any]:
    datas = [event.data for event in SseDecoder().feed(output)]
    return ["[DONE]" if data == b"[DONE]" else json.loads(data) for data in datas]


def stream(*events: Event, **body: Any) -> list[Any]:
    encoder = COMPLETIONS.encoder(parse(stream=True, **body), CREATED)
    return chunks(b"".join([encoder.feed(event) for event in events] + [encoder.finish()]))


def piece(text: str, reason: str | None = None, logprobs: Any = None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def test_stream() -> None:
    first, second, last, end = stream(Progress(1, 2), TextDelta("Hi"), TextDelta(" you"), DONE)
    assert re.fullmatch(r"cmpl-[0-9a-f]{24}", first["id"])
    assert first == {
        "id": first["id"],
        "object": "text_completion",
        "created": 1_767_323_045,
        "model": "m",
        "system_fingerprint": "fp_mgr",
        "choices": [piece("Hi")],
    }
    assert second["choices"] == [piece(" you")]
    assert last["choices"] == [piece("", "stop")]
    assert {chunk["id"] for chunk in (second, last)} == {first["id"]}
    assert end == "[DONE]"


def test_stream_with_usage() -> None:
    *_, last, usage, end = stream(
        TextDelta("Hi"), Done(FinishReason.LENGTH, DONE.usage), stream_options={"include_usage": True}
    )
    assert last["choices"] == [piece("", "length")]
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 37
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 20}
    assert end == "[DONE]"


def test_only_a_chat_thinks_and_calls() -> None:
    only, _ = stream(ThinkingDelta("hm"), ToolCallDelta(0, "{}", "c", "f"), Done(FinishReason.TOOL_CALLS))
    assert only["choices"] == [piece("", "stop")]


def test_echo_comes_first_and_once() -> None:
    first, second, _, _ = stream(TextDelta("a"), TextDelta("b"), DONE, echo=True)
    assert [first["choices"], second["choices"]] == [[piece("hia")], [piece("b")]]
    only, _ = stream(DONE, echo=True)
    assert only["choices"] == [piece("hi", "stop")]
    body = json.loads(COMPLETIONS.reply(parse(echo=True), Answer("a", "", (), DONE), CREATED).body)
    assert body["choices"][0]["text"] == "hia"


def test_logprobs_in_the_older_shape() -> None:
    entries = (scored("Hi", TOP), scored(" yöu"), scored("!"))
    expected = {
        "tokens": ["Hi", " yöu", "!"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"a": -0.5, "b": -1.5}, {}, {}],
        "text_offset": [0, 2, 6],
    }
    body = json.loads(
        COMPLETIONS.reply(parse(logprobs=2), Answer("Hi yöu!", "", (), DONE, entries), CREATED).body
    )
    assert body["choices"] == [piece("Hi yöu!", "stop", expected)]
    first, second, last, _ = stream(
        TextDelta("Hi", entries[:1]), TextDelta(" yöu!", entries[1:]), DONE, logprobs=2
    )
    assert first["choices"][0]["logprobs"]["text_offset"] == [0]
    assert second["choices"] == [
        piece(
            " yöu!",
            logprobs={
                "tokens": [" yöu", "!"],
                "token_logprobs": [-0.5, -0.5],
                "top_logprobs": None,
                "text_offset": [2, 6],
            },
        )
    ]
    assert last["choices"] == [piece("", "stop")]


def test_whole_answer() -> None:
    done = Done(FinishReason.LENGTH, Usage(30, 20, 7), truncated=True)
    body = json.loads(COMPLETIONS.reply(parse(), Answer("Hi", "", (), done), CREATED).body)
    assert re.fullmatch(r"cmpl-[0-9a-f]{24}", body.pop("id"))
    assert body == {
        "object": "text_completion",
        "created": 1_767_323_045,
        "model": "m",
        "system_fingerprint": "fp_mgr",
        "choices": [piece("Hi", "length")],
        "usage": {
            "prompt_tokens": 30,
            "completion_tokens": 7,
            "total_tokens": 37,
            "prompt_tokens_details": {"cached_tokens": 20},
        },
        "truncated": True,
    }


def test_each_prompt_counts_once_however_many_answers_it_has() -> None:
    request = batch(prompt=["a", "b"], n=2)
    ends = [Done(FinishReason.STOP, Usage(prompt, 0, 1)) for prompt in (10, 10, 5, 5)]
    answers = [Answer(str(index), "", (), end) for index, end in enumerate(ends)]
    body = json.loads(COMPLETIONS.replies(request, answers, CREATED).body)
    assert body["choices"] == [piece(str(index), "stop", index=index) for index in range(4)]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (15, 4)


def test_several_answers_in_one_stream() -> None:
    request = batch(prompt=["a", "b"], echo=True, stream=True)
    encoder = COMPLETIONS.batch_encoder(request, CREATED)
    output = encoder.feed_choice(Choice(1, TextDelta("y"))) + encoder.feed_choice(Choice(1, DONE))
    output += encoder.feed_choice(Choice(0, TextDelta("x"))) + encoder.feed_choice(Choice(0, DONE))
    *pieces, end = chunks(output + encoder.finish())
    assert [chunk["choices"] for chunk in pieces] == [
        [piece("by", index=1)],
        [piece("", "stop", index=1)],
        [piece("ax", index=0)],
        [piece("", "stop", index=0)],
    ]
    assert end == "[DONE]"


def test_error_in_a_stream_ends_it_without_done() -> None:
    encoder = COMPLETIONS.encoder(parse(stream=True), CREATED)
    (error,) = chunks(encoder.fail(EngineFailed("the engine stopped")) + encoder.finish())
    assert error["error"]["message"] == "the engine stopped"
