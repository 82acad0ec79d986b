#!/usr/bin/env python3
"""A scripted engine: llama-server's command line and HTTP API, and on demand every way to misbehave.

    llama_server.py --script SCRIPT.json --model FILE --host X.sock ...

SCRIPT.json is `{"log": FILE, "default": {...}, "models": {ALIAS: {...}}}` and is read at each start. A behaviour has
the keys of `Behaviour`. Conditions are files: while the file exists, the engine waits. So a test decides by making
and removing files, never by sleeping. Everything that happens is one JSON object a line in `log`.

Its tokens are words with the space before them, its vectors are made of a text's words.
"""

import argparse
import asyncio
import base64
import contextlib
import hashlib
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

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
    thinking: list[str] = field(default_factory=list)  # pieces of reasoning, before the tokens
    tokens: list[str] = field(default_factory=lambda: ["Hello", ",", " world", "!"])
    repeat: int = 1  # the tokens so many times
    parrot: bool = False  # says the text of the last turn instead, three characters at a time
    # Deltas of chat after the tokens, such as {"tool_calls": [{"index": 0, "id": ..., "function": {...}}]}
    deltas: list[dict[str, Any]] = field(default_factory=list)
    # The whole stream, instead of all that: texts are sent as the data of an event as they are, objects as JSON.
    events: list[Any] | None = None
    packets: str = "events"  # what is written at once: each of the "events", all in "one", or single "bytes"
    die_after: int | None = None  # is gone after so many tokens
    refuse: dict[str, Any] | None = None  # an error object with a code, instead of an answer
    reason: str = "stop"
    stopping_word: str = ""  # the stop sequence that hit
    prompt_tokens: int = 7
    count_words: bool = (
        False  # the prompt has the tokens of its text instead, and those beyond the window are refused
    )
    echo: bool = False  # repeats a prefilled turn of the assistant, as old engines do
    infill: bool = True
    props: dict[str, Any] = field(default_factory=dict)  # over what /props says


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


class Words:
    """The tokenizer: a token is a word with the space before it. Ids are given in the order of appearance."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def tokens(self, text: str) -> list[int]:
        words = re.findall(r"\s*\S+|\s+", text)
        return [self._ids.setdefault(word, len(self._ids)) for word in words]

    def text(self, tokens: list[int]) -> str:
        words = [*self._ids]
        return "".join(words[token] if token < len(words) else "\ufffd" for token in tokens)


def rendered(request: dict[str, Any]) -> str:
    """The chat template."""
    turns = [f"{message['role']}: {content_text(message.get('content'))}" for message in request["messages"]]
    if request["messages"] and request["messages"][-1]["role"] != "assistant":
        turns.append("assistant:")
    tools = [f"tool {json.dumps(tool)}" for tool in request.get("tools", [])]
    return "\n".join([*tools, *turns])


def content_text(content: str | list[dict[str, str]] | None) -> str:
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    return "".join(part.get("text", "<media>") for part in parts)


def vector(text: str, size: int = 8) -> list[float]:
    """One of length 1. Texts that share words have vectors that are near."""
    sums = [0.0] * size
    for word in text.split():
        digest = hashlib.sha256(word.lower().encode()).digest()
        sums = [total + byte / 127.5 - 1 for total, byte in zip(sums, digest, strict=False)]
    length = math.hypot(*sums) or 1.0
    return [total / length for total in sums]


def encoded(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def not_supported(message: str) -> dict[str, Any]:
    return {"code": 501, "type": "not_supported_error", "message": message}


class Engine:
    def __init__(self, behaviour: Behaviour, options: argparse.Namespace, log: Log) -> None:
        self._behaviour = behaviour
        self._log = log
        self._slots = asyncio.Semaphore(options.parallel)
        self._window = options.ctx_size // options.parallel
        self._options = options
        self._words = Words()
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
        elif method == "GET" and path == "/props":
            await respond(writer, 200, self._props())
        elif method == "POST" and path in ("/v1/chat/completions", "/completion", "/infill"):
            await self._answer(json.loads(body), path, reader, writer)
        elif method == "POST" and (call := self._calls.get(path)) is not None:
            request = json.loads(body)
            self._log("call", path=path, body=request)
            status, reply = call(self, request)
            await respond(writer, status, reply)
        else:
            await respond(writer, 404, {"error": {"code": 404, "message": "File Not Found"}})

    async def _health(self, writer: asyncio.StreamWriter) -> None:
        if self._behaviour.nonsense_health:
            writer.write(b"220 mail.example ESMTP\r\n")
        elif self._ready:
            await respond(writer, 200, {"status": "ok"})
        else:
            await respond(writer, 503, {"error": {"code": 503, "message": "Loading model"}})

    # ---- whole answers: a status and the body

    def _props(self) -> dict[str, Any]:
        caps = ["string_content", "tools", "tool_calls", "parallel_tool_calls", "system_role"]
        return {
            "default_generation_settings": {"n_ctx": self._window},
            "total_slots": self._options.parallel,
            "modalities": {"vision": self._options.mmproj is not None, "audio": False},
            "media_marker": "<media>",
            "chat_template_caps": {f"supports_{cap}": True for cap in caps},
            **self._behaviour.props,
        }

    def _tokenize(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"tokens": self._words.tokens(request["content"])}

    def _detokenize(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"content": self._words.text(request["tokens"])}

    def _apply_template(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"prompt": rendered(request)}

    def _count(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"object": "response.input_tokens", "input_tokens": self._prompt_size(request)}

    def _embed(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if not self._options.embedding:
            return refusal(
                not_supported("This server does not support embeddings. Start it with `--embeddings`")
            )
        inputs = request["input"] if isinstance(request["input"], list) else [request["input"]]
        texts = [each if isinstance(each, str) else self._words.text(each) for each in inputs]
        sizes = [len(self._words.tokens(text)) for text in texts]
        if not all(sizes):
            return refusal({"code": 400, "message": "Input content cannot be empty"})
        if (size := max(sizes)) > self._window:
            return refusal(too_long(size, self._window))
        write = encoded if request.get("encoding_format") == "base64" else list
        data = [{"index": i, "embedding": write(vector(text))} for i, text in enumerate(texts)]
        return 200, {"data": data, "usage": {"prompt_tokens": sum(sizes), "total_tokens": sum(sizes)}}

    def _rerank(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """A document's score is how many of the query's words it has."""
        if not self._options.reranking:
            return refusal(
                not_supported("This server does not support reranking. Start it with `--reranking`")
            )
        asked = set(request["query"].split())
        scores = [len(asked & set(document.split())) for document in request["documents"]]
        results = [{"index": i, "relevance_score": float(score)} for i, score in enumerate(scores)]
        tokens = sum(len(self._words.tokens(text)) for text in (request["query"], *request["documents"]))
        return 200, {"results": results, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}

    _calls: ClassVar[dict[str, Callable[["Engine", dict[str, Any]], tuple[int, dict[str, Any]]]]] = {
        "/tokenize": _tokenize,
        "/detokenize": _detokenize,
        "/apply-template": _apply_template,
        "/v1/chat/completions/input_tokens": _count,
        "/v1/embeddings": _embed,
        "/v1/rerank": _rerank,
    }

    # ---- streamed answers

    def _prompt_size(self, request: dict[str, Any]) -> int:
        if not self._behaviour.count_words:
            return self._behaviour.prompt_tokens
        if isinstance(prompt := request.get("prompt"), list):
            return len(prompt)
        if isinstance(prompt, dict):
            prompt = prompt["prompt_string"]
        if prompt is None and "input_prefix" in request:
            prompt = request["input_prefix"] + request["input_suffix"]
        return len(self._words.tokens(rendered(request) if prompt is None else prompt))

    def _refused(self, request: dict[str, Any], path: str) -> dict[str, Any] | None:
        """The error that the engine answers with, if it does."""
        if self._behaviour.refuse is not None:
            return self._behaviour.refuse
        if path == "/infill" and not self._behaviour.infill:
            return not_supported("Infill is not supported by this model: prefix token is missing. ")
        size = self._prompt_size(request)
        if self._behaviour.count_words and size >= self._window:
            return too_long(size, self._window)
        return None

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

    def _tokens(self, request: dict[str, Any]) -> list[str]:
        if not self._behaviour.parrot:
            return self._behaviour.tokens * self._behaviour.repeat
        text = content_text(request["messages"][-1]["content"])
        return [text[start : start + 3] for start in range(0, len(text), 3)]

    async def _generate(
        self, request: dict[str, Any], path: str, writer: asyncio.StreamWriter, number: int
    ) -> None:
        behaviour = self._behaviour
        if (error := self._refused(request, path)) is not None:
            await respond(writer, int(error["code"]), {"error": error})
            return
        async with self._slots:
            assert request["stream"] is True
            stream = Stream(writer, behaviour, request, chat=path == "/v1/chat/completions")
            await stream.start()
            if behaviour.events is not None:
                await stream.raw(behaviour.events)
                return
            prompt_tokens = self._prompt_size(request)
            await stream.progress(prompt_tokens)
            self._log("prefill", number=number)
            await while_exists(behaviour.hold_prefill)
            await stream.before()
            tokens = self._tokens(request)[: request.get("n_predict") or None]
            for index, token in enumerate(tokens):
                if index == behaviour.hold_after:
                    self._log("held", number=number)
                    await while_exists(behaviour.hold_tokens)
                if index == behaviour.die_after:
                    os._exit(9)
                await stream.token(token)
                await asyncio.sleep(0)
            await stream.end(prompt_tokens, len(tokens))
            self._log("answered", number=number)


class Stream:
    """One streamed answer in the format of either route, to the byte as llama-server writes it."""

    def __init__(
        self, writer: asyncio.StreamWriter, behaviour: Behaviour, request: dict[str, Any], *, chat: bool
    ) -> None:
        self._writer, self._behaviour, self._request, self._chat = writer, behaviour, request, chat
        self._held = b""  # what goes out in one packet

    async def start(self) -> None:
        self._writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n"
        )

    async def raw(self, events: list[Any]) -> None:
        for event in events:
            await self._send(event)
        await self._close()

    async def _send(self, value: dict[str, Any] | str) -> None:
        text = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        )
        self._held += f"data: {text}\n\n".encode("utf-8", "surrogatepass")
        if self._behaviour.packets != "one":
            await self._flush()

    async def _flush(self) -> None:
        data, self._held = self._held, b""
        single = self._behaviour.packets == "bytes"
        for part in [data[i : i + 1] for i in range(len(data))] if single else [data]:
            self._writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            await self._writer.drain()
            if single:
                await asyncio.sleep(0)

    async def _close(self) -> None:
        if self._held:
            await self._flush()
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def _chunk(
        self, delta: dict[str, Any], reason: str | None = None, **more: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "choices": [{"finish_reason": reason, "index": 0, "delta": delta}],
            "created": 1796005290,
            "id": "chatcmpl-scripted",
            "model": "scripted",
            "system_fingerprint": "b1-scripted",
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

    async def before(self) -> None:
        """What comes before the tokens: the prefilled turn again, and reasoning."""
        if not self._chat:
            return
        last = self._request["messages"][-1]
        guesses = not self._request.get("continue_final_message")
        if self._behaviour.echo and guesses and last["role"] == "assistant":
            await self._send(self._chunk({"content": content_text(last["content"])}))
        for text in self._behaviour.thinking:
            await self._send(self._chunk({"reasoning_content": text}))

    async def token(self, text: str) -> None:
        found = self._probabilities(text)
        if self._chat:
            chunk = self._chunk({"content": text})
            if found:
                chunk["choices"][0]["logprobs"] = {"content": found}
            await self._send(chunk)
        else:
            await self._send(
                {"content": text, "stop": False, **({"completion_probabilities": found} if found else {})}
            )

    def _probabilities(self, text: str) -> list[dict[str, Any]]:
        """Of this token, if they were asked for; every other candidate is half as likely as the one before it."""
        count = int(self._request.get("n_probs", 0))
        if not count:
            return []
        candidates = [text, *(f" other{i}" for i in range(1, count))]
        entries = [
            {"id": i, "token": each, "bytes": [*each.encode()], "logprob": -0.5 - i * math.log(2)}
            for i, each in enumerate(candidates)
        ]
        return [{**entries[0], "top_logprobs": entries}]

    async def end(self, prompt: int, predicted: int) -> None:
        behaviour = self._behaviour
        word = {"stopping_word": behaviour.stopping_word}
        timings = {
            "cache_n": 0,
            "prompt_n": prompt,
            "prompt_ms": 1.5,
            "predicted_n": predicted,
            "predicted_ms": 2.5,
        }
        if self._chat:
            for delta in behaviour.deltas:
                await self._send(self._chunk(delta))
            verbose = {"__verbose": word} if self._request.get("verbose") else {}
            await self._send({**self._chunk({}, behaviour.reason), **verbose})
            await self._send({"choices": [], "timings": timings})
            await self._send("[DONE]")
        else:
            kind = "limit" if behaviour.reason == "length" else "word" if behaviour.stopping_word else "eos"
            await self._send({"content": "", "stop": True, "stop_type": kind, **word, "timings": timings})
        await self._close()


def refusal(error: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return error["code"], {"error": error}


def too_long(size: int, window: int) -> dict[str, Any]:
    return {
        "code": 400,
        "type": "exceed_context_size_error",
        "message": f"request ({size} tokens) exceeds the available context size ({window} tokens)",
        "n_prompt_tokens": size,
        "n_ctx": window,
    }


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
        "--ubatch-size",
        "--chat-template-file",
        "--mmproj",
        "--pooling",
    ):
        top.add_argument(flag)
    top.add_argument("--lora", action="append")
    top.add_argument("--ctx-size", type=int, default=0)
    top.add_argument("--parallel", type=int, default=1)
    top.add_argument("--embedding", "--embeddings", action="store_true")
    for flag in (
        "--no-ui",
        "--slots",
        "--metrics",
        "--offline",
        "--version",
        "--jinja",
        "--reranking",
        "--kv-unified",
    ):
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
    engine = Engine(behaviour, options, log)
    server = await asyncio.start_unix_server(engine.serve, options.host)
    await engine.load()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
