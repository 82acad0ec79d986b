"""One chat in each of the six ways, for tests that hold for all of them: request, text of the answer, its error."""

import json
from dataclasses import dataclass
from typing import Any

from daemon.framing import NdjsonDecoder, SseDecoder


@dataclass(frozen=True)
class Way:
    """`path` of the route; `stream` or not."""

    name: str
    path: str
    stream: bool

    def body(self, model: str, prompt: str = "hi", **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}]
        body = {"model": model, "stream": self.stream, "messages": messages}
        if self.name == "generate":
            body = {"model": model, "stream": self.stream, "prompt": prompt}
        if self.name == "anthropic":
            body["max_tokens"] = 1000
        return {**body, **more}

    def greedy(self, tokens: int) -> dict[str, Any]:
        """Options for `body`: always the most likely token, and at most so many."""
        if self.name in ("chat", "generate"):
            return {"options": {"temperature": 0, "num_predict": tokens}}
        return {"temperature": 0, "max_tokens": tokens}

    def text(self, raw: bytes) -> str:
        """The text of a whole answer, checked to have ended properly."""
        if not self.stream:
            return _whole_text(self.name, json.loads(raw))
        pieces = self.events(raw)
        if self.name in ("chat", "generate"):
            assert [piece["done"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
            return "".join(
                piece["response"] if self.name == "generate" else piece["message"]["content"]
                for piece in pieces
            )
        if self.name == "openai":
            assert pieces.pop() == "[DONE]"
            reasons = [c["finish_reason"] for piece in pieces for c in piece["choices"] if c["finish_reason"]]
            assert len(reasons) == 1
            return "".join(c["delta"].get("content") or "" for piece in pieces for c in piece["choices"])
        assert [piece["type"] for piece in pieces][-1] == "message_stop"
        return "".join(p["delta"]["text"] for p in pieces if p["type"] == "content_block_delta")

    def events(self, raw: bytes) -> list[Any]:
        if self.name in ("chat", "generate"):
            ndjson = NdjsonDecoder()
            return [*ndjson.feed(raw), *ndjson.flush()]
        sse = SseDecoder()
        events = [event.data for event in [*sse.feed(raw), *sse.flush()]]
        return ["[DONE]" if data == b"[DONE]" else json.loads(data) for data in events]

    def terminal_error(self, raw: bytes) -> str:
        """The message of the error that ended a stream; fails unless it is the dialect's last word."""
        last = self.events(raw)[-1]
        if self.name in ("chat", "generate"):
            assert set(last) == {"error"}
            return str(last["error"])
        if self.name == "anthropic":
            assert b"event: error\n" in raw
            assert last["type"] == "error"
        assert b"[DONE]" not in raw
        return str(last["error"]["message"])

    def error(self, body: Any) -> str:
        """The message of an error that came with its own status."""
        if self.name in ("chat", "generate"):
            assert set(body) == {"error"}
            return str(body["error"])
        if self.name == "anthropic":
            assert body["type"] == "error"
        return str(body["error"]["message"])


def _whole_text(name: str, body: Any) -> str:
    match name:
        case "chat":
            assert body["done"] is True
            return str(body["message"]["content"])
        case "generate":
            assert body["done"] is True
            return str(body["response"])
        case "openai":
            return str(body["choices"][0]["message"]["content"])
        case _:
            return "".join(block["text"] for block in body["content"])


_PATHS = {
    "chat": "/api/chat",
    "generate": "/api/generate",
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
}
WAYS = [Way(name, path, stream) for name, path in _PATHS.items() for stream in (True, False)]
STREAMS = [way for way in WAYS if way.stream]


def way_id(way: Way) -> str:
    return f"{way.name}-{'stream' if way.stream else 'whole'}"
