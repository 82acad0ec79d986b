"""Repairs the arguments of tool calls, which models do not always write as valid JSON.

What has come of an object is passed on at once. Held back until the call ends is what does not belong to it: text
before its opening bracket and after its closing one, or from a bracket on that does not fit. Then the whole is mended
where it is plain what was meant and what was passed on already still fits; else it is passed on as it came, and the
answer says so.
"""

from collections.abc import Sequence
from dataclasses import replace

from daemon.chat import Done, FinishReason, Piece, ToolCallDelta
from daemon.shaping.jsontext import Tracker, mended, parsed
from daemon.shaping.reader import call_id


class RepairedCalls:
    """A reader of one answer."""

    def __init__(self) -> None:
        self._call: _Call | None = None
        self._warnings: list[str] = []

    def feed(self, piece: Piece) -> Sequence[Piece]:
        if not isinstance(piece, ToolCallDelta):
            return (piece,)
        pieces: list[Piece] = []
        if self._call is None or self._call.index != piece.index:
            pieces += self._end_call(cut=False)
            self._call = _Call(piece.index, piece.name or "")
            piece = replace(piece, id=piece.id or call_id())
        passed = self._call.pass_on(piece.arguments)
        if passed or piece.id or piece.name:
            pieces.append(replace(piece, arguments=passed))
        return pieces

    def end(self, done: Done) -> tuple[Sequence[Piece], Done]:
        pieces = self._end_call(cut=done.reason == FinishReason.LENGTH)
        return pieces, replace(done, warnings=(*done.warnings, *self._warnings)) if self._warnings else done

    def _end_call(self, cut: bool) -> list[Piece]:
        call, self._call = self._call, None
        if call is None:
            return []
        rest, problem = call.rest(cut)
        if problem:
            self._warnings.append(f"the arguments of the call of '{call.name}' {problem}")
        return [ToolCallDelta(call.index, rest)] if rest else []


class _Call:
    def __init__(self, index: int, name: str) -> None:
        self.index = index
        self.name = name
        self._tracker = Tracker()
        self._passed: list[str] = []
        self._held = ""

    def pass_on(self, text: str) -> str:
        """What of `text` is surely a part of the object."""
        if self._held or self._tracker.complete:
            self._held += text
            return ""
        if not self._tracker.begun and not text.lstrip().startswith("{"):
            self._held = text if text.strip() else ""
            return ""
        end = self._tracker.feed(text)
        self._held = text[end:]
        self._passed.append(text[:end])
        return text[:end]

    def rest(self, cut: bool) -> tuple[str, str | None]:
        """What is still to pass on, and what is wrong with the whole. `cut`: the answer ended before the call did."""
        passed = "".join(self._passed)
        if isinstance(parsed(passed), dict):
            return "", None
        if cut:
            return self._held, "were cut off by the token limit"
        whole = mended(passed + self._held)
        if whole is not None and whole.startswith(passed):
            return whole[len(passed) :], None
        return (
            self._held,
            "are not valid JSON, and it is not plain what was meant; they are passed on as written",
        )
