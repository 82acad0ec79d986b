"""One streamed answer in the format of either route, to the byte as llama-server writes it."""

import asyncio
import json
import math
from typing import Any

from tests.fakes.engine.behaviour import Behaviour
from tests.fakes.engine.text import content_text


class Stream:
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
