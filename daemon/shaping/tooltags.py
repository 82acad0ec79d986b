"""Makes tool calls of what a model wrote as calls and the engine left in the content.

Read are the tags in use around JSON like {"name": ..., "arguments": {...}}, or such JSON alone at the very start.
It is a call only with the name of a tool of the request; anything else stays the text that it was.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from daemon.chat import Done, FinishReason, Piece, TextDelta, ToolCallDelta
from daemon.framing import to_json
from daemon.shaping.jsontext import mended, parsed
from daemon.shaping.reader import call_id

# Opening tags and what closes them; None is the end of the answer.
TAGS: Final[Mapping[str, str | None]] = {
    "<tool_call>": "</tool_call>",
    "<function_call>": "</function_call>",
    "[TOOL_CALLS]": None,
    "<|python_tag|>": None,
}
_BARE = ('{"name":"', '[{"name":"')


class ToolTags:
    """A reader of one answer. `names` are those of the request's tools."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._held = ""
        self._logprobs: tuple[Mapping[str, Any], ...] = ()
        self._next = 0
        self._made = False
        self._started = False  # text has been passed on, so that a bare call cannot come any more

    def feed(self, piece: Piece) -> Sequence[Piece]:
        if isinstance(piece, ToolCallDelta):
            self._next = max(self._next, piece.index + 1)
        if not isinstance(piece, TextDelta):
            return (piece,)
        self._held += piece.text
        self._logprobs += piece.logprobs
        return self._read()

    def end(self, done: Done) -> tuple[Sequence[Piece], Done]:
        whole = done.reason != FinishReason.LENGTH
        pieces = (self._last_call() if whole else []) or self._text(len(self._held))
        if self._made and done.reason == FinishReason.STOP:
            done = replace(done, reason=FinishReason.TOOL_CALLS)
        return pieces, done

    def _read(self) -> list[Piece]:
        pieces: list[Piece] = []
        while not self._may_be_bare():
            if (opening := self._opening()) is None:
                return [*pieces, *self._text(len(self._held) - _unsure(self._held))]
            at, opener = opening
            pieces += self._text(len(self._held[:at].rstrip()))
            closer = TAGS[opener]
            inside, closed, after = self._held.partition(closer) if closer else (self._held, "", "")
            if not closed:
                break
            calls = self._calls(inside.lstrip().removeprefix(opener))
            if calls:
                self._held, self._logprobs = after, ()
                pieces += calls
            else:
                pieces += self._text(len(inside) + len(closed))
        return pieces

    def _opening(self) -> tuple[int, str] | None:
        """The first opening tag, and where it is."""
        return min(((at, tag) for tag in TAGS if (at := self._held.find(tag)) >= 0), default=None)

    def _last_call(self) -> list[Piece]:
        """The calls of a text that nothing closes but the end of the answer."""
        opening = self._opening()
        inside = self._held[opening[0] + len(opening[1]) :] if opening else self._held
        calls = self._calls(inside) if opening or self._may_be_bare() else []
        if calls:
            self._held = ""
        return calls

    def _text(self, length: int) -> list[Piece]:
        text, self._held = self._held[:length], self._held[length:]
        if self._made and not self._started:
            text = text.lstrip()
        if not text:
            return []
        self._started = True
        logprobs, self._logprobs = self._logprobs, ()
        return [TextDelta(text, logprobs)]

    def _may_be_bare(self) -> bool:
        """Whether all text so far is a call without tags, as far as it goes."""
        if self._started or self._made:
            return False
        text = "".join(self._held.split())
        for start in _BARE:
            if text.startswith(start):
                name, quote, _ = text[len(start) :].partition('"')
                return name in self._names if quote else any(each.startswith(name) for each in self._names)
            if text and start.startswith(text):
                return True
        return False

    def _calls(self, text: str) -> list[Piece]:
        calls = calls_in(text, self._names)
        first, self._next = self._next, self._next + len(calls)
        self._made = self._made or bool(calls)
        return [
            ToolCallDelta(first + i, arguments, call_id(), name) for i, (name, arguments) in enumerate(calls)
        ]


def calls_in(text: str, names: Container[str]) -> list[tuple[str, str]]:
    """The names and arguments, in JSON, of the calls that `text` is: one, or a list. None of them if any is wrong."""
    value = parsed(text)
    if value is None:
        value = parsed(mended(text) or "")
    found = [_call(item, names) for item in (value if isinstance(value, list) else [value])]
    calls = [call for call in found if call is not None]
    return calls if len(calls) == len(found) else []


def _call(value: Any, names: Container[str]) -> tuple[str, str] | None:
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or name not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = parsed(arguments)
    return (name, to_json(arguments).decode()) if isinstance(arguments, dict) else None


def _unsure(text: str) -> int:
    """How much of the end of `text` may be the beginning of a tag, with the whitespace before it."""
    at = max(text.rfind("<"), text.rfind("["))
    end = text[:at] if at >= 0 and any(tag.startswith(text[at:]) for tag in TAGS) else text
    return len(text) - len(end.rstrip())
