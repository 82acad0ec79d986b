"""The one canonical form of a request and of its answer.

Modelled on OpenAI's chat completions, which every engine of interest speaks. Dialects convert to and from it
(`middleware/`), the runner sends it to the engine (`runner/wire.py`). None does I/O, and all but TextDelta are frozen.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal, TypeAlias

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


# ---- content


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """`data` is standard base64; `mime` like "image/png"."""

    data: str
    mime: str


@dataclass(frozen=True, slots=True)
class Audio:
    """`data` is standard base64; `format` is "wav" or "mp3"."""

    data: str
    format: str


Part: TypeAlias = Text | Image | Audio


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is JSON text as the model wrote it, which need not be valid."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    parts: tuple[Part, ...] = ()
    thinking: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may, must or must not call a tool. "required" is a guarantee; `name` is the only tool then."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """Structured output: `schema` None means any JSON object."""

    schema: Mapping[str, Any] | bool | None = None


# ---- options


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. None means not given: the model's own value, then the engine's, holds.

    `max_tokens` -1 is "until the window is full"; `seed` -1 is "random"; `repeat_last_n` -1 is the window;
    `logit_bias` are token ids with what is added to their logits.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_last_n: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    num_keep: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None

    def over(self, defaults: "Sampling") -> "Sampling":
        """These options, and `defaults` where they say nothing."""
        missing = {f.name: getattr(defaults, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **missing)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What an engine must be started with. None means automatic. `window` is tokens for each request."""

    window: int | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    batch: int | None = None
    main_gpu: int | None = None
    mmap: bool | None = None

    def over(self, defaults: "LoadOptions") -> "LoadOptions":
        """These options, and `defaults` where they say nothing."""
        missing = {f.name: getattr(defaults, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **missing)


# ---- requests


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """`model` is the name as the client wrote it; `keep_alive` in seconds, infinity for ever, None not given."""

    model: str
    load: LoadOptions = field(default_factory=LoadOptions)
    keep_alive: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(_Common):
    """A conversation. Ends it with a turn of the assistant, the answer continues that turn and does not repeat it.

    `thinking` None leaves it to the model; a text is an effort ("low", "medium", "high"). `thinking_budget` is in
    tokens. `truncate`: a conversation that is too long loses its oldest turns instead of being refused.
    `context` are tokens that stand before the conversation, as an earlier answer gave them; `wants_context` asks the
    answer for its own.
    """

    messages: tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)
    stream: bool = False
    include_usage: bool = True
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool | None = None
    format: JsonFormat | None = None
    thinking: bool | str | None = None
    thinking_budget: int | None = None
    truncate: bool = False
    context: tuple[int, ...] | None = None
    wants_context: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(_Common):
    """Text that is continued as it stands, no template. `prompt` is text or token ids.

    With a `suffix` the engine fills in what belongs between the two. `echo`: the prompt is part of the answer's text.
    """

    prompt: str | tuple[int, ...]
    suffix: str | None = None
    images: tuple[Image | Audio, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    stream: bool = False
    include_usage: bool = True
    format: JsonFormat | None = None
    echo: bool = False
    truncate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest(_Common):
    """`dimensions` cuts each vector and makes its length 1 again. `base64`: how the vectors are written."""

    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None
    truncate: bool = True
    base64: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest(_Common):
    """How well does each document answer the query? `top` bounds the answer."""

    query: str
    documents: tuple[str, ...]
    top: int | None = None
    return_documents: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRequest:
    """How many tokens is the prompt of `chat`?"""

    chat: ChatRequest

    @property
    def model(self) -> str:
        return self.chat.model


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest(_Common):
    """Only load the model, or with `keep_alive` 0 only unload it. `embed`: to answer an EmbedRequest without inputs."""

    embed: bool = False


TokenRequest: TypeAlias = ChatRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that are answered together; the answer of number i is its choice i. At least two."""

    requests: tuple[TokenRequest, ...]

    @property
    def model(self) -> str:
        return self.requests[0].model

    @property
    def stream(self) -> bool:
        return self.requests[0].stream


Request: TypeAlias = (
    ChatRequest | CompletionRequest | Batch | EmbedRequest | RerankRequest | CountRequest | LoadRequest
)


# ---- the answer, as events


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. `prompt` includes the `cached` ones."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations in seconds. `load` is what this request waited for its model to be loaded."""

    total: float = 0.0
    load: float = 0.0
    prompt: float = 0.0
    generation: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Prefill has come this far, in tokens. Never reaches a client as it is."""

    processed: int
    total: int
    cached: int = 0


@dataclass(slots=True)
class TextDelta:
    """`logprobs` are entries in OpenAI's shape.

    Not frozen, as there is one for each chunk, and a frozen one takes three times as long to make.
    """

    text: str
    logprobs: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A fragment of call number `index`; `id` and `name` come with its first fragment.

    Calls come one after the other: no fragment of a call follows one of a later call.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of every answer that ended well, exactly once.

    `truncated`: the prompt was cut to fit the window. `warnings` are sentences for whoever reads the answer, about
    what could not be kept to. `context` are the tokens of prompt and answer, for a ChatRequest that wants them.
    """

    reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    stop_sequence: str | None = None
    truncated: bool = False
    warnings: tuple[str, ...] = ()
    context: tuple[int, ...] | None = None


Event: TypeAlias = Progress | TextDelta | ThinkingDelta | ToolCallDelta | Done

# What comes of an answer before its end.
Piece: TypeAlias = Progress | TextDelta | ThinkingDelta | ToolCallDelta


@dataclass(frozen=True, slots=True)
class Choice:
    """An event of one of the answers to a Batch."""

    index: int
    event: Event


# Takes the pieces of an answer, as many as arrived together, never none. Called where they arrive, so it is quick and
# never waits: None means that it took them, else it is what to wait for before it gets more.
Sink: TypeAlias = Callable[[Sequence[Piece]], Awaitable[None] | None]


class QuotedSink(ABC):
    """A Sink with a short way for what nearly every answer is made of."""

    @abstractmethod
    def __call__(self, pieces: Sequence[Piece]) -> Awaitable[None] | None: ...

    @abstractmethod
    def quoted(self, text: bytes) -> Awaitable[None] | None:
        """As a call with one TextDelta without logprobs, its text as `framing.quoted` gives it, and not empty."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, for clients that did not ask for a stream."""

    text: str
    thinking: str
    tool_calls: tuple[ToolCall, ...]
    done: Done
    logprobs: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each input, in their order. `truncated` are the positions of inputs that were cut to fit."""

    vectors: tuple[tuple[float, ...], ...]
    tokens: int
    truncated: tuple[int, ...] = ()
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Positions of documents with their scores, the best first."""

    scores: tuple[tuple[int, float], ...]
    tokens: int


class Assembly:
    """Puts a stream of events together to one Answer."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._logprobs: list[Mapping[str, Any]] = []
        self._calls: dict[int, tuple[str, str, list[str]]] = {}
        self._done: Done | None = None

    def feed(self, event: Event) -> None:
        match event:
            case TextDelta():
                self._text.append(event.text)
                self._logprobs.extend(event.logprobs)
            case ThinkingDelta():
                self._thinking.append(event.text)
            case ToolCallDelta():
                call_id, name, fragments = self._calls.get(event.index, ("", "", []))
                fragments.append(event.arguments)
                self._calls[event.index] = (event.id or call_id, event.name or name, fragments)
            case Done():
                self._done = event
            case Progress():
                pass

    def answer(self) -> Answer:
        """The answer. Raises ValueError before its Done event."""
        if self._done is None:
            raise ValueError("the answer has not ended")
        calls = tuple(
            ToolCall(call_id, name, "".join(fragments))
            for _, (call_id, name, fragments) in sorted(self._calls.items())
        )
        return Answer("".join(self._text), "".join(self._thinking), calls, self._done, tuple(self._logprobs))
