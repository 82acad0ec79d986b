"""The one ASGI response for answers of a model, streamed or whole.

It waits for the first bytes before it sends a status, so an early error has its own status; after KEEP_ALIVE_SECONDS
without any, a stream gets its 200 and something that the client ignores. Later errors are in-band, in the dialect's
form. A client that leaves cancels the work at once, in every phase; one that stays and reads nothing is cut off.

Written here because Starlette's StreamingResponse sends 200 before the first item, and wakes a task for each.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from types import coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from daemon.chat import Answer, Assembly, Batch, Choice, Done, Piece, QuotedSink, Sink, TokenRequest
from daemon.errors import MgrError
from daemon.middleware.access import to_response
from daemon.middleware.dialect import BatchEncoder, Dialect, Encoder, Ending, Reply
from daemon.protocol import Client, client_of

T = TypeVar("T")

log = logging.getLogger("mgr.routes")

KEEP_ALIVE_SECONDS = 5.0
# A client may be behind for so long with one write; it holds a model's place meanwhile, which others may wait for.
STALLED_SECONDS = 60.0
_CLEAN_UP_SECONDS = 5.0

# Gives the pieces of the answer to one request to the sink and returns its end, or raises.
Work = Callable[[TokenRequest, Sink], Awaitable[Done]]


class ClientStalled(Exception):
    """The client stays connected and has read nothing for STALLED_SECONDS."""


class ModelResponse(Response):
    """Answers `request` with what `work` gives, in the form of `dialect`."""

    def __init__(self, dialect: Dialect, request: TokenRequest | Batch, work: Work) -> None:
        self.status_code = 200
        self.background = None
        self._dialect = dialect
        self._request = request
        self._work = work
        self._created = time.time()  # for display

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer() -> None:
            if self._request.stream:
                client = client_of(scope)
                try:
                    await self._stream(scope, receive, send, client)
                except ClientStalled:
                    log.warning("a client read nothing for %g s; its connection is cut", STALLED_SECONDS)
                    if client is not None:
                        client.abort()
            else:
                await to_response(await self._whole())(scope, receive, send)

        await until_client_leaves(answer, receive)

    async def _whole(self) -> Reply:
        request, dialect = self._request, self._dialect
        try:
            if isinstance(request, Batch):
                answers = await together([self._assembled(each) for each in request.requests])
                return dialect.replies(request, answers, self._created)
            return dialect.reply(request, await self._assembled(request), self._created)
        except Exception as error:
            return dialect.error(known(error))

    async def _assembled(self, request: TokenRequest) -> Answer:
        assembly = Assembly()

        def take(pieces: Sequence[Piece]) -> None:
            for piece in pieces:
                assembly.feed(piece)

        assembly.feed(await self._work(request, take))
        return assembly.answer()

    async def _stream(self, scope: Scope, receive: Receive, send: Send, client: Client | None) -> None:
        body = Body(send, self._dialect.stream_media_type, client)
        encoder, feeding = self._fed(body)
        try:
            with _KeptAlive(body, encoder):
                await feeding()
            last = encoder.finish()
        except ClientStalled:
            raise
        except Exception as error:
            if not body.started:
                await to_response(self._dialect.error(known(error)))(scope, receive, send)
                return
            last = encoder.fail(known(error))
        except asyncio.CancelledError:
            body.give_up()
            raise
        await body.end(last)

    def _fed(self, body: "Body") -> tuple[Ending, Callable[[], Awaitable[object]]]:
        """The encoder, and what feeds it with the whole answer, whose bytes go to `body`."""
        request = self._request
        if isinstance(request, Batch):
            batch = self._dialect.batch_encoder(request, self._created)
            choices = [partial(self._choice, body, batch, *each) for each in enumerate(request.requests)]
            return batch, lambda: together([choice() for choice in choices])
        encoder = self._dialect.encoder(request, self._created)
        sink = _Encoded(encoder, body)

        async def feeding() -> None:
            encoder.feed(await self._work(request, sink))

        return encoder, feeding

    async def _choice(self, body: "Body", encoder: BatchEncoder, index: int, request: TokenRequest) -> None:
        def take(pieces: Sequence[Piece]) -> Awaitable[None] | None:
            return body.push(b"".join([encoder.feed_choice(Choice(index, piece)) for piece in pieces]))

        done = await self._work(request, take)
        await body.write(encoder.feed_choice(Choice(index, done)))


class _Encoded(QuotedSink):
    """Pushes the bytes of the pieces of one answer."""

    def __init__(self, encoder: Encoder, body: "Body") -> None:
        self._feed = encoder.feed
        self._feed_quoted = encoder.feed_quoted
        self._push = body.push

    def __call__(self, pieces: Sequence[Piece]) -> Awaitable[None] | None:
        return self._push(b"".join([self._feed(piece) for piece in pieces]))

    def quoted(self, text: bytes) -> Awaitable[None] | None:
        return self._push(self._feed_quoted(text))


async def together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What they return, in their order. The first error ends all of them, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as errors:
        first: Exception = errors
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return [task.result() for task in tasks]


class ReplyResponse(Response):
    """Answers with one reply that `work` makes; a client that leaves ends the work."""

    def __init__(self, dialect: Dialect, work: Callable[[], Awaitable[Reply]]) -> None:
        self.status_code = 200
        self.background = None
        self._dialect = dialect
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer() -> None:
            await to_response(await self._reply())(scope, receive, send)

        await until_client_leaves(answer, receive)

    async def _reply(self) -> Reply:
        try:
            return await self._work()
        except Exception as error:
            return self._dialect.error(known(error))


class Body:
    """The streamed body. The head goes out with the first bytes."""

    def __init__(self, send: Send, media_type: str, client: Client | None = None) -> None:
        self._send = send
        self._media_type = media_type
        self._client = client
        self._behind: asyncio.Task[None] | None = None
        self.started = False
        self.written = time.monotonic()

    @property
    def blocked(self) -> bool:
        """Whether the client is behind: what was pushed last has not been sent yet."""
        return self._behind is not None and not self._behind.done()

    def push(self, data: bytes) -> Awaitable[None] | None:
        """Sends at once while the client keeps up. Else returns what to wait for before more is pushed, which raises
        ClientStalled when that is too long."""
        if not data:
            return self._behind
        if self.started and self._behind is None and self._client is not None and self._client.write(data):
            self.written = time.monotonic()
            return None
        self._behind = at_once(self._write(data))
        return self._behind

    async def write(self, data: bytes) -> None:
        if (waiting := self.push(data)) is not None:
            await waiting

    async def end(self, data: bytes = b"") -> None:
        """The last bytes, and the end of the body. Raises ClientStalled."""
        if (rest := at_once(self._write(data, more=False))) is not None:
            await rest

    def give_up(self) -> None:
        """What could not be sent yet never will be."""
        if self._behind is not None:
            self._behind.cancel()

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        if self._behind is not None:
            await self._behind
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers()})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self.written = time.monotonic()

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", self._media_type.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]


def at_once(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
    """Runs `work` here and now, up to where it has to wait. That is nearly always its end; else a task goes on with it.

    An ASGI server's `send` waits only while its client is behind, and a task for each chunk would cost more than all
    the rest of a chunk's way. The task raises ClientStalled when it has to wait too long.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return asyncio.create_task(_go_on(work, waits_for), name="rest of a write")


async def _go_on(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    try:
        async with asyncio.timeout(STALLED_SECONDS):
            await _resumed(work, waits_for)
    except TimeoutError:
        raise ClientStalled from None


@coroutine
def _resumed(work: Coroutine[Any, Any, None], waits_for: Any) -> Iterator[Any]:
    """Yields to the event loop what `work` waits for, as `await` would have."""
    try:
        while True:
            try:
                answer = yield waits_for
            except BaseException as error:
                waits_for = work.throw(error)
            else:
                waits_for = work.send(answer)
    except StopIteration:
        pass
    finally:
        work.close()


class _KeptAlive:
    """While entered, sends what the client ignores when nothing else was sent for KEEP_ALIVE_SECONDS."""

    def __init__(self, body: Body, encoder: Ending) -> None:
        self._body = body
        self._encoder = encoder
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        self._sleep(KEEP_ALIVE_SECONDS)

    def __exit__(self, *raised: object) -> None:
        self._timer.cancel()

    def _sleep(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._beat)

    def _beat(self) -> None:
        pause = self._body.written + KEEP_ALIVE_SECONDS - time.monotonic()
        if pause <= 0:
            pause = KEEP_ALIVE_SECONDS
            if not self._body.blocked:
                try:
                    self._body.push(self._encoder.keep_alive())
                except Exception:  # whoever writes next meets it too
                    log.debug("a keep-alive could not be sent", exc_info=True)
                    return
        self._sleep(pause)


async def until_client_leaves(work: Callable[[], Coroutine[None, None, None]], receive: Receive) -> None:
    """Runs `work`, and cancels it when the client leaves. The request's body must have been read."""
    working = asyncio.create_task(work(), name="answer")
    leaving = asyncio.create_task(_left(receive), name="disconnect")
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        working.cancel()
        # The server may cancel us too; the work's own clean-up must still come to its end.
        await asyncio.shield(asyncio.wait({working}, timeout=_CLEAN_UP_SECONDS))
    if not working.cancelled() and working.done():
        working.result()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def known(error: Exception) -> MgrError:
    """The error itself if it is one of ours; else one that tells a client nothing about our inside."""
    if isinstance(error, MgrError):
        return error
    log.error("a request failed in an unforeseen way", exc_info=error)
    return MgrError("internal error; see mgr's log")
