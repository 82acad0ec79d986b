"""What a cell of the matrix asks and what it is told, the same for all clients, so that each check is written once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

MODEL = "smollm2"
LIMIT = 12
# A small picture, which a model without a projector has to refuse.
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@dataclass(frozen=True)
class Call:
    """`arguments` as the client gives them, read as JSON."""

    name: str
    arguments: Any
    id: str = ""


@dataclass(frozen=True)
class Turn:
    """`texts` are the parts of its content; a tool's turn is the result of `result_of`."""

    role: str
    texts: tuple[str, ...] = ()
    image: str | None = None
    calls: tuple[Call, ...] = ()
    result_of: Call | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """`format` is "json" or a schema; `choice` is auto, required or the name of a tool."""

    turns: tuple[Turn, ...]
    model: str = MODEL
    system: str | None = None
    limit: int = LIMIT
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    top_logprobs: int | None = None
    format: str | Mapping[str, Any] | None = None
    tools: tuple[Tool, ...] = ()
    choice: str | None = None
    think: bool | None = None
    choices: int = 1
    previous: str | None = None


@dataclass(frozen=True)
class Logprob:
    token: str
    value: float
    best: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Failure:
    """`name` is the class of the client's exception, `body` is what it tells of the error."""

    name: str
    status: int | None
    body: Any

    @property
    def detail(self) -> Mapping[str, Any]:
        """The dialect's error object, out of its envelope where the client left it in one."""
        if isinstance(self.body, str):
            return {"message": self.body}
        inner = self.body.get("error", self.body)
        return inner if isinstance(inner, dict) else {"message": inner}

    @property
    def message(self) -> str:
        return str(self.detail.get("message"))


@dataclass(frozen=True, kw_only=True)
class Told:
    """An answer. `finish` is stop, length or tool_calls; `texts` has each choice where there are several; `extra` are
    the fields that this dialect alone has."""

    texts: tuple[str, ...] = ("",)
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    prompt_tokens: int = 0
    tokens: int = 0
    logprobs: tuple[Logprob, ...] = ()
    pieces: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def text(self) -> str:
        [text] = self.texts
        return text


class Api(Protocol):
    """How one API of a client is called, and what its answers mean; values are plain JSON."""

    client: str
    method: str

    def params(self, ask: Ask, stream: bool) -> dict[str, Any]: ...

    def whole(self, reply: Any) -> Told: ...

    def streamed(self, pieces: Sequence[Any]) -> Told: ...


def user(*texts: str, image: str | None = None) -> Turn:
    return Turn("user", texts, image)


def assistant(text: str) -> Turn:
    return Turn("assistant", (text,))


def given(**values: Any) -> dict[str, Any]:
    """The values that say something; None and what is empty is left out."""
    return {name: value for name, value in values.items() if value not in (None, (), [], {})}
