"""OpenAI's own client reads what /v1/responses answers, whole and streamed, through all of its helpers.

It runs with a transport that answers from memory.
"""

import importlib
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from daemon.chat import (
    ChatRequest,
    Done,
    Event,
    FinishReason,
    Progress,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
)
from daemon.errors import EngineFailed, MgrError
from daemon.framing import SseDecoder
from daemon.middleware.dialect import Reply
from daemon.middleware.responses import ResponsesDialect
from daemon.middleware.responses_history import History
from tests.fakes.answers import assemble

# The HTTP library that this version of the SDK uses.
_BASES: tuple[type, ...] = openai.DefaultHttpxClient.__mro__
_NAMES = [base.__module__.partition(".")[0] for base in _BASES]
HTTP: Any = importlib.import_module(next(name for name in _NAMES if name.startswith("httpx")))

SCORE = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}
DONE = Done(FinishReason.TOOL_CALLS, Usage(30, 20, 7))
EVENTS: list[Event] = [
    Progress(10, 30, 20),
    ThinkingDelta("hm"),
    TextDelta("Hi", (SCORE,)),
    TextDelta(" \u2028you"),
    ToolCallDelta(0, "", "c0", "f"),
    ToolCallDelta(0, '{"x"'),
    ToolCallDelta(0, ":1}"),
    ToolCallDelta(1, '{"x":2}', "c1", "f"),
    DONE,
]
CUT: list[Event] = [
    TextDelta("Once"),
    Done(FinishReason.LENGTH, Usage(3, 0, 1), truncated=True, warnings=("w",)),
]
TOOL: Any = {
    "type": "function",
    "name": "f",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    "strict": True,
}
BODY: dict[str, Any] = {"model": "m", "input": "hi", "tools": [TOOL], "reasoning": {"effort": "low"}}


class Server:
    """What the daemon would answer, with a keep-alive before every event."""

    def __init__(self, events: list[Event] | None = None, failure: str | None = None) -> None:
        self.dialect = ResponsesDialect(History())
        self.events = EVENTS if events is None else events
        self.failure = failure

    def answer(self, method: str, path: str, body: bytes) -> Reply:
        if method == "GET":
            return self.dialect.retrieve(path.rpartition("/")[2])
        if method == "DELETE":
            return self.dialect.delete(path.rpartition("/")[2])
        try:
            request = self.dialect.parse(body)
        except MgrError as error:
            return self.dialect.error(error)
        assert isinstance(request, ChatRequest)
        if not request.stream:
            return self.dialect.reply(request, assemble(self.events), 5)
        encoder = self.dialect.encoder(request, 5)
        output = b"".join(encoder.keep_alive() + encoder.feed(event) for event in self.events)
        output += encoder.fail(EngineFailed(self.failure)) if self.failure else encoder.finish()
        return Reply(200, output, self.dialect.stream_media_type)

    def stream(self, **more: Any) -> list[bytes]:
        """The data of the events of a stream."""
        reply = self.answer("POST", "", json.dumps({**BODY, **more, "stream": True}).encode())
        return [event.data for event in SseDecoder().feed(reply.body)]

    def client(self) -> Any:
        def handle(request: Any) -> Any:
            reply = self.answer(request.method, request.url.path, request.content)
            headers = {"content-type": reply.media_type, **reply.headers}
            return HTTP.Response(reply.status, content=reply.body, headers=headers)

        transport = HTTP.MockTransport(handle)
        return openai.OpenAI(
            base_url="http://mgr.test/v1",
            api_key="none",
            http_client=HTTP.Client(transport=transport),
            max_retries=0,
        )


SNAPSHOTS = ("response.output_text.delta", "response.function_call_arguments.delta")


def checked(response: Any) -> None:
    """The answer that EVENTS are."""
    thought, message, first, second = response.output
    assert thought.content[0].text == "hm"
    assert response.output_text == message.content[0].text == "Hi \u2028you"
    assert (first.call_id, first.name, first.arguments) == ("c0", "f", '{"x":1}')
    assert (second.call_id, second.arguments) == ("c1", '{"x":2}')
    assert response.usage.input_tokens_details.cached_tokens == 20
    assert response.status == "completed"


def test_whole() -> None:
    with Server().client() as client:
        checked(client.responses.create(**BODY))


def test_stream() -> None:
    with Server().client() as client:
        events = list(client.responses.create(**BODY, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "Hi \u2028you"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    checked(events[-1].response)


@pytest.mark.parametrize("summary", [None, "auto"])
def test_stream_helper(summary: str | None) -> None:
    body = {**BODY, "reasoning": {"summary": summary}}
    with Server().client() as client, client.responses.stream(**body) as stream:
        snapshots = [event.snapshot for event in stream if event.type in SNAPSHOTS]
        final = stream.get_final_response()
    assert snapshots == ["Hi", "Hi \u2028you", '{"x"', '{"x":1}', '{"x":2}']
    assert [item.parsed_arguments for item in final.output if item.type == "function_call"] == [
        {"x": 1},
        {"x": 2},
    ]
    thought = final.output[0]
    assert [part.text for part in (thought.summary if summary else thought.content)] == ["hm"]


class Point(BaseModel):
    x: int


def test_parse() -> None:
    events: list[Event] = [TextDelta('{"x"'), TextDelta(":5}"), Done(FinishReason.STOP)]
    with Server(events).client() as client:
        whole = client.responses.parse(model="m", input="hi", text_format=Point)
        with client.responses.stream(model="m", input="hi", text_format=Point) as stream:
            streamed = stream.get_final_response()
    assert whole.output_parsed == streamed.output_parsed == Point(x=5)


def test_a_conversation_goes_on_and_is_deleted() -> None:
    server = Server()
    with server.client() as client:
        first = client.responses.create(**BODY)
        output: Any = {"type": "function_call_output", "call_id": "c0", "output": "1"}
        second = client.responses.create(model="m", previous_response_id=first.id, input=[output])
        assert second.previous_response_id == first.id
        checked(client.responses.retrieve(first.id))
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError) as gone:
            client.responses.create(model="m", previous_response_id=first.id, input="hi")
    assert (gone.value.code, gone.value.param) == ("previous_response_not_found", "previous_response_id")


def test_the_output_can_be_sent_back() -> None:
    server = Server()
    with server.client() as client:
        first = client.responses.create(**BODY)
        sent: list[Any] = [item.model_dump() for item in first.output]
        client.responses.create(model="m", input=[{"role": "user", "content": "hi"}, *sent])
    request = server.dialect.parse(json.dumps({"model": "m", "input": sent}).encode())
    assert isinstance(request, ChatRequest)
    (turn,) = request.messages
    assert (turn.thinking, turn.text) == ("hm", "Hi \u2028you")
    assert [call.id for call in turn.tool_calls] == ["c0", "c1"]


def test_a_cut_answer() -> None:
    with Server(CUT).client() as client:
        whole = client.responses.create(**BODY)
        *_, last = client.responses.create(**BODY, stream=True)
    assert last.type == "response.incomplete"
    for response in (whole, last.response):
        assert response.incomplete_details is not None
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert response.output_text == "Once"


def consume_events(client: Any) -> None:
    list(client.responses.create(**BODY, stream=True))


def consume_helper(client: Any) -> None:
    with client.responses.stream(**BODY) as stream:
        stream.until_done()


@pytest.mark.parametrize("consume", [consume_events, consume_helper])
@pytest.mark.parametrize("events", [[], EVENTS[:4]])
def test_an_error_in_a_stream_is_raised(consume: Callable[[Any], None], events: list[Event]) -> None:
    with (
        Server(events, "the engine stopped").client() as client,
        pytest.raises(openai.APIError, match="the engine stopped"),
    ):
        consume(client)


# ---- the types, strictly

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.mark.parametrize(
    "server", [Server(), Server(CUT), Server([], "stopped"), Server(EVENTS[:4], "stopped"), Server([DONE])]
)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"reasoning": {"summary": "detailed"}, "include": ["reasoning.encrypted_content"]},
        {"tool_choice": {"type": "function", "name": "f"}, "metadata": {"k": "v"}, "instructions": "i"},
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}},
        {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f"}],
            }
        },
    ],
)
def test_every_event_is_typed(server: Server, more: dict[str, Any]) -> None:
    for data in server.stream(**more):
        event = EVENT.validate_json(data, strict=True)
        assert event.type == json.loads(data)["type"]
        assert not isinstance(event, dict)


@pytest.mark.parametrize("server", [Server(), Server(CUT), Server([DONE])])
def test_the_whole_is_typed(server: Server) -> None:
    reply = server.answer("POST", "", json.dumps({**BODY, "temperature": 0.5, "top_logprobs": 1}).encode())
    Response.model_validate_json(reply.body, strict=True)
