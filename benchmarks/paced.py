#!/usr/bin/env python3
"""A scripted engine that emits chunks at a set pace: llama-server's command line, its routes, and its bytes.

    paced.py --model FILE --host X.sock [--alias NAME] ...

What an answer does stands in the text of its request, so one process serves every measurement:

    pace=100     chunks a second of this stream; 0: one chunk, then silence until the client leaves
    tokens=20    ends after so many chunks; without it, when the client leaves

The chunks are those of llama.cpp b11549, written in one piece each as it writes them. A thread a connection, as it
has. A program of its own: it imports nothing of mgr, and needs nothing but the standard library.
"""

import argparse
import itertools
import json
import re
import socketserver
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

_WORDS = (" the", " of", " and", " a", " to", " in", " model", " answers", ",", " here", " is", " it", ".")
ID = "chatcmpl-XdmBJ9jX5igjXU1xENDNqHMnmCUneEx5"
_PROMPT_TOKENS = 32


@dataclass(frozen=True)
class Script:
    """`pace` in chunks a second; `tokens` None: until the client leaves."""

    pace: int
    tokens: int | None

    @classmethod
    def read(cls, body: bytes) -> "Script":
        pace, tokens = re.search(rb"pace=(\d+)", body), re.search(rb"tokens=(\d+)", body)
        return cls(int(pace[1]) if pace else 0, int(tokens[1]) if tokens else None)


def chunk(data: str) -> bytes:
    """One chunk of HTTP's chunked encoding that holds one or more events."""
    encoded = data.encode()
    return b"%x\r\n%b\r\n" % (len(encoded), encoded)


def event(choices: list[dict[str, Any]], alias: str, **more: Any) -> str:
    values = {
        "choices": choices,
        "created": int(time.time()),
        "id": ID,
        "model": alias,
        "system_fingerprint": "b0-unknown",
        "object": "chat.completion.chunk",
        **more,
    }
    return f"data: {json.dumps(values, separators=(',', ':'))}\n\n"


def delta(values: dict[str, Any], reason: str | None = None) -> list[dict[str, Any]]:
    return [{"finish_reason": reason, "index": 0, "delta": values}]


class Words:
    """The chunks of the tokens, made once a second: only `created` changes."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._second = 0
        self._chunks: tuple[bytes, ...] = ()

    def __getitem__(self, number: int) -> bytes:
        if (second := int(time.time())) != self._second:
            self._chunks = tuple(chunk(event(delta({"content": word}), self._alias)) for word in _WORDS)
            self._second = second
        return self._chunks[number % len(_WORDS)]


def opening(alias: str) -> Iterator[bytes]:
    """What comes before the first token: two reports of progress."""
    role = delta({"role": "assistant", "content": None})
    for processed in (0, _PROMPT_TOKENS):
        progress = {"total": _PROMPT_TOKENS, "cache": 0, "processed": processed, "time_ms": processed}
        yield chunk(event(role, alias, prompt_progress=progress))


def first(alias: str) -> bytes:
    """The first token, in one chunk with the event of the role."""
    role = delta({"role": "assistant", "content": None})
    return chunk(event(role, alias) + event(delta({"content": "I"}), alias))


def ending(alias: str, tokens: int) -> Iterator[bytes]:
    usage = {
        "completion_tokens": tokens,
        "prompt_tokens": _PROMPT_TOKENS,
        "total_tokens": tokens + _PROMPT_TOKENS,
    }
    timings = {
        "cache_n": 0,
        "prompt_n": _PROMPT_TOKENS,
        "prompt_ms": 1.0,
        "predicted_n": tokens,
        "predicted_ms": 1.0,
    }
    yield chunk(event(delta({}, "length"), alias) + event([], alias, usage=usage, timings=timings))
    yield chunk("data: [DONE]\n\n")
    yield b"0\r\n\r\n"


def first_due(now: float, pace: int, answer: int) -> float:
    """When the second chunk is due: in a grid that all answers share, each with a phase of its own. Multiples of the
    golden ratio spread any number of consecutive answers evenly."""
    period = 1 / pace if pace else 0.0
    return now + period - (now - period * (answer * 0.6180339887 % 1)) % period if period else now


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        self._whole(200 if self.path == "/health" else 404, {"status": "ok"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self._stream(Script.read(body))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _stream(self, script: Script) -> None:
        alias, words = self.server.alias, self.server.words
        for data in opening(alias):
            self.wfile.write(data)
        self.wfile.write(first(alias))
        if script == Script(0, None):
            self.rfile.read(1)  # returns when the client leaves
            self.close_connection = True
            return
        due, sent = first_due(time.monotonic(), script.pace, next(self.server.answers)), 1
        while sent != script.tokens:
            if script.pace:
                time.sleep(max(0.0, due - time.monotonic()))
                due += 1 / script.pace
            self.wfile.write(words[sent])
            sent += 1
        for data in ending(alias, sent):
            self.wfile.write(data)

    def _whole(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Says nothing."""


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, path: str, alias: str) -> None:
        super().__init__(path, Handler)
        self.alias = alias
        self.words = Words(alias)
        self.answers = itertools.count()


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description="a scripted engine with a set pace", allow_abbrev=False)
    top.add_argument("--model")
    top.add_argument("--host")
    top.add_argument("--alias", default="paced")
    for flag in ("--ctx-size", "--parallel", "--batch-size", "--cache-ram", "--threads", "--n-gpu-layers"):
        top.add_argument(flag, type=int)
    for flag in ("--no-ui", "--slots", "--metrics", "--offline", "--version"):
        top.add_argument(flag, action="store_true")
    return top


def main() -> None:
    options = parser().parse_args()
    if options.version:
        print("version: 1 (paced)")  # noqa: T201
        return
    Server(options.host, options.alias).serve_forever()


if __name__ == "__main__":
    main()
