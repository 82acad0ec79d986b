"""The one ASGI response for answers of a model, streamed or whole.

It waits for the first bytes before it sends a status, so an early error has its own status; after KEEP_ALIVE_SECONDS
without any, a stream gets its 200 and something that the client ignores. Later errors are in-band, in the dialect's
form. A client that leaves cancels the work at once, in every phase, and whatever happens the events are closed.

Written here because Starlette's StreamingResponse sends 200 before the first item and does not close the generator
when sending fails.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from daemon.chat import Assembly, Event, TokenRequest
from daemon.errors import MgrError
from daemon.middleware.access import to_response
from daemon.middleware.dialect import Dialect, Encoder

log = logging.getLogger("mgr.routes")

KEEP_ALIVE_SECONDS = 5.0
_CLEAN_UP_SECONDS = 5.0

Events = Callable[[], AsyncGenerator[Event, None]]


class ModelResponse(Response):
    """Answers `request` with the events that `events` yields, in the form of `dialect`."""

    def __init__(self, dialect: Dialect, request: TokenRequest, events: Events) -> None:
        self.status_code = 200
        self.background = None
        self._dialect = dialect
        self._request = request
        self._events = events
        self._created = time.time()  # for display

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer() -> None:
            if self._dialect.wants_stream(self._request):
                await self._stream(scope, receive, send)
            else:
                await self._whole(scope, receive, send)

        await until_client_leaves(answer, receive)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        assembly = Assembly()
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    assembly.feed(event)
            reply = self._dialect.reply(self._request, assembly.answer(), self._created)
        except Exception as error:
            reply = self._dialect.error(known(error))
        await to_response(reply)(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        encoder = self._dialect.encoder(self._request, self._created)
        body = Body(send, self._dialect.stream_media_type)
        try:
            async with _kept_alive(body, encoder), aclosing(self._events()) as events:
                async for event in events:
                    await body.write(encoder.feed(event))
            await body.write(encoder.finish())
        except Exception as error:
            if not body.started:
                await to_response(self._dialect.error(known(error)))(scope, receive, send)
                return
            await body.write(encoder.fail(known(error)))
        await body.end()


class Body:
    """The streamed body. The head goes out with the first bytes."""

    def __init__(self, send: Send, media_type: str) -> None:
        self._send = send
        self._media_type = media_type
        self._lock = asyncio.Lock()  # the keep-alive writes too
        self.started = False
        self.written = time.monotonic()

    async def write(self, data: bytes) -> None:
        if not data:
            return
        async with self._lock:
            if not self.started:
                await self._start()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self.written = time.monotonic()

    async def end(self) -> None:
        async with self._lock:
            if not self.started:
                await self._start()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self) -> None:
        headers = [
            (b"content-type", self._media_type.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self.started = True


@asynccontextmanager
async def _kept_alive(body: Body, encoder: Encoder) -> AsyncIterator[None]:
    async def beat() -> None:
        while True:
            pause = body.written + KEEP_ALIVE_SECONDS - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            else:
                await body.write(encoder.keep_alive())
                body.written = time.monotonic()

    beating = asyncio.create_task(beat(), name="keep-alive")
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


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
