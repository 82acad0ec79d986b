"""What the encoders of all dialects share: one end, exactly once, how a call's arguments become an object, notes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from daemon.chat import Done, Event, Progress, TextDelta, ThinkingDelta, ToolCallDelta
from daemon.errors import EngineFailed, InvalidRequest, MgrError
from daemon.framing import quoted
from daemon.middleware.dialect import read_object


class StreamEncoder(ABC):
    """An Encoder that is told of deltas, of one end or one error, and of nothing after that."""

    def __init__(self) -> None:
        self._done: Done | None = None
        self._ended = False

    def feed(self, event: Event) -> bytes:
        if self._ended:
            return b""
        if isinstance(event, TextDelta):  # nearly all are
            if event.logprobs:
                return self._scored(event)
            return self.feed_quoted(quoted(event.text)) if event.text else b""
        match event:
            case Done():
                self._done = event
                return b""
            case Progress():
                self._progress(event)
                return b""
            case ThinkingDelta():
                return self._thinking(event) if event.text else b""
            case ToolCallDelta():
                return self._call(event)

    @abstractmethod
    def feed_quoted(self, text: bytes) -> bytes: ...

    def keep_alive(self) -> bytes:
        return b"" if self._ended else self._ping()

    def finish(self) -> bytes:
        if self._done is None:
            return self.fail(EngineFailed("the engine's answer broke off"))
        if self._ended:
            return b""
        self._ended = True
        return self._end(self._done)

    def fail(self, error: MgrError) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        return self._error(error)

    def _progress(self, event: Progress) -> None:  # noqa: B027 - most dialects have no use for it
        """Prefill went on."""

    def _scored(self, delta: TextDelta) -> bytes:
        """Text, possibly empty, with the log probabilities of its tokens; some dialects have no place for those."""
        return self.feed_quoted(quoted(delta.text)) if delta.text else b""

    @abstractmethod
    def _thinking(self, delta: ThinkingDelta) -> bytes: ...

    @abstractmethod
    def _call(self, delta: ToolCallDelta) -> bytes: ...

    @abstractmethod
    def _ping(self) -> bytes: ...

    @abstractmethod
    def _end(self, done: Done) -> bytes: ...

    @abstractmethod
    def _error(self, error: MgrError) -> bytes: ...


def arguments_object(text: str) -> dict[str, Any]:
    """A tool call's arguments as the object that some dialects need.

    What a model writes need not be JSON, and is never an error of the server: such text is kept under "raw".
    """
    if not text.strip():
        return {}
    try:
        return read_object(text.encode())
    except InvalidRequest:
        return {"raw": text}


def notes(ends: Sequence[Done]) -> dict[str, Any]:
    """The extra fields `truncated` and `warnings` of what ended so, each only where there is something to say."""
    warnings = dict.fromkeys(warning for done in ends for warning in done.warnings)
    truncated = {"truncated": True} if any(done.truncated for done in ends) else {}
    return truncated | ({"warnings": list(warnings)} if warnings else {})
