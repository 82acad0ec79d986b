"""Requests of a fault test, each of which must end once, in a way that clients are told to expect."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.fakes.dialects import Way

# HTTP's own refusals come before any route, so no description lists them.
_ALWAYS = frozenset({400, 401, 403, 404, 405, 408, 411, 413, 414, 431, 503})


@dataclass(frozen=True)
class Ending:
    """How a request ended: a status with a whole text or an error; `status` 0 when the connection broke."""

    status: int
    text: str = ""
    error: str = ""
    retry_after: str | None = None


CLOSE = {"Connection": "close"}
# Of a stream's events, so many are at least five tokens: in one dialect, two come before the first.
BEGUN_EVENTS = 7
BROKEN = Ending(0, error="the connection broke")


class Requests:
    """Asks the daemon, and remembers how each request ended. `documented` are the statuses of each path."""

    def __init__(self, client: httpx.AsyncClient, documented: Mapping[str, frozenset[int]]) -> None:
        self.client = client
        self.endings: list[tuple[Way, Ending]] = []
        self.bodies: list[bytes] = []
        self._documented = documented
        self._started: list[asyncio.Task[Ending]] = []

    @classmethod
    async def open(cls, client: httpx.AsyncClient) -> "Requests":
        """With what the daemon's own description says of its statuses."""
        paths = (await client.get("/openapi.json")).json()["paths"]
        documented = {
            path: frozenset(int(code) for code in methods["post"]["responses"]) | _ALWAYS
            for path, methods in paths.items()
            if "post" in methods
        }
        return cls(client, documented)

    def start(self, model: str, way: Way, **more: Any) -> "asyncio.Task[Ending]":
        """Asks in the background. The request has to end before the test does."""
        task = asyncio.create_task(self.ask(model, way, **more), name=f"request to {model}")
        self._started.append(task)
        return task

    async def ask(self, model: str, way: Way, begun: asyncio.Event | None = None, **more: Any) -> Ending:
        """`begun` is set when a stream has brought at least five tokens."""
        begun = begun or asyncio.Event()
        try:
            ending = await self._ask(way, way.body(model, **more), begun)
        except httpx.TransportError:
            ending = BROKEN
        self.endings.append((way, ending))
        return ending

    async def _ask(self, way: Way, body: Mapping[str, Any], begun: asyncio.Event) -> Ending:
        # On a connection of its own: one that was idle may be closed by the server at any moment.
        async with self.client.stream("POST", way.path, json=body, headers=CLOSE) as response:
            content = b""
            async for chunk in response.aiter_bytes():
                content += chunk
                if _events(content) >= BEGUN_EVENTS:
                    begun.set()
        self.bodies.append(content)
        return _ending(way, httpx.Response(response.status_code, headers=response.headers, content=content))

    async def check(self, *, may_break: bool) -> None:
        """I5: each has ended, with a documented status, and a stream with its last event. `ask` saw to the latter."""
        assert not [task for task in self._started if not task.done()], "a request has not ended"
        for way, ending in self.endings:
            if ending == BROKEN:
                assert may_break, "a connection broke"
            else:
                assert ending.status in self._documented[way.path], (
                    f"{ending} of {way.path} is not documented"
                )


def _events(content: bytes) -> int:
    """How many events of a stream there are, in any dialect."""
    return sum(line.startswith((b"{", b"data:")) for line in content.split(b"\n"))


def _ending(way: Way, response: httpx.Response) -> Ending:
    retry_after = response.headers.get("retry-after")
    if response.status_code != 200:
        return Ending(response.status_code, error=way.error(response.json()), retry_after=retry_after)
    last = way.events(response.content)[-1] if way.stream else None
    failed = isinstance(last, dict) and (last.get("type") == "error" or "error" in last)
    if failed:
        return Ending(200, error=way.terminal_error(response.content))
    return Ending(200, text=way.text(response.content))
