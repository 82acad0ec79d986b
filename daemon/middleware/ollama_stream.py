"""How Ollama writes answers: the shape of a line, the end with its numbers, errors, and the encoder of a stream.

Source: Ollama's API documentation and the types of its server. Streams are NDJSON; durations are integer nanoseconds;
numbers that are zero are left out. `truncated` and `warnings` are mgr's own, and there only when there is something
to say.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from daemon.chat import Done, FinishReason, TextDelta, ThinkingDelta, Timings, ToolCall, ToolCallDelta
from daemon.errors import MgrError
from daemon.framing import Template, ndjson, to_json
from daemon.middleware.dialect import STATUS, Reply, retry_headers
from daemon.middleware.encoding import StreamEncoder, arguments_object, notes

JSON = "application/json; charset=utf-8"
NDJSON = "application/x-ndjson"

_DONE_REASON: Mapping[FinishReason, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "stop",
}

# A call and its place among the calls of the answer.
_PlacedCall = tuple[int, ToolCall]


class Shape(Protocol):
    """How a route writes a piece of an answer."""

    def __call__(
        self, text: str, thinking: str = "", calls: Iterable[_PlacedCall] = (), /
    ) -> dict[str, Any]: ...


def as_message(text: str, thinking: str = "", calls: Iterable[_PlacedCall] = (), /) -> dict[str, Any]:
    """/api/chat."""
    return {"message": {"role": "assistant", "content": text, **_extras(thinking, calls)}}


def as_response(text: str, thinking: str = "", calls: Iterable[_PlacedCall] = (), /) -> dict[str, Any]:
    """/api/generate."""
    return {"response": text, **_extras(thinking, calls)}


def _extras(thinking: str, calls: Iterable[_PlacedCall]) -> dict[str, Any]:
    written = [
        {
            "id": call.id,
            "function": {"index": index, "name": call.name, "arguments": arguments_object(call.arguments)},
        }
        for index, call in calls
    ]
    return ({"thinking": thinking} if thinking else {}) | ({"tool_calls": written} if written else {})


def head(model: str, created_at: float) -> dict[str, Any]:
    """What every line begins with. `created_at` is in seconds since 1970."""
    return _head(model, moment(created_at))


def _head(model: str, created_at: str) -> dict[str, Any]:
    return {"model": model, "created_at": created_at}


def moment(when: float) -> str:
    """RFC 3339 with nanoseconds, in UTC."""
    second = int(when)
    return f"{_second(second)}{_fraction(when - second)}"


def _second(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}."


def _fraction(fraction: float) -> str:
    return f"{int(fraction * 1e9):09d}Z"


def tail(done: Done) -> dict[str, Any]:
    """The end of an answer. `prompt_eval_count` includes what came from the cache."""
    end: dict[str, Any] = {"done": True, "done_reason": _DONE_REASON[done.reason]}
    if done.context is not None:
        end["context"] = done.context
    return end | numbers(done.timings, done.usage.prompt, done.usage.completion) | notes([done])


def numbers(timings: Timings, prompt_tokens: int, tokens: int = 0) -> dict[str, int]:
    """Durations and counts, without those that are zero."""
    found = {
        "total_duration": round(timings.total * 1e9),
        "load_duration": round(timings.load * 1e9),
        "prompt_eval_count": prompt_tokens,
        "prompt_eval_duration": round(timings.prompt * 1e9),
        "eval_count": tokens,
        "eval_duration": round(timings.generation * 1e9),
    }
    return {key: value for key, value in found.items() if value}


def scores(logprobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`logprobs` of a line, from entries in OpenAI's shape; none gives no field."""
    return {"logprobs": [_score(entry) for entry in logprobs]} if logprobs else {}


def _score(entry: Mapping[str, Any]) -> dict[str, Any]:
    written = {key: entry[key] for key in ("token", "logprob", "bytes") if entry.get(key) is not None}
    if others := entry.get("top_logprobs"):
        written["top_logprobs"] = [_score(other) for other in others]
    return written


def error_reply(error: MgrError, message: str | None = None) -> Reply:
    """`message` is there when the route has words of its own for this error."""
    body = {"error": message or error.message}
    return Reply(STATUS[error.kind], to_json(body), JSON, retry_headers(error))


class OllamaEncoder(StreamEncoder):
    """A tool call gets its own line as soon as it is whole, as its arguments must be an object.

    `clock` gives the wall-clock time that each line shows.
    """

    def __init__(self, model: str, shape: Shape, clock: Callable[[], float]) -> None:
        super().__init__()
        self._model = model
        self._shape = shape
        self._clock = clock
        self._fragments: list[ToolCallDelta] = []
        self._second, self._before = 0, b""
        self._template = Template(lambda text: ndjson(shape(text) | {"done": False})[1:])

    def _line(self, piece: Mapping[str, Any], end: Mapping[str, Any]) -> bytes:
        return ndjson({**head(self._model, self._clock()), **piece, **end})

    def feed_quoted(self, text: bytes) -> bytes:
        when = self._clock()
        if int(when) != self._second:
            self._second = int(when)
            self._before = to_json(_head(self._model, _second(self._second)))[: -len('"}')]
        fraction = _fraction(when - self._second).encode()
        return b'%b%b",%b' % (self._before, fraction, self._template.fill(text))

    def _scored(self, delta: TextDelta) -> bytes:
        return self._line(self._shape(delta.text), {"done": False, **scores(delta.logprobs)})

    def _thinking(self, delta: ThinkingDelta) -> bytes:
        return self._line(self._shape("", delta.text), {"done": False})

    def _call(self, delta: ToolCallDelta) -> bytes:
        begins = self._fragments and self._fragments[0].index != delta.index
        line = self._whole_call() if begins else b""
        self._fragments.append(delta)
        return line

    def _whole_call(self) -> bytes:
        if not self._fragments:
            return b""
        first, arguments = self._fragments[0], "".join(piece.arguments for piece in self._fragments)
        self._fragments = []
        call = ToolCall(first.id or "", first.name or "", arguments)
        return self._line(self._shape("", "", [(first.index, call)]), {"done": False})

    def _ping(self) -> bytes:
        # Not a blank line: the official Python client parses every line as JSON.
        return self._line(self._shape(""), {"done": False})

    def _end(self, done: Done) -> bytes:
        return self._whole_call() + self._line(self._shape(""), tail(done))

    def _error(self, error: MgrError) -> bytes:
        return ndjson({"error": error.message})
