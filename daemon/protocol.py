"""uvicorn's protocol with what it lacks: a bound on the size of a request's head and on the time that it may take, and
a short way for the pieces of a streamed body.

Measured: a stranger's header of 200 MB was taken into memory, and half a head kept its connection for ever.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from daemon.chunked import chunk

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 10.0

EXTENSION = "mgr.client"  # in an ASGI scope's `extensions`


def client_of(scope: MutableMapping[str, Any]) -> "Client | None":
    """The client that asked this, where its server lets us at it."""
    client: Client | None = scope.get("extensions", {}).get(EXTENSION)
    return client


class BoundedProtocol(HttpToolsProtocol):
    """Answers 400 and hangs up when a head is too large, or asks for more than a path: the host in `GET http://host/x`
    would go before the Host header (RFC 9112, 3.2.2). Hangs up when a head does not come."""

    _held = 0  # bytes that the parser got since it last gave something on: of a head, a trailer, a chunk's extension
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._held += len(data)
        super().data_received(data)
        if self._held > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES or not self.url.startswith(b"/"):
            raise ValueError("the head is too large, or has no path")  # the parser makes it a 400
        self._held = 0
        self._stop_waiting()
        if self._answers:
            # uvicorn would stop reading until that answer has ended, and so not see its client leave.
            self.transport.abort()
            return
        super().on_headers_complete()
        if self.cycle is not None:
            self.scope["extensions"] = {EXTENSION: Client(self.cycle)}  # type: ignore[dict-item]

    def on_body(self, body: bytes) -> None:
        self._held = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._held = 0
        super().on_message_complete()

    def _await_head(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _give_up(self) -> None:
        if not self._answers:  # or else the head is one that came too early, and may take longer
            self.transport.close()

    @property
    def _answers(self) -> bool:
        """Whether an answer on this connection has not ended."""
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn does not say that there may be none
        return cycle is not None and not cycle.response_complete


class Client:
    """The other end of a connection, for the time of one answer."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, data: bytes) -> bool:
        """Sends a piece of a streamed body, and says whether it did: not before its head, nor while the client is
        behind, nor after the end.

        It is what `RequestResponseCycle.send` does for it, without its coroutine and without the layers before it.
        """
        cycle = self._cycle
        if not cycle.chunked_encoding or cycle.flow.write_paused or cycle.response_complete:
            return False
        if cycle.disconnected or cycle.transport.is_closing():
            return False
        cycle.transport.write(chunk(data))
        return True

    def abort(self) -> None:
        """Cuts the connection, with what has not been sent yet."""
        self._cycle.disconnected = True
        self._cycle.transport.abort()
