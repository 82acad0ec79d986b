"""The load generator: requests over raw sockets, whose received chunks are counted and timed."""

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from benchmarks.daemons import PACED_MODEL
from benchmarks.processes import GUARD_SECONDS

# A TCP port of this machine, or the path of a Unix socket.
Where = int | Path

# A piece of text that is not empty, in the chunks of every dialect and of the engine.
_TEXT = re.compile(rb'"(?:content|response|text|delta)"\s*:\s*"[^"]')


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for one stream. `marker` stands exactly once in each chunk that a client receives."""

    path: str
    body: Mapping[str, Any]
    marker: bytes = b'"delta"'
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        body = json.dumps(self.body).encode()
        own = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"{own}Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body


def ask(dialect: str, text: str) -> Ask:
    """`text` as a user's message to PACED_MODEL, streamed, in a dialect: openai, ollama-chat, ollama-generate,
    responses or anthropic; or openai-schema, which has to keep to a schema."""
    messages = [{"role": "user", "content": text}]
    match dialect:
        case "openai":
            return Ask("/v1/chat/completions", {"model": PACED_MODEL, "stream": True, "messages": messages})
        case "ollama-chat":
            return Ask("/api/chat", {"model": PACED_MODEL, "messages": messages}, b'"done"')
        case "ollama-generate":
            return Ask("/api/generate", {"model": PACED_MODEL, "prompt": text}, b'"done"')
        case "openai-schema":
            schema = {"type": "json_schema", "json_schema": {"name": "any", "schema": {"type": "string"}}}
            body = {"model": PACED_MODEL, "stream": True, "messages": messages, "response_format": schema}
            return Ask("/v1/chat/completions", body)
        case "responses":
            body = {"model": PACED_MODEL, "stream": True, "input": text, "store": False}
            return Ask("/v1/responses", body, b'"response.output_text.delta"')
        case "anthropic":
            body = {"model": PACED_MODEL, "stream": True, "messages": messages, "max_tokens": 1_000_000}
            return Ask("/v1/messages", body, b'"text_delta"')
    raise ValueError(dialect)


class MarkerCount:
    """Counts the markers in a stream of bytes, also those that a read has cut in two."""

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._rest = b""
        self.total = 0

    def feed(self, data: bytes) -> None:
        whole = self._rest + data
        self.total += whole.count(self._marker)
        # The longest end that can be the start of a marker; it holds no whole one, so none counts twice.
        self._rest = whole[max(0, len(whole) - len(self._marker) + 1) :]


class Stream(asyncio.Protocol):
    """One connection with one request. `first` is the time of the first text, `closed` that of the end, in
    monotonic seconds."""

    def __init__(self, request: Ask) -> None:
        loop = asyncio.get_running_loop()
        self._request = request.encoded()
        self._count = MarkerCount(request.marker)
        self._opening = b""
        self._transport: asyncio.Transport | None = None
        self.first: asyncio.Future[float] = loop.create_future()
        self.closed: asyncio.Future[float] = loop.create_future()

    @property
    def chunks(self) -> int:
        return self._count.total

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without being a subclass
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._count.feed(data)
        if not self.first.done():
            self._opening += data
            if not self._opening.startswith(b"HTTP/1.1 200"):
                self.first.set_exception(RuntimeError(f"refused: {self._opening[:500]!r}"))
            elif _TEXT.search(self._opening):
                self.first.set_result(time.monotonic())

    def connection_lost(self, error: Exception | None) -> None:
        if not self.first.done():
            said = self._opening[-500:]
            self.first.set_exception(RuntimeError(f"the connection was closed before any text: {said!r}"))
        if not self.closed.done():
            self.closed.set_result(time.monotonic())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def connect(where: Where, request: Ask) -> Stream:
    loop = asyncio.get_running_loop()
    if isinstance(where, int):
        _, stream = await loop.create_connection(lambda: Stream(request), "127.0.0.1", where)
    else:
        _, stream = await loop.create_unix_connection(lambda: Stream(request), str(where))
    return stream


class Streams:
    """A stream for each request, open at once; entered when each has received text."""

    def __init__(self, where: Where, requests: Sequence[Ask]) -> None:
        self._where, self._requests = where, requests
        self._streams: list[Stream] = []

    async def __aenter__(self) -> Self:
        try:
            self._streams = [await connect(self._where, request) for request in self._requests]
            async with asyncio.timeout(GUARD_SECONDS):
                await asyncio.gather(*(stream.first for stream in self._streams))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for stream in self._streams:
            stream.close()
        await self.ended()

    async def first(self) -> float:
        """The time of the last first text."""
        return max(await asyncio.gather(*(stream.first for stream in self._streams)))

    async def ended(self) -> float:
        """Waits until every stream has ended. Returns the time of the last one."""
        async with asyncio.timeout(GUARD_SECONDS):
            return max(await asyncio.gather(*(stream.closed for stream in self._streams)))

    @property
    def chunks(self) -> int:
        return sum(stream.chunks for stream in self._streams)


async def first_text_ms(where: Where, request: Ask) -> float:
    """Milliseconds from before the connection to the first text of the answer."""
    start = time.monotonic()
    async with Streams(where, [request]) as streams:
        return (await streams.first() - start) * 1000


async def whole(where: int, request: Ask) -> tuple[int, float]:
    """The status of a short answer, and the milliseconds until its end. The request must ask for a close."""
    start = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", where)
    writer.write(request.encoded())
    answer = await reader.read()
    took = (time.monotonic() - start) * 1000
    writer.close()
    return int(answer[9:12]), took
