"""One HTTP request to an engine over its Unix socket, on a connection of its own, which ends with it.

The body of the answer is handed on in the callback that received it: a task that is woken for each piece of it
would cost more than everything else. One connection for each request, because closing it is the only way to end the
engine's work. Source: RFC 9112, read by httptools, the parser that the server side uses too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httptools

from daemon.chunked import LINE_END, content_of

# Gets the next bytes of a body; None means that it took them, else it is what to wait for before it gets more.
TakeBytes = Callable[[bytes], Awaitable[None] | None]

_MAX_REFUSAL_BYTES = 64 * 1024


class BrokenOff(Exception):
    """The connection ended, or talked nonsense, before the answer was whole."""


class NobodyListens(BrokenOff):
    """There was no connection, because nothing accepts any."""


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
        self._received: list[bytes] = []
        self.on_body = (
            self._received.append
        )  # called by the parser, for each chunk: so it is no method of ours
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._chunk_ended = self._between_chunks = False
        self._whole = False
        self._latest = b""  # of the body, since `moved` was asked
        self._behind = False
        # The next moment that `run` is needed, with what to wait for then; and why it cannot go on.
        self._turn: asyncio.Future[Awaitable[None] | None] = self._loop.create_future()
        self._failed: asyncio.Future[Exception] = self._loop.create_future()

    async def run(self, socket: Path) -> None:
        """Returns when the answer is whole and taken. However it ends, the connection is closed then.

        Raises BrokenOff, and whatever `take` raises.
        """
        try:
            await self._connect(socket)
            while True:
                if (waiting := await self._turn) is not None:
                    await self._caught_up(waiting)
                if self._failed.done():
                    raise self._failed.result()
                if self._whole:
                    return
                self._turn = self._loop.create_future()
                self._resume()
        finally:
            self.abort()

    def abort(self) -> None:
        """Cuts the connection; `run` raises BrokenOff then, also while its taker is behind, unless all was received."""
        self._break_off("the connection was cut")
        if self._transport is not None:
            self._transport.abort()

    def moved(self) -> bool:
        """Whether the engine has sent something since this was asked last; a comment in a stream is nothing.

        The comments of an engine come after 30 s of silence (`--sse-ping-interval`): who asks more often than that
        misses nothing, though only the latest bytes are looked at. While its taker is behind nothing is read; what
        the engine does then is not known, and it counts as moving.
        """
        latest, self._latest = self._latest, b""
        return self._behind or any(line and not line.startswith(b":") for line in latest.splitlines())

    async def _connect(self, socket: Path) -> None:
        try:
            await self._loop.create_unix_connection(lambda: self, str(socket))
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise NobodyListens(error.strerror) from None
        except OSError as error:  # of this side: no descriptor is left, for instance
            raise BrokenOff(error.strerror) from None

    async def _caught_up(self, waiting: Awaitable[None]) -> None:
        behind = asyncio.ensure_future(waiting)
        both: set[asyncio.Future[Any]] = {behind, self._failed}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            behind.cancel()
            raise
        if behind.done():
            self._behind = False
            behind.result()

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _end_turn(self, waiting: Awaitable[None] | None = None) -> None:
        if not self._turn.done():
            self._turn.set_result(waiting)

    def _fail(self, error: Exception) -> None:
        self._between_chunks = False  # nothing is taken any more
        if not self._failed.done():
            self._failed.set_result(error)
        self._end_turn()

    def _break_off(self, why: str) -> None:
        if not self._whole:
            self._fail(BrokenOff(why))

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._failed.done():
            self._transport.abort()
        else:
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._between_chunks and (body := content_of(data)) is not None:
            self._hand_on(body)
        elif not self._failed.done():
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        nonsense = ""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            nonsense = str(error)
        # Else the parser may have seen a part of the next chunk's size.
        self._between_chunks = self._chunk_ended and data.endswith(LINE_END) and not self._whole
        if self._received:
            body = b"".join(self._received)
            self._received.clear()
            self._hand_on(body)
        if nonsense:
            self._break_off(nonsense)
        if self._whole:
            self._end_turn()

    def _hand_on(self, body: bytes) -> None:
        self._latest = body
        try:
            waiting = self._take(body)
        except Exception as error:
            self._fail(error)
            return
        if waiting is not None:
            self._pause()
            self._behind = True
            self._end_turn(waiting)

    def connection_lost(self, exc: Exception | None) -> None:
        self._break_off("the connection was lost")

    def _refuse(self, body: bytes) -> None:
        self.refusal = (self.refusal + body)[:_MAX_REFUSAL_BYTES]

    def _pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    # ---- called by the parser

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status != 200:
            self._take = self._refuse

    def on_chunk_header(self) -> None:
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        self._chunk_ended = True

    def on_message_complete(self) -> None:
        self._whole = True
