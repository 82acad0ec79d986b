"""One request to an ASGI application, byte for byte as it is written here: no client tidies up path or headers."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message

HOST = ("host", "127.0.0.1:11434")


@dataclass
class Answer:
    """`reads`: how often the application asked for a piece of the body."""

    status: int = 0
    headers: Headers = field(default_factory=Headers)
    body: bytes = b""
    reads: int = 0


async def ask(
    app: ASGIApp,
    method: str = "GET",
    path: str = "/",
    headers: Iterable[tuple[str, str]] = (HOST,),
    body: bytes = b"",
) -> Answer:
    """`path` is the decoded one. Header values are latin-1, as they are in ASGI."""
    answer = Answer()
    sent = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]

    async def receive() -> Message:
        answer.reads += 1
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = Headers(raw=list(message["headers"]))
        else:
            answer.body += message.get("body", b"")

    await app(
        {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": sent,
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 11434),
        },
        receive,
        send,
    )
    return answer
