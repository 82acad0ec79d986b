"""Requests to /v1/responses: what they mean, and what is wrong with them."""

import base64
import json
from typing import Any

import pytest

from daemon.chat import (
    Answer,
    Audio,
    ChatRequest,
    Done,
    FinishReason,
    Image,
    JsonFormat,
    Message,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
)
from daemon.errors import EngineFailed, InvalidRequest, MgrError, NotSupported
from daemon.middleware.responses import ResponsesDialect
from daemon.middleware.responses_history import History
from daemon.middleware.responses_request import PreviousNotFound, ResponsesRequest

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n....").decode()
WAV = base64.b64encode(b"RIFF....WAVEfmt ").decode()
TOOLS = [
    {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
    {"type": "function", "name": "g"},
]
F = Tool("f", "d", {"type": "object"})
G = Tool("g", "", {"type": "object", "properties": {}})
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "done"}
STOP = Done(FinishReason.STOP, Usage(30, 20, 7))


def dialect() -> ResponsesDialect:
    return ResponsesDialect(History())


def parsed(body: dict[str, Any], to: ResponsesDialect | None = None) -> ResponsesRequest:
    request = (to or dialect()).parse(json.dumps({"model": "m", "input": "hi", **body}).encode())
    assert isinstance(request, ResponsesRequest)
    return request


def messages(items: Any, **more: Any) -> tuple[Message, ...]:
    return parsed({"input": items, **more}).messages


def refused(body: dict[str, Any]) -> str:
    with pytest.raises((InvalidRequest, NotSupported)) as caught:
        parsed(body)
    assert dialect().error(caught.value).status == 400
    return caught.value.message


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def assistant(text: str, **more: Any) -> Message:
    return Message("assistant", (Text(text),) if text else (), **more)


# ---- input


def test_a_string_is_what_the_user_says() -> None:
    request = parsed({})
    assert (request.model, request.messages, request.stream) == ("m", (user("hi"),), False)


def test_instructions_come_first() -> None:
    system = Message("system", (Text("Be brief."),))
    assert messages("hi", instructions="Be brief.") == (system, user("hi"))


@pytest.mark.parametrize(
    ("role", "canonical"),
    [("user", "user"), ("assistant", "assistant"), ("system", "system"), ("developer", "system")],
)
@pytest.mark.parametrize("typed", [{}, {"type": "message"}])
def test_roles(role: str, canonical: Any, typed: dict[str, str]) -> None:
    assert messages([{**typed, "role": role, "content": "a"}]) == (Message(canonical, (Text("a"),)),)


def test_parts() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b", "annotations": []},
        {"type": "refusal", "refusal": "c"},
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"},
        {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
    ]
    (message,) = messages([{"role": "user", "content": parts}])
    assert message.parts == (Text("a"), Text("b"), Text("c"), Image(PNG, "image/png"), Audio(WAV, "wav"))


def test_the_items_of_a_turn_become_one_message() -> None:
    turn = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "t"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        CALL,
        {**CALL, "call_id": "c2", "name": "g", "arguments": "not json"},
    ]
    calls = (ToolCall("c1", "f", "{}"), ToolCall("c2", "g", "not json"))
    assert messages([{"role": "user", "content": "hi"}, *turn, OUTPUT]) == (
        user("hi"),
        assistant("a", thinking="t", tool_calls=calls),
        Message("tool", (Text("done"),), tool_call_id="c1", name="f"),
    )


def test_text_between_a_call_and_its_result_belongs_to_the_call() -> None:
    called = assistant("wait", tool_calls=(ToolCall("c1", "f", "{}"),))
    assert messages([CALL, {"role": "assistant", "content": "wait"}, OUTPUT])[0] == called


def test_two_texts_are_two_turns() -> None:
    said = [{"role": "assistant", "content": text} for text in ("a", "b")]
    assert messages(said) == (assistant("a"), assistant("b"))


def test_thinking_belongs_to_what_follows_it() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "t"}]}
    said = [{"role": "assistant", "content": text} for text in ("a", "b")]
    assert messages([said[0], thought, said[1]]) == (assistant("a"), assistant("b", thinking="t"))


def test_thinking_that_nothing_came_of_is_left_out() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "t"}]}
    assert messages([thought, {"role": "user", "content": "hi"}, thought]) == (user("hi"),)


@pytest.mark.parametrize(("encrypted", "thinking"), [("mgr:t", "t"), ("gAAAAAB", None)])
def test_only_what_mgr_encrypted_is_read(encrypted: str, thinking: str | None) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted}
    said = {"role": "assistant", "content": "a"}
    assert messages([thought, said]) == (assistant("a", thinking=thinking),)


def test_the_result_of_a_call_may_have_parts() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
    ]
    assert messages([CALL, {**OUTPUT, "output": parts}])[1].parts == (Text("a"), Image(PNG, "image/png"))


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([], "input must hold at least one item"),
        (None, "input must hold at least one item"),
        (5, "input must be a string or an array of items, not 5"),
        (["hi"], "input[0] must be an object"),
        ([{"role": "tool", "content": "a"}], "input[0].role must be one of user, assistant"),
        ([{"role": "user"}], "input[0].content is required"),
        (
            [OUTPUT, {"type": "web_search_call", "id": "ws"}],
            'input[1].type "web_search_call" is not supported',
        ),
        ([{"type": "item_reference", "id": "msg_1"}], 'input[0].id is "msg_1", which is not (or no longer)'),
        ([{"id": "msg_1"}], 'input[0].id is "msg_1", which is not (or no longer)'),
        ([{"type": "function_call", "name": "f"}], "input[0].call_id is required"),
        ([{**OUTPUT, "output": 5}], "input[0].output must be a string, not 5"),
    ],
)
def test_wrong_items_are_named(items: Any, problem: str) -> None:
    assert refused({"input": items}).startswith(problem)


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "input_file", "file_id": "f"}, 'type "input_file" is not supported'),
        ({"type": "input_image", "file_id": "f"}, "file_id is not supported"),
        (
            {"type": "input_image", "image_url": "https://a/b.png"},
            "image_url is a link, and mgr fetches none",
        ),
        ({"type": "video"}, 'type "video" is not supported'),
    ],
)
def test_wrong_parts_are_named(part: dict[str, Any], problem: str) -> None:
    assert refused({"input": [{"role": "user", "content": [part]}]}).startswith(
        f"input[0].content[0].{problem}"
    )


# ---- options


def test_sampling() -> None:
    body = {"max_output_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 7, "stop": ["x"]}
    expected = Sampling(max_tokens=5, temperature=0.5, top_p=0.9, top_k=3, seed=7, stop=("x",))
    request = parsed({**body, "keep_alive": "5m"})
    assert (request.sampling, request.keep_alive) == (expected, 300)


@pytest.mark.parametrize(
    ("body", "logprobs", "top"),
    [
        ({}, None, None),
        ({"include": ["message.output_text.logprobs"]}, True, None),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, True, 2),
        ({"top_logprobs": 2}, True, 2),
        ({"top_logprobs": 0}, None, None),
        ({"include": ["file_search_call.results"]}, None, None),
    ],
)
def test_logprobs(body: dict[str, Any], logprobs: bool | None, top: int | None) -> None:
    sampling = parsed(body).sampling
    assert (sampling.logprobs, sampling.top_logprobs) == (logprobs, top)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonFormat()),
        ({"type": "json_schema", "name": "n", "schema": {"type": "array"}}, JsonFormat({"type": "array"})),
        ({"type": "json_schema", "name": "n", "schema": {}}, JsonFormat({})),
    ],
)
def test_format(chosen: dict[str, Any], expected: JsonFormat | None) -> None:
    assert parsed({"text": {"format": chosen, "verbosity": "low"}}).format == expected


@pytest.mark.parametrize(
    ("effort", "thinking"), [("none", False), ("minimal", "low"), ("high", "high"), (None, None)]
)
def test_effort(effort: str | None, thinking: Any) -> None:
    assert parsed({"reasoning": {"effort": effort}}).thinking == thinking


@pytest.mark.parametrize(
    ("choice", "canonical", "tools"),
    [
        (None, ToolChoice(), (F, G)),
        ("none", ToolChoice("none"), (F, G)),
        ("required", ToolChoice("required"), (F, G)),
        ({"type": "function", "name": "g"}, ToolChoice("required", "g"), (F, G)),
        ({"type": "allowed_tools", "mode": "auto", "tools": [TOOLS[1]]}, ToolChoice(), (G,)),
        ({"type": "allowed_tools", "mode": "required", "tools": [TOOLS[0]]}, ToolChoice("required"), (F,)),
    ],
)
def test_tools(choice: Any, canonical: ToolChoice, tools: tuple[Tool, ...]) -> None:
    request = parsed({"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False})
    assert (request.tool_choice, request.tools, request.parallel_tool_calls) == (canonical, tools, False)


@pytest.mark.parametrize(("truncation", "truncate"), [("auto", True), ("disabled", False), (None, False)])
def test_truncation(truncation: str | None, truncate: bool) -> None:
    assert parsed({"truncation": truncation}).truncate is truncate


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"model": None}, "model is required"),
        ({"background": True}, "background is not supported"),
        ({"conversation": "conv_1"}, "conversation is not supported"),
        ({"prompt": {"id": "p"}}, "prompt refers to a stored prompt"),
        ({"tools": [{"type": "web_search"}]}, 'tools[0].type "web_search" is not supported'),
        ({"tools": [TOOLS[0], TOOLS[0]]}, 'tools[1] has the name "f" of an earlier tool'),
        ({"tool_choice": "required"}, 'tool_choice is "required", and there are no tools'),
        ({"tool_choice": {"type": "file_search"}}, 'tool_choice.type "file_search" is not supported'),
        (
            {"tool_choice": {"type": "function", "name": "h"}, "tools": TOOLS},
            'tool_choice.name is "h", which',
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}, "tools": TOOLS},
            "tool_choice.tools must name at least one tool",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema is required"),
        ({"text": {"format": {"type": "grammar"}}}, 'text.format.type "grammar" is not supported'),
        ({"text": {"verbosity": "loud"}}, "text.verbosity must be one of medium, low, high"),
        ({"truncation": "middle"}, "truncation must be one of disabled, auto"),
        ({"reasoning": {"effort": "some"}}, "reasoning.effort must be true, false or one of none"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary must be one of auto, concise, detailed"),
        ({"metadata": {"k": 5}}, "metadata must hold strings only"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata has 17 entries; at most 16"),
        ({"max_output_tokens": 0}, "max_output_tokens must be an integer from 1"),
        ({"top_logprobs": 21}, "top_logprobs must be an integer from 0 to 20"),
    ],
)
def test_wrong_options_are_named(body: dict[str, Any], problem: str) -> None:
    assert refused(body).startswith(problem)


# ---- answers


def replied(to: ResponsesDialect, body: dict[str, Any], answer: Answer) -> dict[str, Any]:
    reply = to.reply(parsed(body, to), answer, 5.5)
    assert reply.status == 200
    result: dict[str, Any] = json.loads(reply.body)
    return result


def test_options_are_echoed() -> None:
    body = {
        "instructions": "i",
        "max_output_tokens": 5,
        "max_tool_calls": 2,
        "metadata": {"k": "v"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "p",
        "reasoning": {"effort": "low", "summary": "concise"},
        "safety_identifier": "s",
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "json_object"}, "verbosity": "high"},
        "tool_choice": {"type": "function", "name": "f"},
        "top_logprobs": 2,
        "top_p": 0.5,
        "truncation": "auto",
        "user": "u",
    }
    answer = replied(dialect(), {**body, "tools": TOOLS}, Answer("a", "", (), STOP))
    assert {key: answer[key] for key in body} == body
    assert answer["tools"][0] == TOOLS[0]
    assert (answer["model"], answer["object"], answer["created_at"]) == ("m", "response", 5)


def test_usage_and_end() -> None:
    answer = replied(dialect(), {}, Answer("a", "", (), STOP))
    assert answer["usage"] == {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 37,
    }
    assert (answer["status"], answer["completed_at"], answer["error"]) == ("completed", 5, None)
    assert "truncated" not in answer
    assert "warnings" not in answer


def test_text_and_calls_both_appear() -> None:
    calls = (ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "g", "{}"))
    answer = replied(dialect(), {}, Answer("a", "t", calls, Done(FinishReason.TOOL_CALLS)))
    kinds = [(item["type"], item["status"]) for item in answer["output"]]
    assert kinds == [
        (kind, "completed") for kind in ("reasoning", "message", "function_call", "function_call")
    ]
    assert len({item["id"] for item in answer["output"]}) == 4
    assert [item["call_id"] for item in answer["output"][2:]] == ["c1", "c2"]
    assert answer["status"] == "completed"


def test_a_cut_answer_is_incomplete() -> None:
    done = Done(FinishReason.LENGTH, truncated=True, warnings=("cut",))
    answer = replied(dialect(), {}, Answer("a", "t", (), done))
    assert (answer["status"], answer["completed_at"]) == ("incomplete", None)
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in answer["output"]] == ["completed", "incomplete"]
    assert (answer["truncated"], answer["warnings"]) == (True, ["cut"])


def test_an_empty_answer_is_an_empty_message() -> None:
    answer = replied(dialect(), {}, Answer("", "", (), STOP))
    (message,) = answer["output"]
    assert message["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]


def test_thinking_that_was_cut_is_no_message() -> None:
    answer = replied(dialect(), {}, Answer("", "t", (), Done(FinishReason.LENGTH)))
    assert [(item["type"], item["status"]) for item in answer["output"]] == [("reasoning", "incomplete")]


@pytest.mark.parametrize(
    ("body", "place", "kind"),
    [({}, "content", "reasoning_text"), ({"reasoning": {"summary": "auto"}}, "summary", "summary_text")],
)
def test_thinking_is_shown_as_text_or_as_a_summary(body: dict[str, Any], place: str, kind: str) -> None:
    item = replied(dialect(), body, Answer("a", "t", (), STOP))["output"][0]
    other = "summary" if place == "content" else "content"
    assert (item[place], item[other]) == ([{"type": kind, "text": "t"}], [])
    assert "encrypted_content" not in item


def test_encrypted_thinking_can_be_sent_back_alone() -> None:
    body = {"include": ["reasoning.encrypted_content"], "store": False}
    thought, said = replied(dialect(), body, Answer("a", "t", (), STOP))["output"]
    thought["content"] = None
    assert messages([thought, said]) == (assistant("a", thinking="t"),)


def test_logprobs_have_all_fields() -> None:
    entry = {"token": "é", "logprob": -0.5, "id": 7, "top_logprobs": [{"token": "a", "logprob": -1}]}
    body = {"include": ["message.output_text.logprobs"]}
    (message,) = replied(dialect(), body, Answer("é", "", (), STOP, (entry,)))["output"]
    alternatives = [{"token": "a", "logprob": -1, "bytes": [97]}]
    assert message["content"][0]["logprobs"] == [
        {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": alternatives}
    ]


def test_a_request_of_another_dialect_is_a_mistake() -> None:
    with pytest.raises(TypeError):
        dialect().encoder(ChatRequest(model="m", messages=(user("hi"),)), 0)


# ---- what is remembered


def test_a_conversation_goes_on() -> None:
    to = dialect()
    first = replied(to, {"instructions": "old"}, Answer("a", "t", (ToolCall("c1", "f", "{}"),), STOP))
    body = {"previous_response_id": first["id"], "instructions": "new", "input": [OUTPUT]}
    expected = (
        user("hi"),
        assistant("a", thinking="t", tool_calls=(ToolCall("c1", "f", "{}"),)),
        Message("tool", (Text("done"),), tool_call_id="c1", name="f"),
    )
    request = parsed(body, to)
    assert request.messages == (Message("system", (Text("new"),)), *expected)
    second = replied(to, body, Answer("b", "", (), STOP))
    assert second["previous_response_id"] == first["id"]
    third = parsed({"previous_response_id": second["id"]}, to)
    assert third.messages == (*expected, assistant("b"), user("hi"))


def test_a_begun_turn_is_remembered_whole() -> None:
    to = dialect()
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}]
    first = replied(to, {"input": begun}, Answer(" upon", "", (), STOP))
    request = parsed({"previous_response_id": first["id"], "input": "on"}, to)
    assert [message.text for message in request.messages] == ["hi", "Once upon", "on"]


def test_items_can_be_referred_to() -> None:
    to = dialect()
    first = replied(to, {}, Answer("a", "t", (), STOP))
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    request = parsed({"input": [*references, {"role": "user", "content": "on"}]}, to)
    assert request.messages == (assistant("a", thinking="t"), user("on"))


def test_nothing_is_remembered_unless_stored() -> None:
    to = dialect()
    first = replied(to, {"store": False}, Answer("a", "", (), STOP))
    with pytest.raises(PreviousNotFound) as caught:
        parsed({"previous_response_id": first["id"]}, to)
    reply = to.error(caught.value)
    envelope = json.loads(reply.body)["error"]
    assert (reply.status, envelope["type"]) == (400, "invalid_request_error")
    assert (envelope["code"], envelope["param"]) == ("previous_response_not_found", "previous_response_id")
    assert envelope["message"].startswith(f'Previous response with id "{first["id"]}" not found')


def test_stored_responses_can_be_read_and_deleted() -> None:
    to = dialect()
    first = replied(to, {}, Answer("a", "", (), STOP))
    kept = to.retrieve(first["id"])
    assert (kept.status, json.loads(kept.body)) == (200, first)
    deleted = to.delete(first["id"])
    assert json.loads(deleted.body) == {"id": first["id"], "object": "response", "deleted": True}
    for gone in (to.retrieve(first["id"]), to.delete(first["id"])):
        assert gone.status == 404
        assert json.loads(gone.body)["error"]["message"] == f'Response with id "{first["id"]}" not found'


def test_errors_are_openais() -> None:
    error: MgrError = EngineFailed("it broke")
    envelope = {"message": "it broke", "type": "api_error", "param": None, "code": None}
    assert json.loads(dialect().error(error).body) == {"error": envelope}
