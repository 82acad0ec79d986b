"""HTTP to one engine: asks it, reads its answer, and tells apart how that can go wrong."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from daemon.chat import CompletionRequest, Done, Piece, QuotedSink, Sink, TokenRequest
from daemon.errors import EngineFailed, EngineGone, EngineHung, EngineSilent
from daemon.framing import FramingError, SseDecoder, to_json
from daemon.runner.endpoint import Endpoint
from daemon.runner.exchange import BrokenOff, Exchange, NobodyListens, TakeBytes
from daemon.runner.plain import PlainTexts, plain_texts
from daemon.runner.progress import ANSWER_SECONDS
from daemon.runner.reader import AnswerReader
from daemon.runner.received import error_from, parse_object, text
from daemon.runner.wire import body_for, path_for

_PROBE_SECONDS = 2.0
_MAX_WHOLE_BYTES = 64 * 1024 * 1024
_JSON = "Content-Type: application/json"


class Upstream:
    """A client of the engine at `endpoint`.

    `on_busy` is called when a request is made while no other is open. `on_lost` is awaited when the engine, although
    it was ready, broke a request off; its argument says whether it does not even listen any more.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        on_busy: Callable[[], None],
        on_lost: Callable[[bool], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._on_busy = on_busy
        self._on_lost = on_lost
        self._clock = clock
        self._closed = False
        self._reason = ""
        self._hung = False
        self._open: set[Exchange] = set()
        self._busy_since = self._last_byte = clock()

    @property
    def busy(self) -> bool:
        return bool(self._open)

    @property
    def last_byte(self) -> float:
        """When the engine sent something last, as far as it was looked: here, and at the end of each exchange."""
        moved = [exchange.moved() for exchange in self._open]  # each has to be asked
        if any(moved):
            self._last_byte = self._clock()
        return self._last_byte

    @property
    def last_progress(self) -> float | None:
        """The same, or when it became busy, if that was later; None while nothing is asked of it."""
        return max(self.last_byte, self._busy_since) if self._open else None

    async def health(self) -> int | None:
        """The status of the engine's health route: 503 while it loads, 200 when ready, None when nobody answers."""
        return await self._probed("/health", lambda body: None, _PROBE_SECONDS)

    async def slots(self) -> bytes:
        """What the engine says of its slots, as it came; nothing where it does not answer."""
        said = bytearray()
        await self._probed("/slots", said.extend, ANSWER_SECONDS)
        return bytes(said)

    async def _probed(self, path: str, take: TakeBytes, seconds: float) -> int | None:
        """The status of an answer, None without one. A probe is no work, and its answer no progress."""
        exchange = Exchange(self._head("GET", path), take)
        try:
            async with asyncio.timeout(seconds):
                await exchange.run(self._endpoint.socket)
        except (BrokenOff, TimeoutError):
            return None
        return exchange.status

    async def answer(self, request: TokenRequest, sink: Sink) -> Done:
        """Gives the pieces of one answer to `sink` and returns its end. Cancelling ends the engine's work on it.

        Raises EngineFailed (EngineGone before it answered at all), InvalidRequest or PromptTooLong.
        """
        pieces = _Pieces(sink, request.sampling.top_logprobs or 0)
        exchange = self._post(
            path_for(request), body_for(request, await self._media_marker(request)), pieces.take
        )
        try:
            await self._asked(exchange)
        except EngineFailed:
            if not pieces.complete:
                raise
        _raise_refusal(exchange)
        return pieces.end()

    async def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object that the engine answers as a whole; without a body it is a GET. Raises as `answer` does."""
        whole = bytearray()

        def take(part: bytes) -> None:
            whole.extend(part)
            if len(whole) > _MAX_WHOLE_BYTES:
                raise EngineFailed(f"the engine's answer is longer than {_MAX_WHOLE_BYTES} bytes")

        exchange = Exchange(self._head("GET", path), take) if body is None else self._post(path, body, take)
        await self._asked(exchange)
        _raise_refusal(exchange)
        return parse_object(bytes(whole))

    async def _media_marker(self, request: TokenRequest) -> str:
        """The engine's word for the place of an image in plain text: another one at each start."""
        if isinstance(request, CompletionRequest) and request.images:
            return text(await self.call("/props"), "media_marker")
        return ""

    async def _asked(self, exchange: Exchange) -> None:
        try:
            await self._run(exchange)
        except BrokenOff as error:
            await self._on_lost(isinstance(error, NobodyListens))
            raise self._broken_off(begun=bool(exchange.status)) from None

    def _broken_off(self, *, begun: bool) -> EngineFailed:
        if self._hung:
            return EngineHung(self._reason) if begun else EngineSilent(self._reason)
        why = f": {self._reason}" if self._reason else ""
        if begun or why:
            return EngineFailed(f"the engine stopped while it worked on the answer{why}")
        return EngineGone("the engine stopped before it answered; ask again")

    async def _run(self, exchange: Exchange) -> None:
        if self._closed:
            raise BrokenOff(self._reason)
        if not self._open:
            self._busy_since = self._clock()
            self._on_busy()
        self._open.add(exchange)
        try:
            await exchange.run(self._endpoint.socket)
        finally:
            if exchange.moved():
                self._last_byte = self._clock()
            self._open.discard(exchange)

    def _post(self, path: str, body: Mapping[str, Any], take: TakeBytes) -> Exchange:
        data = to_json(body)
        return Exchange(self._head("POST", path, f"Content-Length: {len(data)}", _JSON) + data, take)

    def _head(self, method: str, path: str, *fields: str) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: engine",
            f"Authorization: Bearer {self._endpoint.key}",
            "Connection: close",
            *fields,
        ]
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def close(self, reason: str, *, hung: bool = False) -> None:
        """Cuts every stream, so that the engine stops at once; their readers get EngineFailed with the reason.

        `hung`: they get EngineHung, or EngineSilent.
        """
        if not self._closed:
            self._closed, self._reason, self._hung = True, reason, hung
        for exchange in [*self._open]:
            exchange.abort()


def _raise_refusal(exchange: Exchange) -> None:
    if exchange.status != 200:
        raise error_from(parse_object(exchange.refusal).get("error"), exchange.status)


class _Pieces:
    """From the bytes of an event stream to the pieces of an answer."""

    def __init__(self, sink: Sink, top_logprobs: int) -> None:
        self._sink = sink
        self._decoder = SseDecoder()
        self._reader = AnswerReader(top_logprobs)
        self._between_events = True
        self._text_of = PlainTexts().text_of
        self._take_quoted = sink.quoted if isinstance(sink, QuotedSink) else None

    def take(self, body: bytes) -> Awaitable[None] | None:
        if self._take_quoted and self._between_events and (said := self._text_of(body)) is not None:
            return self._take_quoted(said)
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
