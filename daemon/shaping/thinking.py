"""Splits thinking from content where an engine left the tags in the text. The same for any chunking.

An opening tag counts only at the very start, after whitespace at most; the whitespace around tags and thinking is
dropped. What is held back is what may still become a tag, and the whitespace before it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from daemon.chat import Done, Piece, TextDelta, ThinkingDelta

# Opening tags and what closes them, of the model families in use.
TAGS: Final[Mapping[str, str]] = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
}
_SPACES = re.compile(r"\s*")


class ThinkTags:
    """A reader of one answer. `inside`: the prompt had the opening tag, so that the answer begins with thinking."""

    def __init__(self, inside: bool = False) -> None:
        self._read = self._opening
        self._closers = tuple(TAGS.values()) if inside else ()
        self._held = ""
        self._logprobs: tuple[Mapping[str, Any], ...] = ()

    def feed(self, piece: Piece) -> Sequence[Piece]:
        if isinstance(piece, TextDelta):
            if self._read == self._content:
                return (piece,)
            self._held += piece.text
            self._logprobs += piece.logprobs
            return self._read()
        if isinstance(piece, ThinkingDelta) and self._read != self._content:
            # The engine knows the tags itself.
            return (*self._rest(), piece)
        return (piece,)

    def end(self, done: Done) -> tuple[Sequence[Piece], Done]:
        return self._rest(), done

    def _rest(self) -> list[Piece]:
        held, self._held = self._held, ""
        thinking = self._read == self._thinking or (bool(self._closers) and self._read == self._opening)
        blank = self._read == self._after
        self._read = self._content
        if not held or blank:
            return []
        return [ThinkingDelta(held)] if thinking else self._text(held)

    # ---- the states, each reads what is held

    def _opening(self) -> list[Piece]:
        text = self._held.lstrip()
        for opener, closer in TAGS.items():
            if text.startswith(opener):
                self._held = text[len(opener) :]
                self._closers = (closer,)
                return self._go_on(self._before)
        if any(opener.startswith(text) for opener in TAGS):
            return []
        return self._go_on(self._before if self._closers else self._content)

    def _before(self) -> list[Piece]:
        """Between the opening tag and the thinking."""
        self._held = self._held.lstrip()
        return self._go_on(self._thinking) if self._held else []

    def _thinking(self) -> list[Piece]:
        found = [(at, closer) for closer in self._closers if (at := self._held.find(closer)) >= 0]
        if found:
            at, closer = min(found)
            thought, self._held = self._held[:at].rstrip(), self._held[at + len(closer) :]
            return [*([ThinkingDelta(thought)] if thought else []), *self._go_on(self._after)]
        kept = max(_overlap(self._held, closer) for closer in self._closers)
        thought = self._held[: len(self._held) - kept].rstrip()
        self._held = self._held[len(thought) :]
        return [ThinkingDelta(thought)] if thought else []

    def _after(self) -> list[Piece]:
        """Between the closing tag and the content."""
        self._held = self._held.lstrip()
        return self._go_on(self._content) if self._held else []

    def _content(self) -> list[Piece]:
        held, self._held = self._held, ""
        return self._text(held)

    def _go_on(self, state: Any) -> list[Piece]:
        self._read = state
        pieces: list[Piece] = state()
        return pieces

    def _text(self, text: str) -> list[Piece]:
        logprobs, self._logprobs = self._logprobs, ()
        return [TextDelta(text, logprobs)] if text or logprobs else []


def _overlap(text: str, tag: str) -> int:
    """How much of the end of `text` may be the beginning of `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
