#!/usr/bin/env python3
"""A scripted engine: llama-server's command line and HTTP API, and on demand every way to misbehave.

    llama_server.py --script SCRIPT.json --model FILE --host X.sock ...

SCRIPT.json is `{"log": FILE, "default": {...}, "models": {ALIAS: {...}}}` and is read at each start. A behaviour has
the keys of `Behaviour`. Conditions are files: while the file exists, the engine waits. So a test decides by making
and removing files, never by sleeping. Everything that happens is one JSON object a line in `log`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.01


@dataclass
class Behaviour:
    """What one start does. Paths are files to wait for until they are gone."""

    hold_load: str = ""  # answers 503 "Loading model" while it exists
    hold_prefill: str = ""  # sends no token while it exists
    hold_tokens: str = ""  # stops in the middle of the answer while it exists
    hold_after: int = 1  # ... after so many tokens
    say: list[str] = field(default_factory=list)  # lines to print at the start
    exit_code: int | None = None  # ends right after them
    nonsense_health: bool = False  # answers its health route in another protocol
    spam_bytes: int = 0  # prints so much without a line end before it is ready
    chatty_load: bool = False  # prints a line every now and then while it loads
    ignore_term: bool = False
    fork: bool = False  # leaves a grandchild that holds the output open
    tokens: list[str] = field(default_factory=lambda: ["Hello", ",", " world", "!"])
    repeat: int = 1  # the tokens so many times
    die_after: int | None = None  # is gone after so many tokens
    refuse: dict[str, Any] | None = None  # an error object with a code, instead of an answer
    reason: str = "stop"
    prompt_tokens: int = 7


class Log:
    def __init__(self, path: str, alias: str) -> None:
        self._path, self._alias = path, alias

    def __call__(self, event: str, **values: Any) -> None:
        line = json.dumps({"event": event, "alias": self._alias, "pid": os.getpid(), **values}) + "\n"
        with Path(self._path).open("a", encoding="utf-8") as file:
            file.write(line)


async def while_exists(path: str) -> None:
    while path and Path(path).exists():
        await asyncio.sleep(POLL_SECONDS)


class Engine:
    def __init__(self, behaviour: Behaviour, slots: int, log: Log) -> None:
        self._behaviour = behaviour
        self._log = log
        self._slots = asyncio.Semaphore(slots)
        self._ready = False
        self._requests = 0
        self._key = os.environ.get("LLAMA_API_KEY", "")

    async def load(self) -> None:
        behaviour = self._behaviour
        loading = asyncio.create_task(while_exists(behaviour.hold_load))
        while not loading.done():
            if behaviour.chatty_load:
                print("loading ...", flush=True)
            await asyncio.wait({loading}, timeout=0.05)
        self._ready = True
        self._log("ready")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request, *headers = head.split("\r\n")
            method, path, _ = request.split(" ")
            fields = {k.lower(): v.strip() for k, _, v in (h.partition(":") for h in headers if h)}
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            authorized = fields.get("authorization") == f"Bearer {self._key}"
            await self._route(method, path, body, authorized, reader, writer)
        writer.close()

    async def _route(
        self,
        method: str,
        path: str,
        body: bytes,
        authorized: bool,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if path == "/health":
            await self._health(writer)
        elif not authorized:
            await respond(writer, 401, {"error": {"code": 401, "message": "Invalid API Key"}})
        elif method == "POST" and path in ("/v1/chat/completions", "/completion"):
            await self._answer(json.loads(body), path, reader, writer)
        else:
            await respond(writer, 404, {"error": {"code": 404, "message": "File Not Found"}})

    async def _health(self, writer: asyncio.StreamWriter) -> None:
        if self._behaviour.nonsense_health:
            writer.write(b"220 mail.example ESMTP\r\n")
        elif self._ready:
            await respond(writer, 200, {"status": "ok"})
        else:
            await respond(writer, 503, {"error": {"code": 503, "message": "Loading model"}})

    async def _answer(
        self, request: dict[str, Any], path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._requests += 1
        number = self._requests
        self._log("request", number=number, path=path, body=request)
        work = asyncio.create_task(self._generate(request, path, writer, number))
        gone = asyncio.create_task(reader.read(1))  # the client sends nothing more: this ends when it leaves
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not work.done():
            work.cancel()
            self._log("cancelled", number=number)
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await work
        self._log("released", number=number)

    async def _generate(
        self, request: dict[str, Any], path: str, writer: asyncio.StreamWriter, number: int
    ) -> None:
        behaviour = self._behaviour
        if behaviour.refuse is not None:
            await respond(writer, int(behaviour.refuse["code"]), {"error": behaviour.refuse})
            return
        async with self._slots:
            assert request["stream"] is True
            stream = Stream(writer, chat=path != "/completion")
            await stream.start()
            await stream.progress(behaviour.prompt_tokens)
            self._log("prefill", number=number)
            await while_exists(behaviour.hold_prefill)
            tokens = (behaviour.tokens * behaviour.repeat)[: request.get("n_predict") or None]
            for index, token in enumerate(tokens):
                if index == behaviour.hold_after:
                    self._log("held", number=number)
                    await while_exists(behaviour.hold_tokens)
                if index == behaviour.die_after:
                    os._exit(9)
                await stream.token(token)
                await asyncio.sleep(0)
            await stream.end(behaviour.reason, behaviour.prompt_tokens, len(tokens))
            self._log("answered", number=number)


class Stream:
    """One streamed answer in the format of either route."""

    def __init__(self, writer: asyncio.StreamWriter, *, chat: bool) -> None:
        self._writer, self._chat = writer, chat

    async def start(self) -> None:
        self._writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n"
        )

    async def _send(self, value: dict[str, Any] | str) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        data = f"data: {text}\n\n".encode()
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
            "object": "chat.completion.chunk",
        }

    async def progress(self, total: int) -> None:
        progress = {"total": total, "cache": 0, "processed": total, "time_ms": 1}
        empty: dict[str, Any] = (
            self._chunk({"role": "assistant", "content": None})
            if self._chat
            else {"content": "", "stop": False}
        )
        await self._send({**empty, "prompt_progress": progress})

    async def token(self, text: str) -> None:
        await self._send(self._chunk({"content": text}) if self._chat else {"content": text, "stop": False})

    async def end(self, reason: str, prompt: int, predicted: int) -> None:
        timings = {
            "cache_n": 0,
            "prompt_n": prompt,
            "prompt_ms": 1.5,
            "predicted_n": predicted,
            "predicted_ms": 2.5,
        }
        if self._chat:
            await self._send(self._chunk({}, reason))
            await self._send({"choices": [], "timings": timings})
            await self._send("[DONE]")
        else:
            kind = "limit" if reason == "length" else "eos"
            await self._send({"content": "", "stop": True, "stop_type": kind, "timings": timings})
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()


async def respond(writer: asyncio.StreamWriter, status: int, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n".encode()
        + body
    )
    await writer.drain()


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(allow_abbrev=False)
    top.add_argument("--script")
    for flag in (
        "--model",
        "--host",
        "--alias",
        "--cache-ram",
        "--batch-size",
        "--n-gpu-layers",
        "--threads",
    ):
        top.add_argument(flag)
    top.add_argument("--ctx-size", type=int, default=0)
    top.add_argument("--parallel", type=int, default=1)
    for flag in ("--no-ui", "--slots", "--metrics", "--offline", "--version"):
        top.add_argument(flag, action="store_true")
    return top


def misbehave(behaviour: Behaviour, log: Log) -> None:
    """What happens before anything is served."""
    for line in behaviour.say:
        print(line, flush=True)
    if behaviour.exit_code is not None:
        sys.exit(behaviour.exit_code)
    if behaviour.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour.fork:
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        log("forked", grandchild=grandchild.pid)
    left = behaviour.spam_bytes
    while left > 0:
        sys.stdout.write("\x1bspam " * 1000)
        left -= 6000
    sys.stdout.flush()


async def main() -> None:
    options = parser().parse_args()
    if options.version:
        print("version: 1 (scripted)")
        return
    script = json.loads(Path(options.script).read_text(encoding="utf-8"))
    values = {**script.get("default", {}), **script.get("models", {}).get(options.alias, {})}
    behaviour = Behaviour(**values)
    log = Log(script["log"], options.alias)
    log("start", argv=sys.argv[1:], environment=sorted(os.environ), window=options.ctx_size)
    misbehave(behaviour, log)
    engine = Engine(behaviour, options.parallel, log)
    server = await asyncio.start_unix_server(engine.serve, options.host)
    await engine.load()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
