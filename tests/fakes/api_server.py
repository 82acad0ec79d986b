"""A scripted server with the daemon's native API, for tests of the command line. Standard library only."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """`lines` are sent as a stream, one JSON value each; `cut` ends the connection without the stream's end.

    After `hold_after` lines the server waits until the test calls `ApiServer.release`.
    """

    body: Body | None = None
    status: int = 200
    lines: list[Any] | None = None
    cut: bool = False
    hold_after: int | None = None


Route = Reply | Callable[[Body], Reply]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: Body


@dataclass
class ApiServer:
    """`routes` maps "POST /api/chat" to what is answered; `requests` is what came, in order."""

    routes: dict[str, Route]
    address: str = ""
    requests: list[Request] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self._released.set()

    def bodies(self, path: str) -> list[Body]:
        return [request.body for request in self.requests if request.path == path]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        body = json.loads(raw) if raw else {}
        method, path = handler.command, handler.path
        self.requests.append(Request(method, path, dict(handler.headers), body))
        route = self.routes.get(f"{method} {path}", Reply({"error": "404 page not found"}, 404))
        reply = route(body) if callable(route) else route
        if reply.lines is None:
            self._whole(handler, reply)
        else:
            self._stream(handler, reply, reply.lines)

    def _whole(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        data = b"" if reply.body is None else json.dumps(reply.body).encode()
        handler.send_response(reply.status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _stream(self, handler: BaseHTTPRequestHandler, reply: Reply, lines: list[Any]) -> None:
        handler.send_response(reply.status)
        handler.send_header("Content-Type", "application/x-ndjson")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for index, line in enumerate(lines):
            if index == reply.hold_after:
                self._hold()
            data = json.dumps(line, ensure_ascii=False).encode() + b"\n"
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if len(lines) == reply.hold_after:
            self._hold()
        if reply.cut:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
        else:
            handler.wfile.write(b"0\r\n\r\n")

    def _hold(self) -> None:
        self.held.set()
        self._released.wait(60)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests."""


class _SocketServer(_Server):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", 0


@contextmanager
def serving(routes: dict[str, Route], path: Path | None = None) -> Iterator[ApiServer]:
    """Serves on a free port of the loopback, or on the Unix socket `path`."""
    api = ApiServer(routes)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            api.answer(self)

        do_POST = do_DELETE = do_GET  # noqa: N815  the names are the base class's

        def log_message(self, *_: object) -> None:
            pass

        def address_string(self) -> str:
            return ""

    server = _Server(("127.0.0.1", 0), Handler) if path is None else _SocketServer(str(path), Handler)  # type: ignore[arg-type]
    api.address = f"127.0.0.1:{server.server_port}" if path is None else str(path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield api
    finally:
        api.release()
        server.shutdown()
        server.server_close()
        thread.join()


def chat_lines(*pieces: str, **final: Any) -> list[Body]:
    """A chat's stream: one line for each piece of text, and the last line with its counts."""
    lines: list[Body] = [
        {"model": "m", "message": {"role": "assistant", "content": piece}, "done": False} for piece in pieces
    ]
    last = {
        "model": "m",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
    }
    return [*lines, {**last, **final}]
