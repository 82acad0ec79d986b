"""Durations as people and Ollama's clients write them, in seconds inside."""

import math
import re

# The micro sign and the Greek letter mu are two characters; Go reads both.
_UNIT_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_TERM = re.compile(rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)({'|'.join(_UNIT_SECONDS)})")
_MAX_TEXT = 64


def parse_duration(text: str) -> float:
    """Seconds for a duration in Go's syntax: "5m", "1h30m", "1.5s", "-1m", "0".

    Source: the documentation of Go's time.ParseDuration; a unit is needed except after zero.
    Raises ValueError with a sentence that names the text.
    """
    rest = text.strip()
    sign = -1.0 if rest.startswith("-") else 1.0
    rest = rest[1:] if rest.startswith(("-", "+")) else rest
    if rest and len(rest) <= _MAX_TEXT and set(rest) == {"0"}:
        return 0.0
    total, position = 0.0, 0
    while len(rest) <= _MAX_TEXT and (term := _TERM.match(rest, position)):
        total += float(term[1]) * _UNIT_SECONDS[term[2]]
        position = term.end()
    if not rest or position != len(rest):
        raise ValueError(f'"{text[:_MAX_TEXT]}" is not a duration; write it like "5m", "1h30m" or "30s"')
    return sign * total


def parse_keep_alive(value: object) -> float | None:
    """Seconds a model stays loaded after its last byte, from a request's or a setting's `keep_alive`.

    None means not given; a negative value means for ever (infinity); 0 means unload at once. A number is
    seconds, a string is a Go duration. Source: Ollama's API, `keep_alive`.
    Raises ValueError with a sentence that names the value.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('keep_alive must be a number of seconds or a duration like "5m"')
    if isinstance(value, str):
        seconds = parse_duration(value)
    else:
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf if value > 0 else -math.inf
    if math.isnan(seconds):
        raise ValueError("keep_alive must be a number of seconds, not NaN")
    return math.inf if seconds < 0 else seconds
