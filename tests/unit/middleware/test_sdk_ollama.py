"""The official `ollama` client reads what the dialect writes; every line is validated against the client's types.

It runs with a transport that answers from memory.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx
import ollama as sdk
import pytest

from daemon.chat import (
    ChatRequest,
    CompletionRequest,
    Done,
    Embeddings,
    EmbedRequest,
    Event,
    FinishReason,
    Image,
    JsonFormat,
    LoadRequest,
    Message,
    Progress,
    Request,
    Sampling,
    Text,
    TextDelta,
    ThinkingDelta,
    Timings,
    TokenRequest,
    Tool,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from daemon.errors import EngineFailed, MgrError, ModelNotFound, PromptTooLong
from daemon.framing import NdjsonDecoder
from daemon.middleware import ollama
from daemon.middleware.dialect import Dialect, Reply
from tests.fakes.answers import assemble

ROUTES: Mapping[str, Dialect] = {
    "/api/chat": ollama.CHAT,
    "/api/generate": ollama.GENERATE,
    "/api/embed": ollama.EMBED,
    "/api/embeddings": ollama.EMBEDDINGS,
}
LINES: Mapping[str, Any] = {
    "/api/chat": sdk.ChatResponse,
    "/api/generate": sdk.GenerateResponse,
    "/api/embed": sdk.EmbedResponse,
    "/api/embeddings": sdk.EmbeddingsResponse,
}
MESSAGES = [{"role": "user", "content": "hi"}]
PNG = b"\x89PNG\r\n\x1a\n"
SCORE = {"token": "Hi", "logprob": -0.1, "bytes": [72, 105]}
DONE = Done(FinishReason.STOP, Usage(30, 20, 7), Timings(2.0, 0.5, 0.25, 1.25))
SAID: list[Event] = [
    Progress(10, 30, 20),
    ThinkingDelta("hm"),
    TextDelta("Hi"),
    TextDelta(" \u2028you"),
    DONE,
]
CALLED: list[Event] = [
    TextDelta("Hi"),
    ToolCallDelta(0, "", "c0", "f"),
    ToolCallDelta(0, '{"x"'),
    ToolCallDelta(0, ":1}"),
    ToolCallDelta(1, "{}", "c1", "g"),
    replace(DONE, reason=FinishReason.TOOL_CALLS),
]
VECTORS = Embeddings(((0.6, 0.8), (1.0, 0.0)), tokens=7, truncated=(1,))


class Server:
    """What the daemon would answer, with a keep-alive before every event; remembers what it was asked."""

    def __init__(self) -> None:
        self.events = SAID
        self.refusal: MgrError | None = None
        self.failure: MgrError | None = None
        self.asked: list[Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        dialect, lines = ROUTES[request.url.path], LINES[request.url.path]
        reply = dialect.error(self.refusal) if self.refusal else self._reply(dialect, request.content)
        for line in NdjsonDecoder().feed(reply.body + b"\n"):
            if "error" not in line:
                lines.model_validate(line, strict=True)
        return httpx.Response(reply.status, content=reply.body, headers={"content-type": reply.media_type})

    def _reply(self, dialect: Dialect, body: bytes) -> Reply:
        request = dialect.parse(body)
        self.asked.append(request)
        if isinstance(request, LoadRequest):
            return dialect.loaded(request, 0)
        if isinstance(request, EmbedRequest):
            return dialect.embedded(request, VECTORS, 0)
        assert isinstance(request, TokenRequest)
        return self._stream(dialect, request) if request.stream else self._whole(dialect, request)

    def _whole(self, dialect: Dialect, request: TokenRequest) -> Reply:
        return dialect.reply(request, assemble(self.events), 0)

    def _stream(self, dialect: Dialect, request: TokenRequest) -> Reply:
        encoder = dialect.encoder(request, 0)
        output = b"".join(encoder.keep_alive() + encoder.feed(event) for event in self.events)
        output += encoder.fail(self.failure) if self.failure else encoder.finish()
        return Reply(200, output, dialect.stream_media_type)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    made: Any = sdk.Client("http://mgr.test", transport=httpx.MockTransport(server))
    yield made
    made.close()


def joined(pieces: Sequence[str | None]) -> str:
    return "".join(piece or "" for piece in pieces)


# ---- chat


def test_chat(client: Any) -> None:
    whole = client.chat("m", MESSAGES)
    chunks = list(client.chat("m", MESSAGES, stream=True, options={"temperature": 0}, keep_alive="5m"))
    assert joined([chunk.message.content for chunk in chunks]) == whole.message.content == "Hi \u2028you"
    assert joined([chunk.message.thinking for chunk in chunks]) == whole.message.thinking == "hm"
    for end in (whole, chunks[-1]):
        assert (end.done, end.done_reason, end.prompt_eval_count, end.eval_count) == (True, "stop", 30, 7)
        assert (end.total_duration, end.load_duration) == (2_000_000_000, 500_000_000)
        assert (end.prompt_eval_duration, end.eval_duration) == (250_000_000, 1_250_000_000)
    assert not any(chunk.done for chunk in chunks[:-1])


def test_tool_calls(client: Any, server: Server) -> None:
    server.events = CALLED
    whole = client.chat("m", MESSAGES)
    chunks = list(client.chat("m", MESSAGES, stream=True))
    streamed = [call for chunk in chunks for call in chunk.message.tool_calls or ()]
    for calls in (streamed, whole.message.tool_calls):
        assert [(call.function.name, call.function.arguments) for call in calls] == [
            ("f", {"x": 1}),
            ("g", {}),
        ]
    assert (chunks[-1].done, chunks[-1].done_reason, whole.done_reason) == (True, "stop", "stop")


def weather(city: str) -> str:
    """The weather.

    Args:
        city: Where.
    """
    return city


def test_what_the_client_sends_for_tools(client: Any, server: Server) -> None:
    server.events = CALLED
    answer = client.chat("m", MESSAGES, tools=[weather])
    (asked,) = server.asked
    assert isinstance(asked, ChatRequest)
    (tool,) = asked.tools
    assert isinstance(tool, Tool)
    assert (tool.name, tool.description) == ("weather", "The weather.")
    assert tool.parameters["properties"] == {"city": {"type": "string", "description": "Where."}}
    assert tool.parameters["required"] == ["city"]
    result = {"role": "tool", "tool_name": "g", "content": "sun"}
    client.chat("m", [*MESSAGES, answer.message, result])
    asked = server.asked[-1]
    assert isinstance(asked, ChatRequest)
    assert asked.messages[1:] == (
        Message(
            "assistant",
            (Text("Hi"),),
            None,
            (ToolCall("call_0", "f", '{"x":1}'), ToolCall("call_1", "g", "{}")),
        ),
        Message("tool", (Text("sun"),), tool_call_id="call_1", name="g"),
    )


def test_what_the_client_sends_besides(client: Any, server: Server) -> None:
    schema = {"type": "object"}
    client.chat(
        "m", [{**MESSAGES[0], "images": [PNG]}], format=schema, think="high", logprobs=True, top_logprobs=2
    )
    assert server.asked == [
        ChatRequest(
            model="m",
            messages=(Message("user", (Image(base64.b64encode(PNG).decode(), "image/png"), Text("hi"))),),
            format=JsonFormat(schema),
            thinking="high",
            sampling=Sampling(logprobs=True, top_logprobs=2),
            truncate=True,
        )
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: Any, server: Server, stream: bool) -> None:
    server.events = [TextDelta("Hi", ({**SCORE, "top_logprobs": [SCORE]},)), TextDelta("", (SCORE,)), DONE]
    chat, generate = client.chat("m", MESSAGES, stream=stream), client.generate("m", "hi", stream=stream)
    for answer in (chat, generate):
        scores = [score for line in (answer if stream else [answer]) for score in line.logprobs or ()]
        assert [(score.token, score.logprob) for score in scores] == [("Hi", -0.1)] * 2
        assert [(top.token, top.logprob) for top in scores[0].top_logprobs] == [("Hi", -0.1)]


# ---- generate


def test_generate(client: Any, server: Server) -> None:
    server.events = [*SAID[:-1], replace(DONE, reason=FinishReason.LENGTH, context=(1, 2))]
    whole = client.generate("m", "hi", raw=True)
    chunks = list(client.generate("m", "hi", system="s", stream=True, think=True))
    assert joined([chunk.response for chunk in chunks]) == whole.response == "Hi \u2028you"
    assert joined([chunk.thinking for chunk in chunks]) == whole.thinking == "hm"
    for end in (whole, chunks[-1]):
        assert (end.done, end.done_reason, end.context) == (True, "length", [1, 2])


def test_context_goes_round(client: Any, server: Server) -> None:
    server.events = [TextDelta("Hi"), replace(DONE, context=(1, 2))]
    first = client.generate("m", "hi")
    client.generate("m", "again", context=first.context)
    asked = server.asked[-1]
    assert isinstance(asked, ChatRequest)
    assert (asked.context, asked.wants_context) == ((1, 2), True)


def test_what_the_client_sends_to_generate(client: Any, server: Server) -> None:
    client.generate("m", "def f(", suffix="return", format="json")
    client.generate("m", "hi", images=[PNG])
    filled, seen = server.asked
    assert filled == CompletionRequest(
        model="m", prompt="def f(", suffix="return", format=JsonFormat(), truncate=True
    )
    assert isinstance(seen, ChatRequest)
    assert seen.messages[0].parts == (Image(base64.b64encode(PNG).decode(), "image/png"), Text("hi"))


# ---- load, embed, errors


def test_load_and_unload(client: Any) -> None:
    assert client.chat("m").done_reason == "load"
    assert client.generate("m", keep_alive=0).done_reason == "unload"


def test_embed(client: Any, server: Server) -> None:
    answer = client.embed("m", ["a", "b"], truncate=True, dimensions=2)
    assert (answer.embeddings, answer.prompt_eval_count) == ([[0.6, 0.8], [1.0, 0.0]], 7)
    assert server.asked == [EmbedRequest(model="m", inputs=("a", "b"), dimensions=2)]
    assert client.embed("m").embeddings == []
    assert client.embeddings("m", "a").embedding == [0.6, 0.8]
    assert client.embeddings("m").embedding == []


@pytest.mark.parametrize("error", [ModelNotFound("m"), PromptTooLong(9000, 4096)])
def test_errors_keep_their_words(client: Any, server: Server, error: MgrError) -> None:
    server.refusal = error
    asking = (
        lambda: client.chat("m", MESSAGES),
        lambda: list(client.generate("m", "hi", stream=True)),
        lambda: client.embed("m", "hi"),
        lambda: client.embeddings("m", "hi"),
    )
    for ask in asking:
        with pytest.raises(sdk.ResponseError) as caught:
            ask()
        assert caught.value.error.endswith(error.message)
        assert caught.value.status_code == (404 if isinstance(error, ModelNotFound) else 400)


def test_error_in_a_stream(client: Any, server: Server) -> None:
    server.failure = EngineFailed("the engine stopped")
    with pytest.raises(sdk.ResponseError, match="the engine stopped"):
        list(client.chat("m", MESSAGES, stream=True))


def test_a_blank_line_would_break_the_client() -> None:
    """Why the keep-alive is a chunk; when this fails, a line end would do."""
    answer = httpx.MockTransport(lambda _: httpx.Response(200, content=b"\n"))
    client: Any = sdk.Client("http://mgr.test", transport=answer)
    with pytest.raises(json.JSONDecodeError):
        list(client.chat("m", MESSAGES, stream=True))
    client.close()
