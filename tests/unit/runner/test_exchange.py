"""One HTTP exchange over a Unix socket: what is handed on and when, how it breaks off, and that it is closed."""

import asyncio
import errno
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.runner.exchange import BrokenOff, Exchange, NobodyListens

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Path]:
    """A server that reads the request's head and then does what `script` says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await script(reader, writer)
        writer.close()

    with tempfile.TemporaryDirectory(prefix="mgr-") as folder:
        socket = Path(folder) / "x.sock"
        async with await asyncio.start_unix_server(serve, socket):
            yield socket


def saying(*pieces: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return script


async def fetched(script: Script) -> tuple[int, bytes, bytes]:
    taken = bytearray()

    def take(body: bytes) -> None:
        taken.extend(body)

    exchange = Exchange(REQUEST, take)
    async with serving(script) as socket:
        await exchange.run(socket)
    return exchange.status, bytes(taken), exchange.refusal


async def test_a_body_in_chunks() -> None:
    assert await fetched(saying(HEAD, chunk(b"a"), chunk(b"bc"), END)) == (200, b"abc", b"")


class Sender(asyncio.Transport):
    """The other side of an exchange that is fed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = False

    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        self.cut = True


@given(
    st.lists(st.sampled_from([b"a", b"bc", chunk(b"de"), chunk(b"x" * 300), b"f\r\n", b"\r\n"]), min_size=1),
    st.lists(st.integers(0, 400)),
)
async def test_chunks_that_look_like_chunks_inside_cut_anywhere(
    contents: list[bytes], cuts: list[int]
) -> None:
    taken: list[bytes] = []
    exchange = Exchange(REQUEST, taken.append)
    exchange.connection_made(Sender())
    exchange.data_received(HEAD)
    rest = b"".join(map(chunk, contents)) + END
    for cut in cuts:
        exchange.data_received(rest[:cut])
        rest = rest[cut:]
    exchange.data_received(rest)
    assert b"".join(taken) == b"".join(contents)


async def test_small_chunks_one_by_one_need_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes] = []
    parsed: list[bytes] = []

    class Parser(httptools.HttpResponseParser):
        def feed_data(self, data: Any) -> None:
            parsed.append(data)
            super().feed_data(data)

    monkeypatch.setattr(httptools, "HttpResponseParser", Parser)
    exchange = Exchange(REQUEST, taken.append)
    exchange.connection_made(Sender())
    contents = [b"a", b"b" * 15, b"c" * 16, b"d" * 255, b"e" * 256, b"f" * 1023, b"g" * 1024, b"h" * 5000]
    for data in [HEAD, *map(chunk, contents)]:
        exchange.data_received(data)
    assert taken == contents
    assert parsed == [HEAD, chunk(b"a"), chunk(b"g" * 1024), chunk(b"h" * 5000)]


async def test_nothing_is_taken_after_the_end() -> None:
    taken: list[bytes] = []
    exchange = Exchange(REQUEST, taken.append)
    exchange.connection_made(Sender())
    for data in (HEAD, chunk(b"a"), END, chunk(b"b")):
        exchange.data_received(data)
    assert taken == [b"a"]


async def test_nothing_is_taken_after_an_error() -> None:
    taken: list[bytes] = []

    def take(body: bytes) -> None:
        taken.append(body)
        if body == b"b":
            raise OSError("the client is gone")

    exchange = Exchange(REQUEST, take)
    exchange.connection_made(Sender())
    for data in (HEAD, chunk(b"a"), chunk(b"b"), chunk(b"c"), chunk(b"d")):
        exchange.data_received(data)
    assert taken == [b"a", b"b"]


async def test_a_body_of_known_length_cut_anywhere() -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    for cut in range(1, len(whole)):
        assert await fetched(saying(whole[:cut], whole[cut:])) == (200, b"abc", b"")


async def test_what_arrives_together_is_handed_on_together() -> None:
    taken: list[bytes] = []

    def take(body: bytes) -> None:
        taken.append(body)

    async with serving(saying(HEAD + chunk(b"a") + chunk(b"b") + chunk(b"c") + END)) as socket:
        await Exchange(REQUEST, take).run(socket)
    assert taken == [b"abc"]


async def test_a_refusal_is_kept_and_bounded() -> None:
    body = b"x" * 100_000
    refused = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 100000\r\n\r\n" + body
    assert await fetched(saying(refused)) == (400, b"", body[: 64 * 1024])


@pytest.mark.parametrize(
    "pieces", [[], [HEAD], [HEAD, chunk(b"a")], [b"220 mail.example ESMTP\r\n"], [HEAD, b"zz\r\n"]]
)
async def test_what_breaks_off_or_is_no_http(pieces: list[bytes]) -> None:
    with pytest.raises(BrokenOff):
        await fetched(saying(*pieces))


async def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(NobodyListens):
        await Exchange(REQUEST, lambda body: None).run(tmp_path / "none.sock")


async def test_an_error_of_the_taker_ends_the_exchange() -> None:
    left = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"a"))
        await reader.read()
        left.set()

    def take(body: bytes) -> None:
        raise OSError("the client is gone")

    async with serving(script) as socket:
        with pytest.raises(OSError, match="gone"):
            await Exchange(REQUEST, take).run(socket)
        async with asyncio.timeout(60):
            await left.wait()


async def test_a_taker_that_is_behind_holds_the_sender_back() -> None:
    """The sender can be ahead by what the sockets hold, not by a megabyte more."""
    size = 64 * 1024
    catch_up, taken, sent = asyncio.Event(), bytearray(), 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(HEAD)
        for _ in range(200):
            writer.write(chunk(b"x" * size))
            await writer.drain()
            sent += size
        writer.write(END)

    def take(body: bytes) -> Awaitable[None] | None:
        taken.extend(body)
        return None if catch_up.is_set() else wait()

    async def wait() -> None:
        await catch_up.wait()

    async with serving(script) as socket:
        running = asyncio.create_task(Exchange(REQUEST, take).run(socket))
        async with asyncio.timeout(60):
            while not taken:
                await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(0.01)  # time enough to take too much
        assert size <= sent < 100 * size
        assert size <= len(taken) < 100 * size
        catch_up.set()
        await running
    assert len(taken) == 200 * size


async def test_the_last_bytes_are_waited_for() -> None:
    catch_up = asyncio.Event()

    async def wait() -> None:
        await catch_up.wait()

    async with serving(saying(HEAD + chunk(b"a") + END)) as socket:
        running = asyncio.create_task(Exchange(REQUEST, lambda body: wait()).run(socket))
        await asyncio.sleep(0.05)
        assert not running.done()
        catch_up.set()
        await running


@pytest.mark.parametrize("end", [b"", END, b"zz\r\n"], ids=["more to come", "whole", "nonsense"])
async def test_what_the_taker_raises_is_raised_whatever_came_with_it(end: bytes) -> None:
    def take(body: bytes) -> None:
        raise ValueError("not what was expected")

    async with serving(saying(HEAD + chunk(b"a") + end)) as socket:
        with pytest.raises(ValueError, match="not what was expected"):
            await Exchange(REQUEST, take).run(socket)


async def test_what_came_before_nonsense_is_handed_on() -> None:
    taken = bytearray()
    async with serving(saying(HEAD + chunk(b"abc") + b"zz\r\n")) as socket:
        with pytest.raises(BrokenOff):
            await Exchange(REQUEST, taken.extend).run(socket)
    assert taken == b"abc"


async def test_junk_behind_a_whole_answer_is_nobodys_business() -> None:
    assert await fetched(saying(HEAD + chunk(b"abc") + END + b"junk")) == (200, b"abc", b"")


async def test_cutting_it_does_not_wait_for_a_taker_that_is_behind() -> None:
    begun, catch_up = asyncio.Event(), asyncio.Event()
    waits: list[asyncio.Task[bool]] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"a"))
        await reader.read()

    def take(body: bytes) -> Awaitable[None]:
        begun.set()
        waits.append(asyncio.create_task(catch_up.wait()))
        return waits[0]  # type: ignore[return-value]

    exchange = Exchange(REQUEST, take)
    async with serving(script) as socket:
        running = asyncio.create_task(exchange.run(socket))
        await begun.wait()
        await asyncio.sleep(0)
        exchange.abort()
        async with asyncio.timeout(60):
            with pytest.raises(BrokenOff, match="cut"):
                await running
    assert not waits[0].done()  # what the taker still has to do is its own
    catch_up.set()
    await waits[0]


async def test_a_fault_of_this_side_is_no_silence_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", refuse)
    with pytest.raises(BrokenOff, match="Too many open files") as failure:
        await Exchange(REQUEST, lambda body: None).run(Path("x.sock"))
    assert not isinstance(failure.value, NobodyListens)


@pytest.mark.parametrize("how", ["abort", "cancel"])
async def test_cutting_it_closes_the_connection(how: str) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"a"))
        await reader.read()
        left.set()

    exchange = Exchange(REQUEST, lambda body: begun.set())
    async with serving(script) as socket:
        running = asyncio.create_task(exchange.run(socket))
        await begun.wait()
        if how == "abort":
            exchange.abort()
            with pytest.raises(BrokenOff):
                await running
        else:
            running.cancel()
            await asyncio.wait({running})
        async with asyncio.timeout(60):
            await left.wait()


@pytest.mark.parametrize(
    ("body", "moved"),
    [
        (b'data: {"a": 1}\n\n', True),
        (b"{}", True),
        (b":\n\n", False),
        (b": still here\n\n:\r\n\r\n", False),
        (b':\n\ndata: {"a": 1}\n\n', True),
    ],
)
async def test_a_comment_in_a_stream_is_no_progress(body: bytes, moved: bool) -> None:
    exchange = Exchange(REQUEST, lambda body: None)
    assert not exchange.moved()
    async with serving(saying(HEAD + chunk(body) + END)) as socket:
        await exchange.run(socket)
    assert [exchange.moved(), exchange.moved()] == [moved, False]


async def test_an_engine_is_not_to_blame_while_the_taker_is_behind() -> None:
    begun, catch_up = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"a"))
        await reader.read()

    async def wait() -> None:
        begun.set()
        await catch_up.wait()

    exchange = Exchange(REQUEST, lambda body: wait())
    async with serving(script) as socket:
        running = asyncio.create_task(exchange.run(socket))
        await begun.wait()
        assert [exchange.moved(), exchange.moved()] == [True, True]
        catch_up.set()
        async with asyncio.timeout(60):
            while exchange.moved():
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})
