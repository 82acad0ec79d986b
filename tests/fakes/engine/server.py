"""The engine: llama-server's HTTP API on a Unix socket."""

import argparse
import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, ClassVar

from tests.fakes.engine.behaviour import Behaviour, Log, while_exists
from tests.fakes.engine.misbehaviour import crash, spam
from tests.fakes.engine.replies import Reply, not_supported, refusal, respond, too_long
from tests.fakes.engine.slots import Slots
from tests.fakes.engine.stream import Stream
from tests.fakes.engine.text import Words, content_text, encoded, rendered, vector


class Engine:
    def __init__(self, behaviour: Behaviour, options: argparse.Namespace, log: Log) -> None:
        self._behaviour = behaviour
        self._log = log
        self._window = options.ctx_size // options.parallel
        self._slots = Slots(options.parallel, self._window)
        self._options = options
        self._words = Words()
        self._ready = False
        self._requests = 0
        self._key = os.environ.get("LLAMA_API_KEY", "")

    async def load(self) -> None:
        behaviour = self._behaviour
        self._log("loading")
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
        elif method == "GET" and path == "/slots":
            await while_exists(self._behaviour.hang_slots)
            await respond(writer, 200, self._slots.view())
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

    def _tokenize(self, request: dict[str, Any]) -> Reply:
        return 200, {"tokens": self._words.tokens(request["content"])}

    def _detokenize(self, request: dict[str, Any]) -> Reply:
        return 200, {"content": self._words.text(request["tokens"])}

    def _apply_template(self, request: dict[str, Any]) -> Reply:
        return 200, {"prompt": rendered(request)}

    def _count(self, request: dict[str, Any]) -> Reply:
        return 200, {"object": "response.input_tokens", "input_tokens": self._prompt_size(request)}

    def _embed(self, request: dict[str, Any]) -> Reply:
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

    def _rerank(self, request: dict[str, Any]) -> Reply:
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

    _calls: ClassVar[dict[str, Callable[["Engine", dict[str, Any]], Reply]]] = {
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
        if behaviour.crash_on and behaviour.crash_on in json.dumps(request):
            crash()
        if (error := self._refused(request, path)) is not None:
            await respond(writer, int(error["code"]), {"error": error})
            return
        prompt_tokens = self._prompt_size(request)
        async with self._slots.one(number, prompt_tokens) as slot:
            assert request["stream"] is True
            stream = Stream(writer, behaviour, request, chat=path == "/v1/chat/completions")
            await stream.start()
            if behaviour.events is not None:
                await stream.raw(behaviour.events)
                return
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
                spam(behaviour.spam_between)
                await stream.token(token)
                slot.decoded += 1
                await asyncio.sleep(0)
            await stream.end(prompt_tokens, len(tokens))
            self._log("answered", number=number)
