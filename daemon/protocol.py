"""uvicorn's protocol with what it lacks: a bound on the size of a request's head and on the time that it may take, and
a short way for the pieces of a streamed body.

Measured: a stranger's header of 200 MB was taken into memory, and half a head kept its connection for ever.
"""

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 10.0

# Sends a piece of a streamed body whose head has been sent, and says whether it did: not while the client is behind.
DirectWrite = Callable[[bytes], bool]
_EXTENSION = "mgr.direct_write"


def direct_write(scope: MutableMapping[str, Any]) -> DirectWrite | None:
    """The short way of this request's answer, where its server has one. `send` does the same through all layers."""
    write: DirectWrite | None = scope.get("extensions", {}).get(_EXTENSION)
    return write


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
        super().on_headers_complete()
        if self.cycle is not None:
            self.scope["extensions"] = {_EXTENSION: _DirectWriter(self.cycle)}  # type: ignore[dict-item]

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
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn does not say that there may be none
        if (
            cycle is None or cycle.response_complete
        ):  # or else the head is a pipelined one, and may take longer
            self.transport.close()


class _DirectWriter:
    """What `RequestResponseCycle.send` does for a piece of a chunked body, without its coroutine and its messages."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def __call__(self, data: bytes) -> bool:
        cycle = self._cycle
        if (
            not cycle.chunked_encoding
            or cycle.flow.write_paused
            or cycle.disconnected
            or cycle.response_complete
        ):
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True
