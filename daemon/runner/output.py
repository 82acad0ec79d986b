"""What an engine printed: a bounded tail of lines, and the causes of failure that can be read from it.

Matching text of another program is the weak spot of every supervisor, so all of it is in this module.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

MAX_LINE_BYTES = 8 * 1024
KEPT_LINES = 400

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_PREFIX = re.compile(r"^[0-9.]+ [A-Z] ")
_PATH = re.compile(r"(?<![\w.<])(?:unix://)?/[\w.+@%~-]+(?:/[\w.+@%~-]+)+")


def printable(line: str) -> str:
    """The line without control characters or bidirectional overrides, so that it is safe in a log or terminal."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", line)


class Tail:
    """The last `kept` lines of an output of any length. Fed bytes as they come."""

    def __init__(self, kept: int = KEPT_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=kept)
        self._partial = bytearray()
        self.total_bytes = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Takes a chunk and returns the lines that it completed. A longer line than MAX_LINE_BYTES is cut up."""
        self.total_bytes += len(chunk)
        self._partial += chunk
        *lines, rest = re.split(rb"\r\n|\n|\r", self._partial)
        while len(rest) > MAX_LINE_BYTES:
            lines.append(rest[:MAX_LINE_BYTES])
            rest = rest[MAX_LINE_BYTES:]
        self._partial = bytearray(rest)
        done = [
            printable(line[i : i + MAX_LINE_BYTES].decode("utf-8", "replace"))
            for line in lines
            for i in range(0, max(len(line), 1), MAX_LINE_BYTES)
            if line
        ]
        self._lines.extend(done)
        return done

    def lines(self) -> list[str]:
        """All that is kept, the unfinished line included."""
        lines = [*self._lines]
        if self._partial:
            lines.append(printable(self._partial.decode("utf-8", "replace")))
        return lines


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a start failed. `permanent`: the same start would fail again; `memory`: it may not, with more memory."""

    sentence: str
    permanent: bool
    memory: bool = False


_OUT_OF_MEMORY = "|".join(
    [
        "out of memory",
        "out of device memory",
        "cudaMalloc failed",
        "hipMalloc failed",
        "failed to allocate",
        "not enough memory",
        "insufficient memory",
        "cannot allocate memory",
    ]
)
_DAMAGED = "tensor .* is not within file bounds|data is not within the file|file is truncated"
_UNKNOWN_OPTION = "error: invalid argument|error while handling argument|unrecognized arguments"
_NO_SOCKET = "couldn't bind|address already in use"
_CANNOT_LOAD = "error loading model|failed to load model|load_model: failed"

# The most telling first: an engine that is out of memory also says that it failed to load the model.
_CAUSES: Sequence[tuple[str, Cause]] = (
    (_OUT_OF_MEMORY, Cause("there is not enough memory for it", permanent=False, memory=True)),
    (
        "unknown model architecture",
        Cause("this engine does not know the model's architecture", permanent=True),
    ),
    (_DAMAGED, Cause("the model file is damaged", permanent=True)),
    (_UNKNOWN_OPTION, Cause("the engine does not know one of its options", permanent=True)),
    (_NO_SOCKET, Cause("the engine could not listen on its socket", permanent=False)),
    (_CANNOT_LOAD, Cause("the engine cannot load the file", permanent=True)),
)


def classify(lines: Sequence[str]) -> Cause | None:
    """The first known cause, the most telling one first, or None."""
    for pattern, cause in _CAUSES:
        if any(re.search(pattern, line, re.IGNORECASE) for line in lines):
            return cause
    return None


def without_paths(text: str) -> str:
    """The text for a person who is not on this machine: each absolute path is only `<path>`."""
    return _PATH.sub("<path>", text)


def quote(lines: Sequence[str], count: int = 6) -> str:
    """The last lines for a person who is not on this machine: without time stamps and paths."""
    quoted = [without_paths(_PREFIX.sub("", line).strip())[:300] for line in lines[-count:]]
    return "\n".join(line for line in quoted if line)
