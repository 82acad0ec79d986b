"""Server-sent events and newline-delimited JSON, on bytes, without I/O.

Decoders are fed chunks of any size and return what is complete; `flush` ends the input. Both bound what they hold.
Own code, because the readers at hand split lines at U+2028, U+2029 and U+0085, which are legal inside JSON text.
Sources: the WHATWG HTML standard, section "Parsing an event stream"; ndjson is one JSON value and LF a line.
"""

import json
import re
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

MAX_EVENT_BYTES = 8 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n|\n|\r")

# What some readers, the official Ollama client among them, take for line ends; escaped they are the same JSON.
_UNICODE_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class FramingError(ValueError):
    """The peer sent something that is not the format, or too large a piece of it."""


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, on one line for every reader.

    Lone surrogates and NaN raise ValueError: neither is legal in the output.
    """
    text = _ENCODER.encode(value)
    return (text if text.isascii() else text.translate(_UNICODE_LINE_ENDS)).encode()


# Made once: `json.dumps` with these options would make one for each call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def quoted(text: str) -> bytes:
    """The text as JSON writes it between its quotes, on one line for every reader. Raises what to_json raises."""
    return to_json(text)[1:-1]


def requoted(text: bytes) -> bytes:
    """What another program wrote between the quotes of a JSON string, on one line for every reader.

    Raises UnicodeDecodeError.
    """
    return text.decode().translate(_UNICODE_LINE_ENDS).encode()


def unquoted(text: bytes) -> str:
    """The text that stands so between the quotes of a JSON string. Raises ValueError."""
    found: str = json.loads(b'"%b"' % text)
    return found


class Template:
    """Bytes that are always the same but for one JSON string: written once, then only filled.

    `make` gets a stand-in for that string, and has to use it once.
    """

    def __init__(self, make: Callable[[str], bytes]) -> None:
        mark = secrets.token_hex(16)
        self._around = make(mark).split(mark.encode())

    def fill(self, text: bytes) -> bytes:
        """`text` as `quoted` gives it."""
        return text.join(self._around)


def ndjson(value: Any) -> bytes:
    return to_json(value) + b"\n"


def sse(data: bytes, event: str | None = None) -> bytes:
    """One event; `data` must be a single line, as compact JSON is."""
    if event is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


def sse_comment(text: str) -> bytes:
    return b": " + text.encode() + b"\n\n"


class ServerSentEvent(NamedTuple):
    data: bytes
    event: str = "message"


class _Lines:
    """Cuts bytes into lines; a CR at the end of a chunk waits for a possible LF."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()

    @property
    def held(self) -> bool:
        """Whether a line has begun."""
        return bool(self._held)

    def feed(self, chunk: bytes) -> list[bytes]:
        # Only the new bytes can hold a line end (and a CR held back before them).
        start = max(len(self._held) - 1, 0)
        self._held += chunk
        lines, begin = [], 0
        for match in _LINE_END.finditer(self._held, start):
            if match.end() == len(self._held) and match[0] == b"\r":
                break
            lines.append(_bounded(self._held[begin : match.start()], self._limit))
            begin = match.end()
        del self._held[:begin]
        _bounded(self._held, self._limit + self._held.endswith(b"\r"))
        return lines

    def flush(self) -> list[bytes]:
        """The line that a CR had ended, if one waited for its LF. A line without an end is not a line."""
        rest, self._held = bytes(self._held), bytearray()
        return [rest[:-1]] if rest.endswith(b"\r") else []


def _bounded(line: bytes | bytearray, limit: int) -> bytes:
    """The line; however it was cut into chunks, a limit is the same limit."""
    if len(line) > limit:
        raise FramingError(f"a line is longer than {limit} bytes")
    return bytes(line)


class SseDecoder:
    """Bytes of an event stream in, whole events out. An event that was cut off is dropped, as the standard says."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._lines = _Lines(limit)
        self._limit = limit
        self._data: list[bytes] = []
        self._size = 0
        self._event = "message"
        self._first = True

    @property
    def between_events(self) -> bool:
        """Whether what comes next begins an event."""
        return not (self._lines.held or self._data or self._event != "message")

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        return self._events(self._lines.feed(chunk))

    def flush(self) -> list[ServerSentEvent]:
        """Ends the input. An event without its blank line is incomplete, and dropped as the standard demands."""
        events = self._events(self._lines.flush())
        self._dispatch()
        return events

    def _events(self, lines: list[bytes]) -> list[ServerSentEvent]:
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> ServerSentEvent | None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._dispatch()
        name, colon, value = line.partition(b":")
        if colon:
            value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value) + 1
            if self._size > self._limit:
                raise FramingError(f"an event is longer than {self._limit} bytes")
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, event = self._data, self._event
        self._data, self._size, self._event = [], 0, "message"
        return ServerSentEvent(b"\n".join(data), event or "message") if data else None


class NdjsonDecoder:
    """Bytes of newline-delimited JSON in, values out; blank lines are skipped."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._held = bytearray()

    def feed(self, chunk: bytes) -> list[Any]:
        first, *others = chunk.split(b"\n")
        self._held += first
        if not others:
            _bounded(self._held, self._limit)
            return []
        *whole, rest = others
        lines = [bytes(self._held), *whole]
        self._held = bytearray(_bounded(rest, self._limit))
        return [self._value(_bounded(line, self._limit)) for line in lines if line.strip()]

    def flush(self) -> list[Any]:
        rest, self._held = self._held, bytearray()
        return [self._value(rest)] if rest.strip() else []

    @staticmethod
    def _value(line: bytes | bytearray) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FramingError("a line is not JSON") from error
