"""Asking an engine: what becomes of an answer, of a refusal, and of each way to break off."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from daemon.chat import (
    ChatRequest,
    CompletionRequest,
    Done,
    FinishReason,
    Image,
    Message,
    Piece,
    QuotedSink,
    Text,
    TextDelta,
    Usage,
)
from daemon.errors import EngineFailed, EngineGone, EngineHung, EngineSilent, Kind, MgrError, PromptTooLong
from daemon.framing import sse
from daemon.runner.endpoint import Endpoint
from daemon.runner.upstream import Upstream

REQUEST = ChatRequest(model="m", messages=(Message("user", (Text("hi"),)),))
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
TOO_LONG = {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 4096}


def chunk(*values: Any) -> bytes:
    data = b"".join(
        sse(value if isinstance(value, bytes) else json.dumps(value).encode()) for value in values
    )
    return b"%x\r\n%b\r\n" % (len(data), data)


def text(content: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": content}, "finish_reason": None}]}


STOP = {
    "choices": [{"delta": {}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
# As llama-server writes it.
PLAIN = (
    rb'{"choices":[{"finish_reason":null,"index":0,"delta":{"content":"\"hi\""}}],"created":1,"id":"i","model":"m",'
    rb'"system_fingerprint":"b1","object":"chat.completion.chunk"}'
)
DONE = Done(FinishReason.STOP, Usage(3, 0, 2))


class Engine:
    """Answers each request with the bytes that it was given, and hangs up; `requests` are theirs."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        self.requests.append(head + await reader.readexactly(length))
        writer.write(self._answer)
        writer.close()


class Asked:
    """An upstream, what its sink got, and whether it was told that the engine was lost."""

    def __init__(self, socket: Path) -> None:
        self.pieces: list[Piece] = []
        self.lost: list[bool] = []
        self.now = 100.0
        self.busy_at: list[float] = []
        self.upstream = Upstream(
            Endpoint(socket, "the-key"),
            lambda: self.busy_at.append(self.now),
            self._lost,
            lambda: self.now,
        )

    async def _lost(self, silent: bool) -> None:
        self.lost.append(silent)

    async def answer(self, sink: Callable[[Sequence[Piece]], Awaitable[None] | None] | None = None) -> Done:
        async with asyncio.timeout(60):
            return await self.upstream.answer(REQUEST, sink or self.pieces.extend)


@asynccontextmanager
async def asking(answer: bytes) -> AsyncIterator[tuple[Asked, Engine]]:
    engine = Engine(answer)
    with TemporaryDirectory(prefix="mgr-") as folder:
        socket = Path(folder) / "e.sock"
        async with await asyncio.start_unix_server(engine.serve, socket):
            yield Asked(socket), engine


async def test_an_answer() -> None:
    async with asking(HEAD + chunk(text("Hel")) + chunk(text("lo"), STOP, b"[DONE]") + END) as (
        asked,
        engine,
    ):
        assert await asked.answer() == DONE
    assert asked.pieces == [TextDelta("Hel"), TextDelta("lo")]
    assert asked.lost == []
    head, _, body = engine.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer the-key" in head
    assert b"Connection: close" in head
    assert json.loads(body)["messages"] == [{"role": "user", "content": "hi"}]


class Quoting(QuotedSink):
    """Keeps what it got, as bytes what came the short way."""

    def __init__(self) -> None:
        self.got: list[Piece | bytes] = []

    def __call__(self, pieces: Sequence[Piece]) -> None:
        self.got += pieces

    def quoted(self, text: bytes) -> None:
        self.got.append(text)


@pytest.mark.parametrize(
    ("others", "between"),
    [([], []), ([text("lo")], [TextDelta("lo")])],
    ids=["alone", "with another"],
)
async def test_a_plain_text_alone_goes_the_short_way(
    others: list[dict[str, Any]], between: list[Piece]
) -> None:
    sink = Quoting()
    async with asking(HEAD + chunk(PLAIN, *others)) as (asked, _):
        with pytest.raises(EngineFailed):
            await asked.answer(sink)
    said = TextDelta('"hi"')
    assert sink.got == ([said, *between] if others else [b'\\"hi\\"'])


async def test_a_plain_text_goes_the_long_way_to_any_other_sink() -> None:
    async with asking(HEAD + chunk(PLAIN)) as (asked, _):
        with pytest.raises(EngineFailed):
            await asked.answer()
    assert asked.pieces == [TextDelta('"hi"')]


async def test_a_refusal() -> None:
    body = json.dumps({"error": TOO_LONG}).encode()
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with asking(head + body) as (asked, _):
        with pytest.raises(PromptTooLong) as error:
            await asked.answer()
    assert (error.value.needed, error.value.available) == (9000, 4096)
    assert not asked.pieces
    assert not asked.lost


@pytest.mark.parametrize("end", [b"", END], ids=["alone", "with the end"])
async def test_an_error_inside_the_stream_comes_after_what_came_before_it(end: bytes) -> None:
    async with asking(HEAD + chunk(text("hello"), {"error": TOO_LONG}) + end) as (asked, _):
        with pytest.raises(PromptTooLong):
            await asked.answer()
    assert asked.pieces == [TextDelta("hello")]


async def test_a_sink_that_fails_is_no_failure_of_the_engine() -> None:
    def sink(pieces: Sequence[Piece]) -> None:
        raise OSError("the client is gone")

    async with asking(HEAD + chunk(text("a"), STOP, b"[DONE]") + END) as (asked, _):
        with pytest.raises(OSError, match="the client is gone"):
            await asked.answer(sink)
    assert asked.lost == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", EngineGone),
        (b"HTTP/1.1 200", EngineGone),
        (HEAD, EngineFailed),
        (HEAD + chunk(text("a")), EngineFailed),
        (HEAD + chunk(text("a"), STOP), EngineFailed),
    ],
)
async def test_only_an_engine_that_had_not_begun_is_gone(answer: bytes, error: type[EngineFailed]) -> None:
    """Gone means that another may be asked, because nothing has reached the client."""
    async with asking(answer) as (asked, _):
        with pytest.raises(EngineFailed) as failure:
            await asked.answer()
    assert type(failure.value) is error
    assert asked.lost == [False]


async def test_an_answer_that_is_complete_needs_no_more() -> None:
    async with asking(HEAD + chunk(text("a"), STOP, b"[DONE]")) as (asked, _):
        assert await asked.answer() == DONE
    assert asked.pieces == [TextDelta("a")]


async def test_an_answer_without_its_end() -> None:
    async with asking(HEAD + chunk(text("a")) + END) as (asked, _):
        with pytest.raises(EngineFailed, match="in the middle of the answer"):
            await asked.answer()


async def test_nobody_listens(tmp_path: Path) -> None:
    asked = Asked(tmp_path / "none.sock")
    with pytest.raises(EngineGone):
        await asked.answer()
    assert asked.lost == [True]
    assert await asked.upstream.health() is None


async def test_what_is_asked_after_it_was_closed_fails_with_the_reason() -> None:
    async with asking(HEAD + END) as (asked, engine):
        asked.upstream.close("mgr is shutting down")
        with pytest.raises(EngineFailed, match="mgr is shutting down"):
            await asked.answer()
    assert engine.requests == []


async def test_closing_ends_an_answer_also_while_the_sink_is_behind() -> None:
    begun = asyncio.Event()

    async def never() -> None:
        await asyncio.Event().wait()

    def sink(pieces: Sequence[Piece]) -> Awaitable[None]:
        begun.set()
        return never()

    async with asking(HEAD + chunk(text("a"))) as (asked, _):
        running = asyncio.create_task(asked.answer(sink))
        await begun.wait()
        asked.upstream.close("it makes room for another")
        with pytest.raises(EngineFailed, match="it makes room for another"):
            await running


@pytest.mark.parametrize(
    ("answer", "status"), [(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n", 503), (b"x", None)]
)
async def test_health(answer: bytes, status: int | None) -> None:
    async with asking(answer) as (asked, engine):
        assert await asked.upstream.health() == status
    assert engine.requests[0].startswith(b"GET /health HTTP/1.1\r\n")


def whole(value: object, status: bytes = b"200 OK") -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


async def test_a_question_with_one_whole_answer() -> None:
    async with asking(whole({"tokens": [1, 2]})) as (asked, engine):
        assert await asked.upstream.call("/tokenize", {"content": "hi"}) == {"tokens": [1, 2]}
    head, _, body = engine.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /tokenize HTTP/1.1\r\n")
    assert b"Authorization: Bearer the-key" in head
    assert json.loads(body) == {"content": "hi"}


async def test_a_question_without_a_body_is_a_get() -> None:
    async with asking(whole({"a": 1})) as (asked, engine):
        assert await asked.upstream.call("/props") == {"a": 1}
    assert engine.requests[0].startswith(b"GET /props HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (whole({"error": TOO_LONG}, b"400 Bad Request"), PromptTooLong),
        (whole({"error": {"code": 500, "message": "oops"}}, b"500 X"), EngineFailed),
        (whole([1]), EngineFailed),
        (b"", EngineGone),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", EngineFailed),
    ],
)
async def test_a_whole_answer_fails_as_a_stream_does(answer: bytes, error: type[MgrError]) -> None:
    async with asking(answer) as (asked, _):
        with pytest.raises(MgrError) as failure:
            await asked.upstream.call("/tokenize", {})
    assert type(failure.value) is error


async def test_a_whole_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.runner.upstream._MAX_WHOLE_BYTES", 100)
    async with asking(whole({"a": "x" * 100})) as (asked, _):
        with pytest.raises(EngineFailed, match="longer than 100 bytes"):
            await asked.upstream.call("/tokenize", {})
    async with asking(whole({"a": "x" * 80})) as (asked, _):
        assert await asked.upstream.call("/tokenize", {}) == {"a": "x" * 80}


async def test_where_images_stand_in_plain_text_the_engine_says_first() -> None:
    """It is another word at each start, so that nobody can write it."""
    request = CompletionRequest(model="m", prompt="what?", images=(Image("aGk=", "image/png"),))
    async with asking(whole({"media_marker": "<here>"})) as (asked, engine):
        with pytest.raises(EngineFailed):  # this engine has the same answer to everything
            await asked.upstream.answer(request, lambda pieces: None)
    first, second = engine.requests
    assert first.startswith(b"GET /props ")
    body = json.loads(second.partition(b"\r\n\r\n")[2])
    assert body["prompt"] == {"prompt_string": "<here>what?", "multimodal_data": ["aGk="]}


class Held(Engine):
    """Sends its answer in parts, each when it is told to, and only then hangs up. `/slots` is answered at once."""

    def __init__(self, *parts: bytes) -> None:
        super().__init__(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
        self._parts = parts
        self._told = asyncio.Semaphore(0)
        self.serving = 0

    def go_on(self) -> None:
        self._told.release()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving += 1
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        if head.startswith(b"GET"):
            writer.write(self._answer)
        else:
            for part in self._parts:
                await self._told.acquire()
                if not writer.is_closing():
                    writer.write(part)
        writer.close()
        self.serving -= 1


@asynccontextmanager
async def held(*parts: bytes) -> AsyncIterator[tuple[Asked, Held]]:
    engine = Held(*parts)
    with TemporaryDirectory(prefix="mgr-") as folder:
        socket = Path(folder) / "e.sock"
        async with await asyncio.start_unix_server(engine.serve, socket):
            yield Asked(socket), engine
            while engine.serving:
                engine.go_on()
                await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def test_progress_is_told_while_something_is_asked() -> None:
    async with held(HEAD + b"3\r\n:\n\n\r\n", chunk(text("a")), chunk(STOP, b"[DONE]") + END) as (
        asked,
        engine,
    ):
        upstream = asked.upstream
        assert (upstream.busy, upstream.last_progress) == (False, None)
        asked.now = 200
        answer = asyncio.create_task(asked.answer())
        await until(lambda: upstream.busy)
        asked.now = 201
        assert (upstream.last_byte, upstream.last_progress) == (100, 200)
        engine.go_on()
        engine.go_on()
        await until(lambda: asked.pieces != [])
        asked.now = 202
        assert (upstream.last_byte, upstream.last_progress) == (202, 202)
        asked.now = 203
        assert (upstream.last_byte, upstream.last_progress) == (202, 202)
        engine.go_on()
        await answer
        assert (upstream.last_byte, upstream.last_progress) == (203, None)


async def test_what_one_request_got_is_progress_for_all() -> None:
    async with held(HEAD + chunk(STOP, b"[DONE]") + END) as (asked, engine):
        first, second = (asyncio.create_task(asked.answer()) for _ in range(2))
        await until(lambda: len(engine.requests) == 2)
        asked.now = 300
        engine.go_on()
        await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        asked.now = 301
        assert asked.upstream.last_progress == 300
        assert asked.busy_at == [100]
        engine.go_on()
        await asyncio.gather(first, second)


async def test_being_asked_whether_it_answers_is_no_work_and_no_progress() -> None:
    async with held(b"") as (asked, _):
        asked.now = 300
        assert await asked.upstream.slots() == b"[]"
        assert await asked.upstream.health() == 200
        assert (asked.busy_at, asked.upstream.last_byte) == ([], 100)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (whole([{"id": 0, "n_decoded": 5}]), b'[{"id": 0, "n_decoded": 5}]'),
        (whole({"error": {}}, b"501 X"), b""),
        (b"", b""),
        (b"x", b""),
    ],
)
async def test_what_an_engine_says_of_its_slots(answer: bytes, said: bytes) -> None:
    async with asking(answer) as (asked, engine):
        assert await asked.upstream.slots() == said
    assert engine.requests[0].startswith(b"GET /slots HTTP/1.1\r\n")


async def test_who_waits_for_a_hung_engine_gets_a_timeout_and_another_is_asked_where_nothing_came() -> None:
    async with held(HEAD + chunk(text("a")), b"") as (asked, engine):
        begun = asyncio.create_task(asked.answer())
        await until(lambda: asked.upstream.busy)
        engine.go_on()
        await until(lambda: asked.pieces != [])
        silent = asyncio.create_task(asked.answer())
        await until(lambda: len(engine.requests) == 2)
        asked.upstream.close("it hung", hung=True)
        with pytest.raises(EngineHung, match="it hung") as with_bytes:
            await begun
        with pytest.raises(EngineSilent, match="it hung") as without:
            await silent
    assert not isinstance(with_bytes.value, EngineGone)
    assert isinstance(without.value, EngineGone)
    assert with_bytes.value.kind is without.value.kind is Kind.TIMEOUT


async def test_the_first_reason_to_close_is_the_one_that_is_told() -> None:
    async with held(b"") as (asked, engine):
        running = asyncio.create_task(asked.answer())
        await until(lambda: engine.requests != [])
        asked.upstream.close("it hung", hung=True)
        asked.upstream.close("")
        with pytest.raises(EngineSilent, match="it hung"):
            await running
