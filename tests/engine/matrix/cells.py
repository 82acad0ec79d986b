"""A cell of the matrix: one feature through one API of one client, streamed or not; and what it is checked against."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.engine.conftest import DirectEngine
from tests.engine.matrix import anthropic_api, ollama_api, openai_api, responses_api
from tests.engine.matrix.asks import Api, Ask, Failure, Told
from tests.engine.matrix.clients import Clients, Mode, Reply
from tests.fakes.daemon import DaemonProcess

LANGUAGES = ("python", "node")
APIS: Mapping[str, Api] = {
    "ollama": ollama_api.Chat(),
    "generate": ollama_api.Generate(),
    "openai": openai_api.Chat(),
    "completions": openai_api.Completions(),
    "responses": responses_api.Responses(),
    "anthropic": anthropic_api.Messages(),
}


class Bench:
    """What all cells share: the daemon, the clients, the engine without mgr, and what other cells were told."""

    def __init__(self, daemon: DaemonProcess, clients: Mapping[str, Clients], direct: DirectEngine) -> None:
        self.daemon = daemon
        self.clients = clients
        self._direct = direct
        self._agreed: dict[object, Any] = {}

    def agreed(self, key: object, value: Any) -> Any:
        """What the first cell that said something about `key` was told."""
        return self._agreed.setdefault(key, value)

    def engine(self, ask: Ask) -> Told:
        """The answer of the engine itself to a chat."""
        body = openai_api.Chat().params(ask, stream=False)
        return openai_api.Chat().whole(self._direct.ask("/v1/chat/completions", **_for_engine(body)))

    def continuation(self, ask: Ask) -> Told:
        """The engine's own continuation of a text."""
        body = openai_api.Completions().params(ask, stream=False)
        return openai_api.Completions().whole(self._direct.ask("/v1/completions", **_for_engine(body)))


def _for_engine(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("model", "reasoning_effort")}


@dataclass(frozen=True)
class Cell:
    feature: str
    language: str
    api: str
    stream: bool
    bench: Bench = field(repr=False)

    def call(self, method: str, mode: Mode, *args: Any, **params: Any) -> Reply:
        """Calls any method of this cell's client."""
        return self.bench.clients[self.language].call(APIS[self.api].client, method, mode, *args, **params)

    def value(self, method: str, mode: Mode, *args: Any, **params: Any) -> Any:
        """What a method gives that answers with one value."""
        reply = self.call(method, mode, *args, **params)
        assert set(reply) == {"whole"}, reply
        return reply["whole"]

    def told(self, ask: Ask) -> Told:
        api = APIS[self.api]
        reply = self.call(api.method, "stream" if self.stream else "whole", **api.params(ask, self.stream))
        assert "error" not in reply, reply
        return api.streamed(reply["pieces"]) if self.stream else api.whole(reply["whole"])

    def failure(self, ask: Ask) -> Failure:
        api = APIS[self.api]
        reply = self.call(api.method, "stream" if self.stream else "whole", **api.params(ask, self.stream))
        assert set(reply) == {"error"}, reply
        return Failure(**reply["error"])

    def engine(self, ask: Ask) -> Told:
        """What the engine says to the same question without mgr."""
        return self.bench.continuation(ask) if self.api == "completions" else self.bench.engine(ask)

    def agreed(self, value: Any, *key: object) -> Any:
        """What the first cell of this feature was told."""
        return self.bench.agreed((self.feature, *key), value)


Check = Callable[[Cell], None]


@dataclass(frozen=True)
class Feature:
    """`apis` have it, `streams` are the ways that it can be asked."""

    name: str
    apis: tuple[str, ...]
    check: Check
    streams: tuple[bool, ...] = (False, True)

    def has(self, language: str, api: str) -> bool:
        return api in self.apis or f"{language} {api}" in self.apis
