"""One HTTP request to an engine over its Unix socket, on a connection of its own, which ends with it.

The body of the answer is handed on in the callback that received it: a task that is woken for each piece of it
would cost more than everything else. One connection for each request, because closing it is the only way to end the
engine's work. Source: RFC 9112, read by httptools, the parser that the server side uses too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import httptools

# Gets the next bytes of a body; None means that it took them, else it is what to wait for before it gets more.
TakeBytes = Callable[[bytes], Awaitable[None] | None]

_MAX_REFUSAL_BYTES = 64 * 1024


class BrokenOff(Exception):
    """The connection ended, or talked nonsense, before the answer was whole."""


class NobodyListens(BrokenOff):
    """There was no connection at all."""


class Exchange(asyncio.Protocol):
    """Sends `request`, whole bytes of HTTP/1.1, and gives the body of its answer to `take`.

    `status` is the answer's HTTP status, 0 before it is known. The body of any status but 200 is not given to `take`;
    its first 64 KiB are in `refusal`.
    """

    def __init__(self, request: bytes, take: TakeBytes) -> None:
        self.status = 0
        self.refusal = b""
        self._request = request
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._received: list[bytes] = []
        self._whole = False
        self._failure: Exception | None = None
        self._turn: asyncio.Future[Awaitable[None] | None] = self._loop.create_future()

    async def run(self, socket: Path) -> None:
        """Returns when the answer is whole. However it ends, the connection is closed then.

        Raises BrokenOff, and whatever `take` raises.
        """
        try:
            await self._connect(socket)
            while True:
                waiting = await self._turn
                if waiting is not None:
                    await waiting
                if self._failure is not None:
                    raise self._failure
                if self._whole:
                    return
                self._turn = self._loop.create_future()
                self._resume()
        finally:
            self.abort()

    def abort(self) -> None:
        """Cuts the connection; `run` raises BrokenOff then, if it has not come to its end."""
        self._fail(BrokenOff("the connection was cut"))
        if self._transport is not None:
            self._transport.abort()

    async def _connect(self, socket: Path) -> None:
        try:
            await self._loop.create_unix_connection(lambda: self, str(socket))
        except OSError as error:
            raise NobodyListens(error.strerror) from None

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _end_turn(self, waiting: Awaitable[None] | None = None) -> None:
        if not self._turn.done():
            self._turn.set_result(waiting)

    def _fail(self, error: Exception) -> None:
        if self._failure is None and not self._whole:
            self._failure = error
        self._end_turn()

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._failure is None:
            self._transport.write(self._request)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._failure is not None:
            return
        try:
            self._parser.feed_data(data)
            waiting = self._give() if self._received else None
        except httptools.HttpParserError as error:
            self._fail(BrokenOff(str(error)))
        except Exception as error:
            self._fail(error)
        else:
            if waiting is not None:
                self._transport.pause_reading()
                self._end_turn(waiting)
            elif self._whole:
                self._end_turn()

    def _give(self) -> Awaitable[None] | None:
        body, self._received = b"".join(self._received), []
        if self.status == 200:
            return self._take(body)
        self.refusal = (self.refusal + body)[:_MAX_REFUSAL_BYTES]
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(BrokenOff("the connection was lost"))

    # ---- called by the parser

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._received.append(body)

    def on_message_complete(self) -> None:
        self._whole = True
