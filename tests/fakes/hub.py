"""A scripted Hugging Face hub: the listing of a repository, and downloads that go wrong on demand.

async with FakeHub() as hub:
    hub.add("user/repo", "model.Q4_K_M.gguf", data)
    hub.script(Status(500), ShortBody())      # what the next downloads do, then all is well
"""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeAlias
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Status:
    """Answers with this status and no file."""

    code: int


@dataclass(frozen=True)
class ShortBody:
    """Announces the whole file and closes in the middle; `announced` False: announces the half that it sends."""

    announced: bool = True


@dataclass(frozen=True)
class WrongBytes:
    """The right length, other bytes."""


@dataclass(frozen=True)
class LongBody:
    """More bytes than the listing says, chunked, so that no header tells."""


@dataclass(frozen=True)
class Redirect:
    """To another address; "{path}" in it stands for the path that was asked for."""

    location: str


@dataclass(frozen=True)
class Encoded:
    """Claims a content encoding."""


@dataclass
class Pause:
    """Sends the first half, sets `reached`, and goes on when `resume` is set; never, if nobody does."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)


Fault: TypeAlias = Status | ShortBody | WrongBytes | LongBody | Redirect | Encoded | Pause


@dataclass(frozen=True)
class Asked:
    """A request that came in; header names in lower case."""

    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class _File:
    data: bytes
    sha256: str


class FakeHub:
    """`listing_status` is what a look-up answers; `asked` is every request so far."""

    def __init__(self) -> None:
        self.listing_status = 200
        self.listing_error = ""
        self.asked: list[Asked] = []
        self._repos: dict[str, dict[str, _File]] = {}
        self._faults: deque[Fault] = deque()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, repo: str, name: str, data: bytes, sha256: str | None = None) -> str:
        """Lists a file and returns its sha256; `sha256` overrides what the listing says."""
        digest = sha256 or hashlib.sha256(data).hexdigest()
        self._repos.setdefault(repo, {})[name] = _File(data, digest)
        return digest

    def script(self, *faults: Fault) -> None:
        self._faults.extend(faults)

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def downloads(self) -> list[Asked]:
        return [asked for asked in self.asked if not asked.path.startswith("/api/")]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head.split("\r\n")
            headers = {
                name.lower(): text.strip() for name, _, text in (f.partition(":") for f in fields if f)
            }
            asked = Asked(line.split(" ")[1], headers)
            self.asked.append(asked)
            path = unquote(asked.path.partition("?")[0])
            if path.startswith("/api/models/"):
                self._list(writer, path.removeprefix("/api/models/"))
            else:
                await self._download(writer, path)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _list(self, writer: asyncio.StreamWriter, repo: str) -> None:
        files = self._repos.get(repo)
        status = self.listing_status if files is not None or self.listing_status != 200 else 404
        error = self.listing_error or ("RepoNotFound" if status == 404 else "")
        siblings = [
            {
                "rfilename": name,
                "size": len(file.data),
                "blobId": "0" * 40,
                "lfs": {"sha256": file.sha256, "size": len(file.data), "pointerSize": 130},
            }
            for name, file in (files or {}).items()
        ]
        body = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
        extra = f"X-Error-Code: {error}\r\n" if error else ""
        _send(writer, status, body if status == 200 else b"{}", extra)

    async def _download(self, writer: asyncio.StreamWriter, path: str) -> None:
        user, repo, _, _, *name = path.strip("/").split("/")
        file = self._repos.get(f"{user}/{repo}", {}).get("/".join(name))
        if file is None:
            return _send(writer, 404, b"")
        data, half = file.data, len(file.data) // 2
        match self._faults.popleft() if self._faults else None:
            case None:
                _send(writer, 200, data)
            case Status(code):
                _send(writer, code, b"")
            case ShortBody(announced):
                _send(writer, 200, data[:half], length=len(data) if announced else half)
            case WrongBytes():
                _send(writer, 200, bytes(byte ^ 1 for byte in data))
            case LongBody():
                chunk = b"%x\r\n" % (len(data) + 1) + data + b"!\r\n0\r\n\r\n"
                writer.write(
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunk
                )
            case Redirect(location):
                _send(writer, 302, b"moved", f"Location: {location.format(path=path)}\r\n")
            case Encoded():
                _send(writer, 200, data, "Content-Encoding: gzip\r\n")
            case Pause() as pause:
                _send(writer, 200, data[:half], length=len(data))
                await writer.drain()
                pause.reached.set()
                await pause.resume.wait()
                writer.write(data[half:])
        return None


def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes, extra: str = "", length: int | None = None
) -> None:
    announced = len(body) if length is None else length
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Length: {announced}\r\n{extra}Connection: close\r\n\r\n"
    writer.write(head.encode() + body)
