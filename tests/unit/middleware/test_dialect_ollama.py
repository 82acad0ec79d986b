import base64
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from daemon.chat import (
    Audio,
    ChatRequest,
    CompletionRequest,
    Image,
    JsonFormat,
    LoadOptions,
    LoadRequest,
    Message,
    Request,
    Sampling,
    Text,
    TokenRequest,
    Tool,
    ToolCall,
    ToolChoice,
)
from daemon.errors import InvalidRequest, NotSupported
from daemon.middleware import ollama
from daemon.middleware.dialect import Dialect

CREATED = 1_767_323_045.5
CREATED_AT = "2026-01-02T03:04:05.500000000Z"


def parse(dialect: Dialect, **body: Any) -> Request:
    return dialect.parse(json.dumps({"model": "m", **body}).encode())


def chat(*messages: Any, **body: Any) -> ChatRequest:
    request = parse(ollama.CHAT, messages=list(messages), **body)
    assert isinstance(request, ChatRequest)
    return request


def generate(**body: Any) -> Request:
    return parse(ollama.GENERATE, **body)


def user(text: str) -> Message:
    return Message("user", (Text(text),))


HI = {"role": "user", "content": "hi"}


# ---- /api/chat


def test_chat() -> None:
    request = chat(
        {"role": "System", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "thinking": "hm"},
        {"role": "user", "content": "c"},
    )
    assert request == ChatRequest(
        model="m",
        messages=(
            Message("system", (Text("be brief"),)),
            user("a"),
            Message("assistant", (Text("b"),), thinking="hm"),
            user("c"),
        ),
        stream=True,
        truncate=True,
    )


def test_developer_is_system_and_content_may_be_null() -> None:
    request = chat({"role": "developer", "content": "x"}, {"role": "assistant", "content": None}, HI)
    assert request.messages == (Message("system", (Text("x"),)), Message("assistant"), user("hi"))


def test_stream_is_on_unless_switched_off() -> None:
    assert chat(HI).stream is True
    assert chat(HI, stream=None).stream is True
    assert chat(HI, stream=False).stream is False


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": ""}, "model is required"),
        ({"model": 5}, "model must be a string, not 5"),
        ({"messages": {}}, "messages must be an array, not an object"),
        ({"messages": ["hi"]}, 'messages[0] must be an object, not "hi"'),
        ({"messages": [HI, {"role": "robot"}]}, "messages[1].role must be one of"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content must be a string"),
        ({"stream": "yes"}, 'stream must be true or false, not "yes"'),
        ({"keep_alive": "5"}, "keep_alive must be a number of seconds"),
        ({"truncate": 1}, "truncate must be true or false, not 1"),
        ({"shift": "x"}, "shift must be true or false"),
    ],
)
def test_wrong_chat_fields(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(ollama.CHAT, **{"messages": [HI], **body})
    assert caught.value.message.startswith(message)


def test_truncation_is_on_unless_switched_off() -> None:
    assert chat(HI).truncate is True
    assert chat(HI, truncate=None).truncate is True
    assert chat(HI, truncate=False).truncate is False
    raw = generate(prompt="x", raw=True, truncate=False)
    assert isinstance(raw, CompletionRequest)
    assert raw.truncate is False


def test_values_that_mean_off_are_accepted() -> None:
    off = {"tools": [], "format": "", "logprobs": False, "top_logprobs": 0, "_debug_render_only": False}
    message: Any = {**HI, "images": [], "tool_calls": None}
    assert chat(message, **off, shift=True, unknown={"a": 1}) == chat(HI)
    assert chat(message, tools=None, format=None, think=None, tool_choice=None) == chat(HI)


def test_rendering_only_is_refused() -> None:
    for dialect in (ollama.CHAT, ollama.GENERATE):
        with pytest.raises(NotSupported, match=r"^_debug_render_only is not supported; leave it out$"):
            parse(dialect, messages=[HI], prompt="hi", _debug_render_only=True)


# ---- tools


TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def test_tools() -> None:
    request = chat(HI, tools=[TOOL, {"function": {"name": "g"}}])
    assert request.tools == (
        Tool("f", "d", {"type": "object"}),
        Tool("g", "", {"type": "object", "properties": {}}),
    )
    assert request.tool_choice == ToolChoice("auto")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("required", "f")),
    ],
)
def test_tool_choice_is_an_extra_field(given: Any, read: ToolChoice) -> None:
    assert chat(HI, tools=[TOOL], tool_choice=given).tool_choice == read


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice must be "),
        ({"tools": [], "tool_choice": "required"}, 'tool_choice is "required", and there are no tools'),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "g"}}}, 'tool_choice.function.name is "g"'),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name is required"),
        ({"tools": [TOOL, TOOL]}, 'tools[1] has the name "f" of an earlier tool'),
    ],
)
def test_wrong_tools(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(HI, **body)
    assert caught.value.message.startswith(message)


def calling(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def called(name: str, arguments: Any = None, **extra: Any) -> dict[str, Any]:
    return {**extra, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("arguments", ['{"p":"/"}', {"p": "/"}])
def test_arguments_of_an_earlier_call_are_text_or_an_object(arguments: Any) -> None:
    (_, turn) = chat(HI, calling(called("ls", arguments, id="c7"))).messages
    assert turn == Message("assistant", tool_calls=(ToolCall("c7", "ls", '{"p":"/"}'),))


def test_what_a_model_wrote_as_arguments_is_never_refused() -> None:
    (_, turn) = chat(HI, calling(called("f", "{nonsense"), called("g", [1]), called("h"))).messages
    assert [call.arguments for call in turn.tool_calls] == ["{nonsense", "[1]", "{}"]


def result(content: str, **extra: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, **extra}


@pytest.mark.parametrize(
    ("results", "matched"),
    [
        ([result("r", tool_call_id="b")], [("b", "g")]),
        ([result("r", tool_name="g")], [("b", "g")]),
        ([result("r", name="g")], [("b", "g")]),
        ([result("1"), result("2")], [("a", "f"), ("b", "g")]),
        ([result("2", tool_name="g"), result("1")], [("b", "g"), ("a", "f")]),
        ([result("1", tool_name="f"), result("3", tool_name="f")], [("a", "f"), ("c", "f")]),
        ([result("r", tool_name="other")], [("a", "other")]),
        ([result("r", tool_call_id="of an earlier turn")], [("of an earlier turn", None)]),
        ([result(str(n)) for n in range(4)], [("a", "f"), ("b", "g"), ("c", "f"), (None, None)]),
    ],
)
def test_results_find_their_calls(results: list[Any], matched: list[Any]) -> None:
    turn = calling(called("f", {}, id="a"), called("g", {}, id="b"), called("f", {"n": 1}, id="c"))
    _, _, *read = chat(HI, turn, *results).messages
    assert [(message.tool_call_id, message.name) for message in read] == matched
    assert [message.text for message in read] == [given["content"] for given in results]


def test_a_result_answers_the_latest_turn_that_called() -> None:
    *_, last = chat(HI, calling(called("f", id="a")), HI, calling(called("f", id="b")), result("r")).messages
    assert last == Message("tool", (Text("r"),), tool_call_id="b", name="f")


def test_a_result_without_any_call() -> None:
    assert chat(result("r", tool_name="f")).messages == (Message("tool", (Text("r"),), name="f"),)


# ---- images, formats, thinking, log probabilities


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
WAV = base64.b64encode(b"RIFF\0\0\0\0WAVE").decode()


def test_images_and_sound_stand_before_the_text() -> None:
    parts = (Image(PNG, "image/png"), Audio(WAV, "wav"), Text("hi"))
    assert chat({**HI, "images": [PNG, WAV]}).messages == (Message("user", parts),)
    assert chat({"role": "user", "images": [PNG]}).messages == (Message("user", parts[:1]),)
    request = generate(prompt="hi", images=[PNG, WAV])
    assert isinstance(request, ChatRequest)
    assert request.messages == (Message("user", parts),)
    raw = generate(prompt="hi", images=[PNG], raw=True)
    assert isinstance(raw, CompletionRequest)
    assert (raw.prompt, raw.images) == ("hi", (Image(PNG, "image/png"),))
    assert isinstance(generate(images=[PNG]), ChatRequest)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([PNG, "?"], "images[1] is not base64"),
        (["aGk="], "images[0] is neither a PNG, JPEG, GIF, BMP or WebP image nor WAV or MP3 sound"),
        ([5], "images must be a string or an array of strings"),
    ],
)
def test_wrong_images(images: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(HI, {**HI, "images": images})
    assert caught.value.message == f"messages[1].{message}"
    with pytest.raises(InvalidRequest) as caught:
        generate(prompt="hi", images=images)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("json", JsonFormat()),
        ({"type": "object"}, JsonFormat({"type": "object"})),
        ({}, JsonFormat({})),
        ("", None),
        (None, None),
    ],
)
def test_format(given: Any, read: JsonFormat | None) -> None:
    for request in (
        chat(HI, format=given),
        generate(prompt="x", format=given),
        generate(prompt="x", raw=True, format=given),
    ):
        assert isinstance(request, TokenRequest)
        assert request.format == read


@pytest.mark.parametrize(("given", "said"), [("yaml", '"yaml"'), (True, "true"), ([], "an array"), (5, "5")])
def test_wrong_format(given: Any, said: str) -> None:
    for dialect in (ollama.CHAT, ollama.GENERATE):
        with pytest.raises(InvalidRequest) as caught:
            parse(dialect, messages=[HI], prompt="x", format=given)
        assert (
            caught.value.message == f'invalid format: {said}; expected "json" or a valid JSON Schema object'
        )


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (True, True),
        (False, False),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("max", "high"),
        (None, None),
    ],
)
def test_think(given: Any, read: bool | str | None) -> None:
    assert chat(HI, think=given).thinking == read
    request = generate(prompt="x", think=given)
    assert isinstance(request, ChatRequest)
    assert request.thinking == read


@pytest.mark.parametrize("given", ["much", "", 1, []])
def test_wrong_think(given: Any) -> None:
    for dialect in (ollama.CHAT, ollama.GENERATE):
        with pytest.raises(InvalidRequest, match=r"^think must be true, false or one of "):
            parse(dialect, messages=[HI], prompt="x", think=given)


def test_logprobs() -> None:
    assert chat(HI, logprobs=True).sampling == Sampling(logprobs=True)
    assert chat(HI, logprobs=True, top_logprobs=0).sampling == Sampling(logprobs=True)
    assert chat(HI, top_logprobs=3).sampling == Sampling()
    for request in (
        chat(HI, logprobs=True, top_logprobs=20),
        generate(prompt="x", raw=True, logprobs=True, top_logprobs=20),
    ):
        assert isinstance(request, TokenRequest)
        assert request.sampling == Sampling(logprobs=True, top_logprobs=20)


@pytest.mark.parametrize("given", [-1, 21])
def test_wrong_top_logprobs(given: int) -> None:
    for dialect in (ollama.CHAT, ollama.GENERATE):
        with pytest.raises(InvalidRequest, match=r"^top_logprobs must be between 0 and 20$"):
            parse(dialect, messages=[HI], prompt="x", top_logprobs=given)


def test_a_turn_that_is_begun_is_the_last() -> None:
    assert chat(HI, {"role": "assistant", "content": "I am"}).messages[-1] == Message(
        "assistant", (Text("I am"),)
    )


def test_a_message_that_a_model_brings() -> None:
    assert ollama.read_message({"role": "user", "content": "hi"}) == user("hi")
    with pytest.raises(InvalidRequest, match=r"^the model's message role must be one of"):
        ollama.read_message({"role": "robot"})


# ---- requests that only load


@pytest.mark.parametrize(
    ("body", "keep_alive", "reason"),
    [
        ({}, None, "load"),
        ({"keep_alive": "1m"}, 60, "load"),
        ({"keep_alive": -1}, math.inf, "load"),
        ({"keep_alive": 0}, 0, "unload"),
        ({"keep_alive": "0s", "stream": True}, 0, "unload"),
    ],
)
def test_an_empty_request_loads_or_unloads(
    body: dict[str, Any], keep_alive: float | None, reason: str
) -> None:
    for dialect, empty, piece in (
        (ollama.CHAT, {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
        (ollama.CHAT, {}, {"message": {"role": "assistant", "content": ""}}),
        (ollama.GENERATE, {"prompt": ""}, {"response": ""}),
        (ollama.GENERATE, {"raw": True}, {"response": ""}),
    ):
        request = parse(dialect, options={"num_ctx": 64}, **empty, **body)
        assert request == LoadRequest(model="m", load=LoadOptions(window=64), keep_alive=keep_alive)
        reply = dialect.loaded(request, CREATED)
        assert (reply.status, reply.media_type) == (200, "application/json; charset=utf-8")
        head = {"model": "m", "created_at": CREATED_AT}
        assert json.loads(reply.body) == {**head, **piece, "done": True, "done_reason": reason}


# ---- /api/generate


def test_generate_is_a_chat() -> None:
    assert generate(prompt="hi", system="be brief") == ChatRequest(
        model="m",
        messages=(Message("system", (Text("be brief"),)), user("hi")),
        stream=True,
        truncate=True,
        wants_context=True,
    )
    assert generate(prompt="hi", system="", stream=False) == ChatRequest(
        model="m", messages=(user("hi"),), stream=False, truncate=True, wants_context=True
    )


def test_context_stands_before_the_turn() -> None:
    request = generate(prompt="hi", context=[1, 2, 3])
    assert request == ChatRequest(
        model="m", messages=(user("hi"),), stream=True, truncate=True, context=(1, 2, 3), wants_context=True
    )
    assert generate(prompt="hi", context=[]) == generate(prompt="hi", context=None) == generate(prompt="hi")


@pytest.mark.parametrize("context", ["x", {}, [1.5], [True], [-1], [2**31], [[1]], 5])
def test_wrong_context(context: Any) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^context must be an array of token ids, as an earlier answer gave it$"
    ):
        generate(prompt="hi", context=context)


def test_images_are_not_tokens() -> None:
    request = generate(prompt="hi", images=[PNG])
    assert isinstance(request, ChatRequest)
    assert request.wants_context is False
    with pytest.raises(NotSupported, match=r"^context is not supported beside images; "):
        generate(prompt="hi", images=[PNG], context=[1])


def test_raw_generate_is_a_completion() -> None:
    assert generate(prompt="<s>hi", raw=True, stream=False, options={"seed": 3}) == CompletionRequest(
        model="m", prompt="<s>hi", sampling=Sampling(seed=3), stream=False, truncate=True
    )


def test_a_suffix_is_filled_in() -> None:
    between = CompletionRequest(model="m", prompt="def f(", suffix="return 1", stream=True, truncate=True)
    assert generate(prompt="def f(", suffix="return 1") == between
    assert generate(prompt="def f(", suffix="return 1", raw=True) == between
    assert generate(suffix="return 1") == replace(between, prompt="")
    assert isinstance(generate(prompt="def f(", suffix=""), ChatRequest)


@pytest.mark.parametrize(("field", "value"), [("images", [PNG]), ("context", [1])])
def test_nothing_else_stands_beside_a_suffix(field: str, value: Any) -> None:
    with pytest.raises(NotSupported, match=f"^{field} is not supported together with suffix; "):
        generate(prompt="hi", suffix="x", **{field: value})


def test_a_template_belongs_to_a_model() -> None:
    with pytest.raises(
        NotSupported, match=r"^template is not supported; create a model with that TEMPLATE and ask it$"
    ):
        generate(prompt="hi", template="{{ .Prompt }}")
    assert generate(prompt="hi", template="") == generate(prompt="hi")


@pytest.mark.parametrize("field", ["template", "system", "context"])
def test_raw_mode_takes_nothing_else(field: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^raw mode does not support template, system, or context$"):
        generate(prompt="hi", raw=True, **{field: [1] if field == "context" else "x"})
    empty: Any = [] if field == "context" else ""
    assert isinstance(generate(prompt="hi", raw=True, **{field: empty}), CompletionRequest)


def test_generate_wants_text() -> None:
    with pytest.raises(InvalidRequest, match=r"^prompt must be a string, not an array$"):
        generate(prompt=["hi"])
    with pytest.raises(InvalidRequest, match=r"^system must be a string"):
        generate(prompt="hi", system={})
    with pytest.raises(InvalidRequest, match=r"^raw must be true or false"):
        generate(prompt="hi", raw="yes")
