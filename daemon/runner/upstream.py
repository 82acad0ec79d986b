"""HTTP to one engine over its Unix socket. The only place that knows httpx on this side."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import httpx

from daemon.chat import Event, TokenRequest
from daemon.errors import EngineFailed, EngineGone
from daemon.framing import FramingError, SseDecoder
from daemon.runner.endpoint import Endpoint
from daemon.runner.wire import AnswerReader, body_for, error_from, parse_object, path_for

_MAX_ERROR_BYTES = 64 * 1024
_PROBE_SECONDS = 2.0


class Upstream:
    """A client of the engine at `endpoint`. Nothing in the environment (proxies, certificates) is looked at.

    `on_lost` is awaited when the engine, although it was ready, broke a request off; its argument says whether
    it does not even listen any more.
    """

    def __init__(self, endpoint: Endpoint, on_lost: Callable[[bool], Awaitable[None]]) -> None:
        self._on_lost = on_lost
        self._closed = ""
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        self._client = httpx.AsyncClient(
            # No TLS is spoken on the socket; a context for it would cost 30 ms, and read files.
            transport=httpx.AsyncHTTPTransport(
                uds=str(endpoint.socket),
                limits=unlimited,
                verify=False,
                trust_env=False,
            ),
            base_url="http://engine",
            headers={"Authorization": f"Bearer {endpoint.key}", "Accept-Encoding": "identity"},
            timeout=None,  # noqa: S113 - an answer may take any time; its client ends the wait by leaving
            trust_env=False,
        )

    async def health(self) -> int | None:
        """The status of the engine's health route: 503 while it loads, 200 when ready, None when nobody answers."""
        try:
            return (await self._client.get("/health", timeout=_PROBE_SECONDS)).status_code
        except httpx.RequestError:
            return None

    async def answer(self, request: TokenRequest) -> AsyncGenerator[Event, None]:
        """The events of one answer, pulled one at a time; closing it ends the engine's work on it.

        Raises EngineFailed (EngineGone before it answered at all), InvalidRequest or PromptTooLong.
        """
        decoder, reader = SseDecoder(), AnswerReader()
        async with aclosing(self._chunks(request)) as chunks:
            async for chunk in chunks:
                for received in _decoded(decoder, chunk):
                    for event in reader.read(received):
                        yield event
        for event in reader.end():
            yield event

    async def _chunks(self, request: TokenRequest) -> AsyncGenerator[bytes, None]:
        answered = False
        try:
            async with self._client.stream("POST", path_for(request), json=body_for(request)) as response:
                answered = True
                if response.status_code != 200:
                    error = parse_object(await _start_of(response))
                    raise error_from(error.get("error"), response.status_code)
                async for chunk in response.aiter_raw():
                    yield chunk
        except httpx.RequestError as error:
            await self._on_lost(isinstance(error, httpx.ConnectError))
            why = f": {self._closed}" if self._closed else ""
            if answered or self._closed:
                raise EngineFailed(f"the engine stopped while it worked on the answer{why}") from None
            raise EngineGone("the engine stopped before it answered; ask again") from None

    async def aclose(self, reason: str) -> None:
        """Cuts every stream, so that the engine stops at once; their readers get EngineFailed with the reason."""
        self._closed = self._closed or reason
        await self._client.aclose()


def _decoded(decoder: SseDecoder, chunk: bytes) -> list[bytes]:
    try:
        return [event.data for event in decoder.feed(chunk)]
    except FramingError as error:
        raise EngineFailed(f"the engine sent a broken stream: {error}") from None


async def _start_of(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > _MAX_ERROR_BYTES:
            break
    return bytes(body)
