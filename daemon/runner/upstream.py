"""HTTP to one engine: asks it, reads its answer, and tells apart how that can go wrong."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from daemon.chat import CompletionRequest, Done, Piece, QuotedSink, Sink, TokenRequest
from daemon.errors import EngineFailed, EngineGone
from daemon.framing import FramingError, SseDecoder, to_json
from daemon.runner.endpoint import Endpoint
from daemon.runner.exchange import BrokenOff, Exchange, NobodyListens, TakeBytes
from daemon.runner.reader import AnswerReader, plain_text, plain_texts
from daemon.runner.received import error_from, parse_object, text
from daemon.runner.wire import body_for, path_for

_PROBE_SECONDS = 2.0
_MAX_WHOLE_BYTES = 64 * 1024 * 1024
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

    def close(self, reason: str) -> None:
        """Cuts every stream, so that the engine stops at once; their readers get EngineFailed with the reason."""
        self._closed = True
        self._reason = self._reason or reason
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
        self._take_quoted = sink.quoted if isinstance(sink, QuotedSink) else None

    def take(self, body: bytes) -> Awaitable[None] | None:
        if self._take_quoted and self._between_events and (said := plain_text(body)) is not None:
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
