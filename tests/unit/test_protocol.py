import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from daemon.protocol import HEAD_SECONDS, MAX_HEAD_BYTES, BoundedProtocol, client_of

START = b"GET / HTTP/1.1\r\nHost: x\r\n"


class Wire(asyncio.Transport):
    """What the protocol wrote, and whether it hung up."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Clock:
    """Timers that a test lets go off."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(0, callback, (), asyncio.get_running_loop())
        self.timers.append((delay, callback, handle))
        return handle

    def strike(self) -> None:
        """The head's time is over."""
        for delay, callback, handle in self.timers:
            if delay == HEAD_SECONDS and not handle.cancelled():
                callback()


class Connection:
    def __init__(self) -> None:
        self.wire, self.clock, self.requests = Wire(), Clock(), 0
        self.answer = asyncio.Event()
        self.answer.set()
        config = Config(self._app, interface="asgi3", lifespan="off", log_config=None, access_log=False)
        self.protocol = BoundedProtocol(
            config,
            ServerState(),
            {},
            _loop=self.clock,  # type: ignore[arg-type]
        )
        self.protocol.connection_made(self.wire)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        await self.answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.wire.closed:
                self.protocol.data_received(piece)
        while self.protocol.tasks and self.answer.is_set():
            await asyncio.sleep(0)

    @property
    def refused(self) -> bool:
        assert (self.wire.written.startswith(b"HTTP/1.1 400 ")) == (self.requests == 0 and self.wire.closed)
        return self.requests == 0


@pytest.fixture
async def connection() -> Connection:
    return Connection()


def head(size: int, name: bytes = b"X: ") -> bytes:
    """A head whose target, names and values have `size` bytes."""
    counted = len(b"/" + b"Host" + b"x" + name.rstrip(b": "))
    return START + name + b"a" * (size - counted) + b"\r\n\r\n"


async def test_the_largest_head(connection: Connection) -> None:
    await connection.feed(head(MAX_HEAD_BYTES))
    assert not connection.refused
    assert connection.wire.written.startswith(b"HTTP/1.1 204 ")


async def test_a_byte_more_in_one_piece(connection: Connection) -> None:
    await connection.feed(head(MAX_HEAD_BYTES + 1))
    assert connection.refused


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /",
        START + b"X: ",
        START + b"x",
        b"\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        START + b"Transfer-Encoding: chunked\r\n\r\n5;",
    ],
    ids=["target", "value", "name", "blank lines", "trailer", "chunk extension"],
)
async def test_what_never_ends_is_cut_off(connection: Connection, begin: bytes) -> None:
    more = b"\r\n" * 2048 if begin == b"\r\n" else b"a" * 4096
    sent = 0
    connection.answer.clear()
    await connection.feed(begin)
    while not connection.wire.closed and sent < 1_000_000:
        await connection.feed(more)
        sent += len(more)
    assert connection.wire.closed
    assert sent <= MAX_HEAD_BYTES + len(more)


async def test_many_small_headers(connection: Connection) -> None:
    await connection.feed(START, *[b"X: a\r\n" * 100] * 1000)
    assert connection.refused


@pytest.mark.parametrize(
    "line",
    [b"GET http://evil.example/ ", b"GET http://evil.example ", b"OPTIONS * ", b"CONNECT evil.example:80 "],
)
async def test_what_is_asked_for_is_a_path(connection: Connection, line: bytes) -> None:
    await connection.feed(line + b"HTTP/1.1\r\nHost: x\r\n\r\n")
    assert connection.refused


async def test_a_large_body_is_no_head(connection: Connection) -> None:
    body = b"a" * 1_000_000
    head_and_body = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + body
    pieces = [head_and_body[i : i + 65536] for i in range(0, len(head_and_body), 65536)]
    await connection.feed(*pieces)
    await connection.feed(head(1000))
    assert connection.requests == 2
    assert not connection.wire.closed


async def test_each_head_counts_for_itself(connection: Connection) -> None:
    for _ in range(5):
        await connection.feed(head(MAX_HEAD_BYTES // 2))
    assert connection.requests == 5
    assert not connection.wire.closed


@pytest.mark.parametrize("begin", [b"", b"GET", START])
async def test_a_head_that_does_not_come(connection: Connection, begin: bytes) -> None:
    if begin:
        await connection.feed(begin)
    connection.clock.strike()
    assert connection.wire.closed
    assert connection.requests == 0


async def test_the_second_head_does_not_come(connection: Connection) -> None:
    await connection.feed(head(100))
    connection.clock.strike()
    assert not connection.wire.closed  # idle connections have uvicorn's own limit
    await connection.feed(START)
    connection.clock.strike()
    assert connection.wire.closed


async def test_an_answer_is_not_cut_off_by_half_a_head_behind_it(connection: Connection) -> None:
    connection.answer.clear()
    await connection.feed(head(100) + START)
    connection.clock.strike()
    assert not connection.wire.closed
    connection.answer.set()
    await connection.feed(b"")
    assert connection.requests == 1


async def test_a_connection_that_ended_has_no_timer(connection: Connection) -> None:
    await connection.feed(START)
    connection.protocol.connection_lost(None)
    connection.wire.closed = False
    connection.clock.strike()
    assert not connection.wire.closed


async def test_the_short_way_writes_what_the_long_way_writes(connection: Connection) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        client = client_of(scope)
        assert client is not None
        assert not client.write(b"before its head")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"twelve bytes", "more_body": True})
        assert client.write(b"twelve bytes")
        connection.protocol.pause_writing()
        assert not client.write(b"while the client is behind")
        connection.protocol.resume_writing()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        assert not client.write(b"after the end")

    connection.protocol.app = app
    await connection.feed(START + b"\r\n")
    body = connection.wire.written.partition(b"\r\n\r\n")[2]
    assert body == b"c\r\ntwelve bytes\r\n" * 2 + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "how",
    [
        lambda connection: connection.protocol.connection_lost(None),
        lambda connection: connection.wire.close(),
    ],
    ids=["lost", "closing"],
)
async def test_the_short_way_ends_with_the_connection(
    connection: Connection, how: Callable[[Connection], None]
) -> None:
    wrote = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        client = client_of(scope)
        assert client is not None
        how(connection)
        wrote.append(client.write(b"nobody reads this"))

    connection.protocol.app = app
    await connection.feed(START + b"\r\n")
    assert wrote == [False]
    assert b"nobody" not in connection.wire.written


async def test_a_client_that_is_cut_off_gets_no_more(connection: Connection) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        client = client_of(scope)
        assert client is not None
        client.abort()
        await send({"type": "http.response.body", "body": b"nobody reads this", "more_body": True})

    connection.protocol.app = app
    await connection.feed(START + b"\r\n")
    assert connection.wire.closed
    assert b"nobody" not in connection.wire.written


def test_a_server_of_another_kind_has_no_short_way() -> None:
    assert client_of({"type": "http"}) is None


async def test_a_request_that_comes_while_another_is_answered_ends_both(connection: Connection) -> None:
    """A client that leaves is not seen while a second request waits, so none may wait."""
    connection.answer.clear()
    await connection.feed(START + b"\r\n")
    await asyncio.sleep(0)
    closed = [connection.wire.closed]
    await connection.feed(START + b"\r\n")
    assert [*closed, connection.wire.closed] == [False, True]
    connection.protocol.connection_lost(None)
    assert connection.protocol.cycle.disconnected
    connection.answer.set()
    await connection.feed()
    assert connection.requests == 1


async def test_requests_one_after_the_other(connection: Connection) -> None:
    for number in range(1, 4):
        await connection.feed(START + b"\r\n")
        assert connection.requests == number
    assert not connection.wire.closed
