"""OpenAI's official client reads what the dialect writes; every chunk and reply is validated against its types.

It runs with a transport that answers from memory, with a keep-alive before every event.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import openai as sdk
import pydantic
import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from daemon.chat import (
    Batch,
    ChatRequest,
    Choice,
    Done,
    Embeddings,
    EmbedRequest,
    Event,
    FinishReason,
    JsonFormat,
    Message,
    Progress,
    Request,
    Text,
    TextDelta,
    ThinkingDelta,
    Tool,
    ToolCallDelta,
    ToolChoice,
    Usage,
)
from daemon.errors import Busy, EngineFailed, MgrError, ModelNotFound, PromptTooLong, Unauthorized
from daemon.framing import SseDecoder
from daemon.middleware import openai
from daemon.middleware.dialect import Dialect, Reply
from daemon.middleware.openai_completions import COMPLETIONS
from daemon.middleware.openai_embeddings import EMBEDDINGS
from tests.fakes.answers import assemble

ROUTES: Mapping[str, Dialect] = {
    "/v1/chat/completions": openai.CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/embeddings": EMBEDDINGS,
}
WHOLE: Mapping[str, Any] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/embeddings": CreateEmbeddingResponse,
}
CHUNKS: Mapping[str, Any] = {"/v1/chat/completions": ChatCompletionChunk, "/v1/completions": Completion}
OURS = {"reasoning", "reasoning_content", "truncated", "warnings"}

MESSAGES: Any = [{"role": "user", "content": "hi"}]
DONE = Done(FinishReason.STOP, Usage(30, 20, 7))
HELLO: list[Event] = [Progress(10, 30, 20), TextDelta("Hi"), TextDelta(" \u2028you"), DONE]
CALLS: list[Event] = [
    ThinkingDelta("hm"),
    TextDelta("Let me look."),
    ToolCallDelta(0, "", "call_a", "f"),
    ToolCallDelta(0, '{"x"'),
    ToolCallDelta(0, ":1}"),
    ToolCallDelta(1, "{}", "call_b", "g"),
    replace(DONE, reason=FinishReason.TOOL_CALLS),
]
SCORED = {
    "token": "Hi",
    "logprob": -0.5,
    "bytes": [72, 105],
    "top_logprobs": [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}],
}
F: Any = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
G: Any = {"type": "function", "function": {"name": "g"}}


# ---- the validator


def valid(model: Any, data: bytes) -> None:
    """Nothing that the type requires is missing, nothing has another type, and nothing is added but what is ours."""
    value = json.loads(data)
    if model is Completion:
        # The types say that a reason is always there; the API sends null until a choice ends.
        for choice in value["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
    found = model.model_validate_json(json.dumps(value), strict=True)
    assert extras(found) <= OURS


def extras(value: Any) -> set[str]:
    """The names of all fields that the types do not know."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {name for item in value for name in extras(item)}
    if not isinstance(value, pydantic.BaseModel):
        return set()
    inside = {name for key in type(value).model_fields for name in extras(getattr(value, key))}
    return inside | set(value.model_extra or {})


# ---- a server


class Server:
    """Answers with these events, one list for each choice, and remembers what it was asked."""

    def __init__(self, *answers: list[Event], error: MgrError | None = None) -> None:
        self._answers = answers
        self._error = error
        self.requests: list[Request] = []

    def answer(self, path: str, body: bytes) -> Reply:
        dialect = ROUTES[path]
        request = dialect.parse(body)
        self.requests.append(request)
        if isinstance(request, EmbedRequest):
            vectors = tuple((0.5, float(index)) for index in range(len(request.inputs)))
            reply = dialect.embedded(request, Embeddings(vectors, 7), 0)
            if request.base64:  # the client's types are those of what it makes of that
                return reply
        elif request.stream:  # type: ignore[union-attr]
            return self._stream(path, request)
        elif self._error is not None:
            return dialect.error(self._error)
        else:
            reply = self._whole(dialect, request)
        valid(WHOLE[path], reply.body)
        return reply

    def _whole(self, dialect: Dialect, request: Any) -> Reply:
        answers = [assemble(events) for events in self._answers]
        if isinstance(request, Batch):
            return dialect.replies(request, answers, 0)
        return dialect.reply(request, answers[0], 0)

    def _stream(self, path: str, request: Any) -> Reply:
        dialect, output = ROUTES[path], b""
        if isinstance(request, Batch):
            batch = dialect.batch_encoder(request, 0)
            for index, events in reversed([*enumerate(self._answers)]):
                for event in events:
                    output += batch.keep_alive() + batch.feed_choice(Choice(index, event))
            output += batch.finish()
        else:
            encoder = dialect.encoder(request, 0)
            for event in self._answers[0]:
                output += encoder.keep_alive() + encoder.feed(event)
            output += encoder.fail(self._error) if self._error else encoder.finish()
        for chunk in SseDecoder().feed(output):
            if chunk.data != b"[DONE]" and not chunk.data.startswith(b'{"error"'):
                valid(CHUNKS[path], chunk.data)
        return Reply(200, output, dialect.stream_media_type)


def client_of(server: Server) -> Any:
    bases: tuple[type, ...] = sdk.DefaultHttpxClient.__mro__
    names = [base.__module__.partition(".")[0] for base in bases]
    http: Any = importlib.import_module(next(name for name in names if name.startswith("httpx")))

    def handle(request: Any) -> Any:
        reply = server.answer(request.url.path, request.content)
        headers = {"content-type": reply.media_type, **reply.headers}
        return http.Response(reply.status, content=reply.body, headers=headers)

    return sdk.OpenAI(
        base_url="http://mgr.test/v1",
        api_key="none",
        http_client=http.Client(transport=http.MockTransport(handle)),
        max_retries=0,
    )


# ---- chats


def test_whole_answer() -> None:
    with client_of(Server(HELLO)) as client:
        answer = client.chat.completions.create(model="m", messages=MESSAGES)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Hi \u2028you", "stop")
    assert choice.message.refusal is choice.logprobs is choice.message.tool_calls is None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        30,
        7,
        37,
    )
    assert answer.usage.prompt_tokens_details.cached_tokens == 20


def test_stream() -> None:
    with client_of(Server(HELLO)) as client:
        *deltas, last, usage = client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    assert "".join(chunk.choices[0].delta.content for chunk in deltas) == "Hi \u2028you"
    assert [chunk.choices[0].delta.role for chunk in deltas] == ["assistant", None]
    assert [chunk.choices[0].finish_reason for chunk in [*deltas, last]] == [None, None, "stop"]
    assert all(chunk.usage is None for chunk in [*deltas, last])
    assert (usage.choices, usage.usage.prompt_tokens_details.cached_tokens) == ([], 20)


def test_calls_in_a_stream_have_the_shape_of_openai() -> None:
    with client_of(Server(CALLS)) as client:
        chunks = list(client.chat.completions.create(model="m", messages=MESSAGES, tools=[F, G], stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [(call.index, call.id, call.type, call.function.name) for call in calls] == [
        (0, "call_a", "function", "f"),
        (0, None, None, None),
        (0, None, None, None),
        (1, "call_b", "function", "g"),
    ]
    assert [call.function.arguments for call in calls] == ["", '{"x"', ":1}", "{}"]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 6 + ["tool_calls"]
    thinking = [getattr(chunk.choices[0].delta, "reasoning_content", None) for chunk in chunks]
    assert thinking == ["hm"] + [None] * 6


def test_stream_helper_puts_calls_together() -> None:
    server = Server(CALLS)
    with (
        client_of(server) as client,
        client.chat.completions.stream(
            model="m", messages=MESSAGES, tools=[F, G], tool_choice="required"
        ) as stream,
    ):
        kinds = [event.type for event in stream]
        answer = stream.get_final_completion()
    message = answer.choices[0].message
    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("call_a", "f", '{"x":1}'),
        ("call_b", "g", "{}"),
    ]
    assert message.content == "Let me look."
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.count("content.done") == 1
    assert server.requests[0].tool_choice == ToolChoice("required")  # type: ignore[union-attr]


def test_a_loop_of_tools() -> None:
    server = Server(CALLS)
    with client_of(server) as client:
        first = client.chat.completions.create(model="m", messages=MESSAGES, tools=[F, G])
        called = first.choices[0].message
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": call.function.name}
            for call in called.tool_calls
        ]
        history = [*MESSAGES, called.to_dict(), *results]
        client.chat.completions.create(model="m", messages=history, tools=[F, G])
    request = server.requests[1]
    assert isinstance(request, ChatRequest)
    assert request.tools[0] == Tool("f", "", F["function"]["parameters"])
    assert [call.arguments for call in request.messages[1].tool_calls] == ['{"x":1}', "{}"]
    assert request.messages[1].thinking == "hm"
    assert request.messages[2:] == (
        Message("tool", (Text("f"),), tool_call_id="call_a", name="f"),
        Message("tool", (Text("g"),), tool_call_id="call_b", name="g"),
    )


class Person(pydantic.BaseModel):
    name: str
    age: int


ANN: list[Event] = [TextDelta('{"name":"Ann",'), TextDelta('"age":7}'), DONE]


def test_structured_output() -> None:
    server = Server(ANN)
    with client_of(server) as client:
        answer = client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ann", age=7)
    request = server.requests[0]
    assert isinstance(request, ChatRequest)
    assert isinstance(request.format, JsonFormat)
    assert isinstance(request.format.schema, Mapping)
    assert set(request.format.schema["properties"]) == {"name", "age"}


def test_structured_output_in_a_stream() -> None:
    with (
        client_of(Server(ANN)) as client,
        client.chat.completions.stream(model="m", messages=MESSAGES, response_format=Person) as stream,
    ):
        answer = stream.get_final_completion()
    assert answer.choices[0].message.parsed == Person(name="Ann", age=7)


def test_an_answer_that_was_cut_is_not_taken_for_structured_output() -> None:
    cut: list[Event] = [TextDelta('{"name":'), replace(DONE, reason=FinishReason.LENGTH)]
    with client_of(Server(cut)) as client, pytest.raises(sdk.LengthFinishReasonError):
        client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Person)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(stream: bool) -> None:
    with client_of(Server([TextDelta("Hi", (SCORED,)), DONE])) as client:
        asked = {"model": "m", "messages": MESSAGES, "logprobs": True, "top_logprobs": 1}
        if stream:
            with client.chat.completions.stream(**asked) as chunks:
                answer = chunks.get_final_completion()
        else:
            answer = client.chat.completions.create(**asked)
    (entry,) = answer.choices[0].logprobs.content
    assert (entry.token, entry.logprob, entry.bytes) == ("Hi", -0.5, [72, 105])
    assert [top.token for top in entry.top_logprobs] == ["Hi"]


@pytest.mark.parametrize("stream", [False, True])
def test_two_choices(stream: bool) -> None:
    server = Server(HELLO, CALLS)
    with client_of(server) as client:
        asked = {"model": "m", "messages": MESSAGES, "n": 2, "seed": 5, "tools": [F, G]}
        if stream:
            with client.chat.completions.stream(**asked) as chunks:
                answer = chunks.get_final_completion()
        else:
            answer = client.chat.completions.create(**asked)
    assert [(choice.index, choice.finish_reason) for choice in answer.choices] == [
        (0, "stop"),
        (1, "tool_calls"),
    ]
    assert answer.choices[0].message.content == "Hi \u2028you"
    assert len(answer.choices[1].message.tool_calls) == 2
    batch = server.requests[0]
    assert isinstance(batch, Batch)
    assert [request.sampling.seed for request in batch.requests] == [5, 6]


def test_notes_are_within_reach() -> None:
    noted: list[Event] = [TextDelta("Hi"), replace(DONE, truncated=True, warnings=("w",))]
    with client_of(Server(noted)) as client:
        answer = client.chat.completions.create(model="m", messages=MESSAGES)
        *_, last = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    assert (answer.truncated, answer.warnings) == (last.truncated, last.warnings) == (True, ["w"])


# ---- completions


def test_completion() -> None:
    with client_of(Server(HELLO)) as client:
        answer = client.completions.create(model="m", prompt="p", max_tokens=5)
        chunks = list(client.completions.create(model="m", prompt="p", stream=True))
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hi \u2028you", "stop")
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hi \u2028you"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert answer.usage.total_tokens == 37


def test_completion_with_logprobs() -> None:
    with client_of(Server([TextDelta("Hi", (SCORED,)), DONE])) as client:
        answer = client.completions.create(model="m", prompt="p", logprobs=1)
        first, _ = client.completions.create(model="m", prompt="p", logprobs=1, stream=True)
    for logprobs in (answer.choices[0].logprobs, first.choices[0].logprobs):
        assert (logprobs.tokens, logprobs.token_logprobs, logprobs.text_offset) == (["Hi"], [-0.5], [0])
        assert logprobs.top_logprobs == [{"Hi": -0.5}]


def test_several_prompts() -> None:
    with client_of(Server(HELLO, [TextDelta("b"), DONE])) as client:
        answer = client.completions.create(model="m", prompt=[[1, 2], [3]])
        chunks = list(client.completions.create(model="m", prompt=["a", "b"], stream=True))
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "Hi \u2028you"), (1, "b")]
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "Hi \u2028you", 1: "b"}


# ---- embeddings


def test_embeddings() -> None:
    server = Server()
    with client_of(server) as client:
        numbers = client.embeddings.create(model="m", input=["a", "b"], encoding_format="float")
        packed = client.embeddings.create(model="m", input=["a", "b"])
        client.embeddings.create(model="m", input=[[1, 2]], dimensions=2, encoding_format="float")
    for answer in (numbers, packed):
        assert [(item.index, item.embedding) for item in answer.data] == [(0, [0.5, 0.0]), (1, [0.5, 1.0])]
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (7, 7)
    kinds = [(request.base64, request.inputs) for request in server.requests]  # type: ignore[union-attr]
    # The client asks for base64 by itself.
    assert kinds == [(False, ("a", "b")), (True, ("a", "b")), (False, ((1, 2),))]


# ---- errors


@pytest.mark.parametrize("path", ["chat", "completions"])
def test_error_in_a_stream(path: str) -> None:
    with client_of(Server(HELLO[:2], error=EngineFailed("the engine stopped"))) as client:
        chunks = (
            client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            if path == "chat"
            else client.completions.create(model="m", prompt="p", stream=True)
        )
        assert next(chunks).id
        with pytest.raises(sdk.APIError, match="the engine stopped"):
            list(chunks)


@pytest.mark.parametrize(
    ("error", "kind", "code", "words"),
    [
        (
            PromptTooLong(9000, 4096),
            sdk.BadRequestError,
            "context_length_exceeded",
            "4096 tokens.*9000 tokens",
        ),
        (ModelNotFound("m"), sdk.NotFoundError, "model_not_found", "model 'm' not found"),
        (Unauthorized("no key"), sdk.AuthenticationError, "invalid_api_key", "no key"),
        (Busy("full", 2), sdk.InternalServerError, "server_is_overloaded", "full"),
    ],
)
def test_errors_before_the_answer(error: MgrError, kind: Any, code: str, words: str) -> None:
    with client_of(Server(error=error)) as client, pytest.raises(kind, match=words) as caught:
        client.chat.completions.create(model="m", messages=MESSAGES)
    assert caught.value.code == code


# ---- the validator itself


def test_the_validator_sees_what_is_missing_added_and_wrong() -> None:
    good = openai.CHAT.encoder(ChatRequest(model="m", messages=(), stream=True), 0)
    chunk = json.loads(SseDecoder().feed(good.feed(TextDelta("Hi")))[0].data)
    valid(ChatCompletionChunk, json.dumps(chunk).encode())
    for flaw in ({"created": "now"}, {"choices": [{"index": 0}]}, {"id": None}):
        with pytest.raises(pydantic.ValidationError):
            valid(ChatCompletionChunk, json.dumps({**chunk, **flaw}).encode())
    with pytest.raises(AssertionError):
        valid(ChatCompletionChunk, json.dumps({**chunk, "reazon": 1}).encode())
