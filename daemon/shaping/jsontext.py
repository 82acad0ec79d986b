"""Follows JSON text as it arrives, and mends what models get wrong in it."""

import json
import re
from typing import Any

from daemon.framing import to_json

_CLOSERS = {"{": "}", "[": "]"}
_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\r?\n?(.*?)(?:```|$)", re.DOTALL)
_NEXT = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'["\\]')


class Tracker:
    """Where in a JSON value the text is. Only brackets and strings are followed, which is enough to find its end."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._in_string = False
        self._escaped = False
        self.begun = False
        self.broken = False  # a bracket closes what is not open

    @property
    def complete(self) -> bool:
        return self.begun and not self._open and not self._in_string and not self.broken

    @property
    def missing(self) -> str:
        """What closes all that is open, but for a string."""
        return "".join(_CLOSERS[bracket] for bracket in reversed(self._open))

    @property
    def in_string(self) -> bool:
        return self._in_string

    def feed(self, text: str) -> int:
        """How much of `text` belongs to the value, an object or an array; less than all when it ended or broke."""
        at = 0
        while at < len(text) and not self.broken:
            if self._in_string:
                at = self._string(text, at)
                continue
            found = _NEXT.search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            if not self._bracket(found[0]):
                self.broken = True
                return found.start()
            if not self._open and not self._in_string:
                return at
        return at

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _STRING_END.search(text, at)
        if found is None:
            return len(text)
        self._escaped = found[0] == "\\"
        self._in_string = self._escaped
        return found.end()

    def _bracket(self, char: str) -> bool:
        self.begun = True
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._open.append(char)
        elif not self._open or _CLOSERS[self._open.pop()] != char:
            return False
        return True


def parsed(text: str) -> Any:
    """The value, or None where there is none that can be written again; null counts as none."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        to_json(value)
    except (ValueError, RecursionError):
        return None
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def mended(text: str) -> str | None:
    """The JSON object that `text` is meant to be, in the model's own writing as far as it goes; None where that is not
    plain. Mended are: a code fence around, text after the object, a list or a string around it, missing closing
    brackets, commas before a closing bracket, and nothing at all, which is how models write no arguments."""
    if isinstance(parsed(text), dict):
        return text
    if not text.strip():
        return "{}"
    if fence := _FENCE.search(text):
        return mended(fence[1]) if not _FENCE.search(fence[1]) else None
    text = text.strip()
    value = parsed(text)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        return text[1:-1].strip()
    if isinstance(value, str):
        return value if isinstance(parsed(value), dict) else None
    if not text.startswith("{"):
        return None
    tracker = Tracker()
    whole = text[: tracker.feed(text)]
    if tracker.in_string or tracker.broken:
        return None
    whole += tracker.missing
    for candidate in (whole, _TRAILING_COMMA.sub(r"\1\2", whole)):
        if isinstance(parsed(candidate), dict):
            return candidate
    return None


# A comma before a closing bracket, where strings are stepped over.
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(\s*[}\]])')
