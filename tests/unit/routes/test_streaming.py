"""The one response: when it sends its status, how it ends, and that nothing is left open whoever goes first."""

import asyncio
import json
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import pytest

from daemon.chat import (
    Batch,
    ChatRequest,
    Done,
    Event,
    FinishReason,
    Message,
    Progress,
    Sink,
    Text,
    TextDelta,
    TokenRequest,
)
from daemon.errors import Busy, EngineFailed
from daemon.middleware import ollama, openai
from daemon.middleware.dialect import Dialect, Reply
from daemon.protocol import EXTENSION
from daemon.routes import streaming
from daemon.routes.streaming import Body, ModelResponse, ReplyResponse, at_once

SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "headers": []}
END = Done(FinishReason.STOP)


def request(*, stream: bool) -> ChatRequest:
    return ChatRequest(model="m", messages=(Message("user", (Text("hi"),)),), stream=stream)


class Wire:
    """An ASGI server's side: collects what is sent, and can let the client leave."""

    def __init__(self) -> None:
        self.sent: list[MutableMapping[str, Any]] = []
        self.leave = asyncio.Event()

    async def receive(self) -> MutableMapping[str, Any]:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    @property
    def statuses(self) -> list[int]:
        return [message["status"] for message in self.sent if message["type"] == "http.response.start"]

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def ended(self) -> bool:
        return not self.sent[-1].get("more_body", False)


class Source:
    """Events that wait at `None` until `go` is set, and know whether they were closed."""

    def __init__(self, *events: Event | Exception | None) -> None:
        self._events = events
        self.go = asyncio.Event()
        self.waits = asyncio.Event()
        self.closed = False

    async def __call__(self, request: TokenRequest, sink: Sink) -> Done:
        try:
            for event in self._events:
                if event is None:
                    self.waits.set()
                    await self.go.wait()
                elif isinstance(event, Exception):
                    raise event
                elif isinstance(event, Done):
                    return event
                elif (waiting := sink([event])) is not None:
                    await waiting
            raise EngineFailed("the engine stopped in the middle of the answer")
        finally:
            await asyncio.sleep(0)  # a clean-up that awaits must come to its end too
            self.closed = True


async def answer(source: Source, *, stream: bool, dialect: Dialect = openai.CHAT) -> Wire:
    wire = Wire()
    await ModelResponse(dialect, request(stream=stream), source)(SCOPE, wire.receive, wire.send)
    return wire


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer(stream: bool) -> None:
    source = Source(Progress(1, 2), TextDelta("Hel"), TextDelta("lo"), END)
    wire = await answer(source, stream=stream, dialect=ollama.CHAT)
    assert wire.statuses == [200]
    assert wire.ended
    assert source.closed
    assert (b'"content":"Hel"' in wire.body) is stream
    assert (b'"content":"Hello"' in wire.body) is not stream


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_before_the_first_token_has_its_own_status(stream: bool) -> None:
    source = Source(Progress(1, 2), Busy("full", retry_after=7))
    wire = await answer(source, stream=stream)
    assert wire.statuses == [503]
    assert (b"retry-after", b"7") in wire.sent[0]["headers"]
    assert wire.ended
    assert source.closed


async def test_an_error_after_the_first_token_is_in_band() -> None:
    wire = await answer(Source(TextDelta("a"), EngineFailed("it broke")), stream=True)
    assert wire.statuses == [200]
    assert b'"message":"it broke"' in wire.body
    assert b"[DONE]" not in wire.body
    assert wire.ended


@pytest.mark.parametrize("stream", [True, False])
async def test_an_unforeseen_error_tells_nothing_of_our_inside(stream: bool) -> None:
    wire = await answer(Source(KeyError("/secret/path")), stream=stream)
    assert wire.statuses == [500]
    assert b"internal error" in wire.body
    assert b"secret" not in wire.body


async def test_an_answer_that_breaks_off_is_an_error() -> None:
    wire = await answer(Source(TextDelta("a")), stream=True)
    assert b'"error"' in wire.body
    wire = await answer(Source(TextDelta("a")), stream=False)
    assert wire.statuses == [502]


async def test_a_long_wait_gets_a_status_and_keep_alives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.01)
    source, wire = Source(None, TextDelta("a"), END), Wire()
    task = asyncio.create_task(
        ModelResponse(openai.CHAT, request(stream=True), source)(SCOPE, wire.receive, wire.send)
    )
    async with asyncio.timeout(60):
        while len(wire.sent) < 4:
            await asyncio.sleep(0.01)
    assert wire.statuses == [200]
    assert all(line.startswith(b":") for line in wire.body.split(b"\n\n") if line)
    source.go.set()
    await task
    assert b'"content":"a"' in wire.body
    assert wire.body.endswith(b"data: [DONE]\n\n")


async def test_a_late_failure_of_a_kept_alive_stream_is_in_band(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.01)
    source, wire = Source(None, Busy("full")), Wire()
    task = asyncio.create_task(
        ModelResponse(openai.CHAT, request(stream=True), source)(SCOPE, wire.receive, wire.send)
    )
    async with asyncio.timeout(60):
        while not wire.sent:
            await asyncio.sleep(0.01)
    source.go.set()
    await task
    assert wire.statuses == [200]
    assert b'"message":"full"' in wire.body


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first", [[], [TextDelta("a")]], ids=["before", "within"])
async def test_a_client_that_leaves_ends_the_work(stream: bool, first: list[Event]) -> None:
    source, wire = Source(*first, None, TextDelta("never"), END), Wire()
    task = asyncio.create_task(
        ModelResponse(openai.CHAT, request(stream=stream), source)(SCOPE, wire.receive, wire.send)
    )
    await source.waits.wait()
    wire.leave.set()
    await task
    assert source.closed
    assert b"never" not in wire.body


async def test_a_server_that_cancels_the_response_does_not_leave_the_events_open() -> None:
    source, wire = Source(TextDelta("a"), None, END), Wire()
    task = asyncio.create_task(
        ModelResponse(openai.CHAT, request(stream=True), source)(SCOPE, wire.receive, wire.send)
    )
    await source.waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.closed


async def test_a_send_that_fails_closes_the_events() -> None:
    source, wire = Source(TextDelta("a"), TextDelta("b"), END), Wire()

    async def broken(message: MutableMapping[str, Any]) -> None:
        raise OSError("the connection is gone")

    with pytest.raises(OSError, match="gone"):
        await ModelResponse(openai.CHAT, request(stream=True), source)(SCOPE, wire.receive, broken)
    assert source.closed


# ---- sending without a task


async def test_work_that_need_not_wait_is_done_at_once() -> None:
    done = []

    async def work() -> None:
        done.append("all")

    assert at_once(work()) is None
    assert done == ["all"]


async def test_work_that_must_wait_goes_on_later() -> None:
    go, done = asyncio.Event(), []

    async def work() -> None:
        done.append("begun")
        await go.wait()
        await asyncio.sleep(0)
        done.append("ended")

    rest = at_once(work())
    assert rest is not None
    assert done == ["begun"]
    go.set()
    await rest
    assert done == ["begun", "ended"]


async def test_work_that_must_wait_can_fail_and_can_be_cancelled() -> None:
    go, closed = asyncio.Event(), []

    async def work() -> None:
        try:
            await go.wait()
            raise OSError("gone")
        finally:
            closed.append(True)

    failing, cancelled = at_once(work()), at_once(work())
    assert failing is not None
    assert cancelled is not None
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert cancelled.cancelled()
    go.set()
    with pytest.raises(OSError, match="gone"):
        await failing
    assert closed == [True, True]


class SlowWire(Wire):
    """A server whose client is behind until `caught_up` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.caught_up = asyncio.Event()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.caught_up.wait()
        await super().send(message)


async def test_a_client_that_is_behind_gets_all_in_order() -> None:
    wire = SlowWire()
    body = Body(wire.send, "text/plain")
    first = body.push(b"a")
    second = body.push(b"b")
    assert first is not None
    assert wire.sent == []
    wire.caught_up.set()
    assert second is not None
    await second
    assert not body.blocked
    assert body.push(b"c") is None
    await body.end(b"d")
    assert wire.statuses == [200]
    assert wire.body == b"abcd"
    assert wire.ended


async def test_a_client_that_is_behind_holds_the_work_back_and_gets_no_keep_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.001)
    source, wire = Source(TextDelta("a"), TextDelta("b"), END), SlowWire()
    task = asyncio.create_task(
        ModelResponse(openai.CHAT, request(stream=True), source)(SCOPE, wire.receive, wire.send)
    )
    await asyncio.sleep(0.05)
    assert wire.sent == []
    wire.caught_up.set()
    await task
    assert source.closed
    texts = [line for line in wire.body.split(b"\n\n") if b'"content":' in line]
    assert [b'"content":"a"' in texts[0], b'"content":"b"' in texts[1], len(texts)] == [True, True, 2]
    assert b"keep-alive" not in wire.body


async def test_a_client_that_leaves_while_it_is_behind_ends_the_work() -> None:
    source, wire = Source(TextDelta("a"), END), SlowWire()
    task = asyncio.create_task(
        ModelResponse(openai.CHAT, request(stream=True), source)(SCOPE, wire.receive, wire.send)
    )
    await asyncio.sleep(0)
    wire.leave.set()
    await task
    assert source.closed
    assert wire.sent == []


class ShortWay:
    """A client that its server lets us at: writes go into the same list as those through `send`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.open = True
        self.cut = False
        self.written: list[bytes] = []

    def write(self, data: bytes) -> bool:
        if self.open:
            self.written.append(data)
            self._wire.sent.append({"type": "http.response.body", "body": data, "more_body": True})
        return self.open

    def abort(self) -> None:
        self.cut = True


async def test_the_short_way_is_taken_between_the_head_and_the_end() -> None:
    wire = Wire()
    client = ShortWay(wire)
    body = Body(wire.send, "text/plain", client)  # type: ignore[arg-type]
    for data in (b"a", b"b"):
        assert body.push(data) is None
    client.open = False
    assert body.push(b"c") is None
    client.open = True
    assert body.push(b"d") is None
    await body.end(b"e")
    assert client.written == [b"b", b"d"]
    assert wire.statuses == [200]
    assert wire.body == b"abcde"


async def test_the_short_way_overtakes_nothing() -> None:
    wire = SlowWire()
    client = ShortWay(wire)
    body = Body(wire.send, "text/plain", client)  # type: ignore[arg-type]
    assert body.push(b"a") is not None
    waiting = body.push(b"b")
    assert client.written == []
    wire.caught_up.set()
    assert waiting is not None
    await waiting
    await body.end()
    assert wire.body == b"ab"


async def test_a_client_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "STALLED_SECONDS", 0.01)
    source, wire = Source(TextDelta("a"), TextDelta("b"), END), SlowWire()
    client = ShortWay(wire)
    scope = {**SCOPE, "extensions": {EXTENSION: client}}
    async with asyncio.timeout(60):
        await ModelResponse(openai.CHAT, request(stream=True), source)(scope, wire.receive, wire.send)
    assert client.cut
    assert source.closed
    assert wire.sent == []


async def test_a_keep_alive_that_cannot_be_sent_is_met_by_the_next_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.001)
    source, wire, tried = Source(None, TextDelta("a"), END), Wire(), asyncio.Event()

    async def broken(message: MutableMapping[str, Any]) -> None:
        tried.set()
        raise OSError("the connection is gone")

    task = asyncio.create_task(
        ModelResponse(openai.CHAT, request(stream=True), source)(SCOPE, wire.receive, broken)
    )
    await tried.wait()
    source.go.set()
    with pytest.raises(OSError, match="gone"):
        await task
    assert source.closed


# ---- several answers, and one whole reply


def batch(*, stream: bool) -> Batch:
    return Batch((request(stream=stream), replace(request(stream=stream), model="m2")))


async def answer_batch(sources: dict[str, Source], *, stream: bool) -> Wire:
    async def work(asked: TokenRequest, sink: Sink) -> Done:
        return await sources[asked.model](asked, sink)

    wire = Wire()
    await ModelResponse(openai.CHAT, batch(stream=stream), work)(SCOPE, wire.receive, wire.send)
    return wire


async def test_each_answer_of_a_batch_is_the_choice_of_its_place() -> None:
    sources = {"m": Source(TextDelta("one"), END), "m2": Source(TextDelta("two"), END)}
    wire = await answer_batch(sources, stream=False)
    choices = json.loads(wire.body)["choices"]
    assert [(choice["index"], choice["message"]["content"]) for choice in choices] == [(0, "one"), (1, "two")]


async def test_the_answers_of_a_batch_share_a_stream() -> None:
    sources = {"m": Source(TextDelta("one"), END), "m2": Source(TextDelta("two"), END)}
    wire = await answer_batch(sources, stream=True)
    texts = {0: "", 1: ""}
    for line in wire.body.decode().split("\n\n"):
        for choice in json.loads(line[len("data: ") :])["choices"] if line.startswith("data: {") else []:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == {0: "one", 1: "two"}
    assert wire.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_of_one_choice_ends_the_others(stream: bool) -> None:
    waits = Source(None, END)
    wire = await answer_batch({"m": waits, "m2": Source(Busy("full"))}, stream=stream)
    assert (wire.sent[0]["status"], waits.closed) == (503, True)
    assert b"full" in wire.body


async def test_a_reply_is_sent_whole_and_its_error_in_the_dialects_words() -> None:
    async def work() -> Reply:
        return Reply(200, b"{}")

    async def fails() -> Reply:
        raise Busy("full")

    for made, status in ((work, 200), (fails, 503)):
        wire = Wire()
        await ReplyResponse(ollama.CHAT, made)(SCOPE, wire.receive, wire.send)
        assert wire.sent[0]["status"] == status
    assert wire.body == b'{"error":"full"}'


async def test_a_client_that_leaves_ends_the_work_on_a_reply() -> None:
    ended = asyncio.Event()

    async def work() -> Reply:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    wire = Wire()
    wire.leave.set()
    await ReplyResponse(ollama.CHAT, work)(SCOPE, wire.receive, wire.send)
    assert ended.is_set()
    assert not wire.sent
