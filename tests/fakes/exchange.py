"""Questions and answers over plain HTTP in each of the four dialects, streamed and not; read as the matrix of clients
reads them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.engine.matrix import anthropic_api, ollama_api, openai_api, responses_api
from tests.engine.matrix.asks import Api, Ask, Told
from tests.fakes.dialects import Way

_PATHS = {
    "chat": "/api/chat",
    "openai": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
}
_APIS: Mapping[str, Api] = {
    "chat": ollama_api.Chat(),
    "openai": openai_api.Chat(),
    "responses": responses_api.Responses(),
    "anthropic": anthropic_api.Messages(),
}
DIALECTS = [Way(name, path, stream) for name, path in _PATHS.items() for stream in (True, False)]


@dataclass(frozen=True)
class Heard:
    """`told` has the thinking in every dialect; `finish` is stop, length or tool_calls, in Ollama's words stop too."""

    told: Told
    warnings: tuple[str, ...]

    @property
    def calls(self) -> list[tuple[str, Any]]:
        return [(call.name, call.arguments) for call in self.told.calls]


def body(way: Way, ask: Ask) -> dict[str, Any]:
    return _APIS[way.name].params(ask, way.stream)


def heard(way: Way, raw: bytes) -> Heard:
    """Fails for an answer that is not well-formed."""
    api = _APIS[way.name]
    if not way.stream:
        pieces = [json.loads(raw)]
        told = api.whole(pieces[0])
    else:
        pieces = [piece for piece in way.events(raw) if piece != "[DONE]"]
        told = api.streamed(pieces)
    thinking = _responses_thinking(told.extra) if way.name == "responses" else told.thinking
    return Heard(Told(**{**vars(told), "thinking": thinking}), _warnings(pieces))


def _responses_thinking(response: Mapping[str, Any]) -> str:
    items = [item for item in response["output"] if item["type"] == "reasoning"]
    return "".join(part["text"] for item in items for part in item["content"])


def _warnings(pieces: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """They stand at the top of one piece, in Responses in the response of its last event."""
    found = [said for piece in pieces if (said := {**piece.get("response", {}), **piece}.get("warnings"))]
    assert len(found) <= 1
    return tuple(found[0]) if found else ()


def finished(way: Way, reason: str) -> str:
    """What `told.finish` is for a reason: Ollama says "stop" for calls."""
    return "stop" if way.name == "chat" and reason == "tool_calls" else reason
