"""HTTP to one engine: asks it, reads its answer, and tells apart how that can go wrong."""

import asyncio
from collections.abc import Awaitable, Callable

from daemon.chat import Done, Piece, Sink, TokenRequest
from daemon.errors import EngineFailed, EngineGone
from daemon.framing import FramingError, SseDecoder, to_json
from daemon.runner.endpoint import Endpoint
from daemon.runner.exchange import BrokenOff, Exchange, NobodyListens
from daemon.runner.wire import AnswerReader, body_for, error_from, parse_object, path_for, plain_texts

_PROBE_SECONDS = 2.0
_JSON = "Content-Type: application/json"


class Upstream:
    """A client of the engine at `endpoint`.

    `on_lost` is awaited when the engine, although it was ready, broke a request off; its argument says whether
    it does not even listen any more.
    """

    def __init__(self, endpoint: Endpoint, on_lost: Callable[[bool], Awaitable[None]]) -> None:
        self._endpoint = endpoint
        self._on_lost = on_lost
        self._closed = False
        self._reason = ""
        self._open: set[Exchange] = set()

    async def health(self) -> int | None:
        """The status of the engine's health route: 503 while it loads, 200 when ready, None when nobody answers."""
        exchange = Exchange(self._head("GET", "/health"), lambda body: None)
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self._run(exchange)
        except (BrokenOff, TimeoutError):
            return None
        return exchange.status

    async def answer(self, request: TokenRequest, sink: Sink) -> Done:
        """Gives the pieces of one answer to `sink` and returns its end. Cancelling ends the engine's work on it.

        Raises EngineFailed (EngineGone before it answered at all), InvalidRequest or PromptTooLong.
        """
        pieces = _Pieces(sink)
        body = to_json(body_for(request))
        head = self._head("POST", path_for(request), f"Content-Length: {len(body)}", _JSON)
        exchange = Exchange(head + body, pieces.take)
        try:
            await self._asked(exchange)
        except EngineFailed:
            if not pieces.complete:
                raise
        if exchange.status != 200:
            raise error_from(parse_object(exchange.refusal).get("error"), exchange.status)
        return pieces.end()

    async def _asked(self, exchange: Exchange) -> None:
        try:
            await self._run(exchange)
        except BrokenOff as error:
            await self._on_lost(isinstance(error, NobodyListens))
            why = f": {self._reason}" if self._reason else ""
            if exchange.status or self._reason:
                raise EngineFailed(f"the engine stopped while it worked on the answer{why}") from None
            raise EngineGone("the engine stopped before it answered; ask again") from None

    async def _run(self, exchange: Exchange) -> None:
        if self._closed:
            raise BrokenOff(self._reason)
        self._open.add(exchange)
        try:
            await exchange.run(self._endpoint.socket)
        finally:
            self._open.discard(exchange)

    def _head(self, method: str, path: str, *fields: str) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: engine",
            f"Authorization: Bearer {self._endpoint.key}",
            "Connection: close",
            *fields,
        ]
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def close(self, reason: str) -> None:
        """Cuts every stream, so that the engine stops at once; their readers get EngineFailed with the reason."""
        self._closed = True
        self._reason = self._reason or reason
        for exchange in [*self._open]:
            exchange.abort()


class _Pieces:
    """From the bytes of an event stream to the pieces of an answer."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._decoder = SseDecoder()
        self._reader = AnswerReader()
        self._between_events = True

    def take(self, body: bytes) -> Awaitable[None] | None:
        pieces, rest = plain_texts(body) if self._between_events else ([], body)
        waiting = None
        try:
            if rest:
                self._read(rest, pieces)
        finally:  # what came before an error is not lost
            if pieces:
                waiting = self._sink(pieces)
        return waiting

    def _read(self, body: bytes, pieces: list[Piece]) -> None:
        try:
            received = self._decoder.feed(body)
        except FramingError as error:
            raise EngineFailed(f"the engine sent a broken stream: {error}") from None
        self._between_events = self._decoder.between_events
        for event in received:
            pieces.extend(self._reader.read(event.data))

    @property
    def complete(self) -> bool:
        """Whether the engine has said that nothing more comes."""
        return self._reader.complete

    def end(self) -> Done:
        return self._reader.end()
