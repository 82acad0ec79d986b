"""What engines really used, remembered from one start of mgr to the next, and what that teaches about an estimate."""

import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from statistics import fmean

from daemon.scheduler.memory import MIB, Need
from daemon.store.files import read_regular, write_durably

log = logging.getLogger("mgr.memory")

MAX_KEYS = 256
MAX_MEASUREMENTS = 16
_MAX_FILE = MIB
_MAX_NUMBER = 2**53
_NAME = "memory.json"
_FORMAT = 1

# How far a measurement may be from the line through many of them (pages of libraries, what the allocator keeps).
_NOISE = 4 * MIB


@dataclass(frozen=True, slots=True)
class Measurement:
    """`used` bytes after a request, with a window of `window` tokens for each of `slots`."""

    window: int
    slots: int
    used: int

    @property
    def tokens(self) -> int:
        return self.window * self.slots


def corrected(
    needed: Callable[[int, int], Need], window: int, slots: int, measured: Sequence[Measurement]
) -> Need:
    """The estimate for (window, slots), with what measurements of the same files and settings say against it. Pure.

    `needed` is the estimate for any (window, slots). What it missed is taken to be a line over the tokens: steepness
    counts for as much as the measurements lie apart, so that two that are close do not decide on a window far away.
    Not all is believed: weights stay, of the rest a quarter, and nothing becomes more than four times as large.
    """
    need = needed(window, slots)
    if not measured:
        return need
    missed = [one.used - needed(one.window, one.slots).total for one in measured]
    tokens = [one.tokens for one in measured]
    middle, offset = fmean(tokens), fmean(missed)
    # Ridge regression: a steepness of half a token's cache is as likely as noise.
    likely = need.kv / (2 * window * slots)
    spread = likely**2 * sum((x - middle) ** 2 for x in tokens)
    together = likely**2 * sum((x - middle) * y for x, y in zip(tokens, missed, strict=True))
    slope = together / (spread + _NOISE**2)
    wrong = round(offset + slope * (window * slots - middle))
    least = need.weights + (need.total - need.weights) // 4
    return replace(need, correction=min(max(need.total + wrong, least), 4 * need.total) - need.total)


class Learned:
    """Measurements by key, which stands for a model's files and all settings but window and slots.

    Kept in one file in `folder`. A file that is not as it was written is forgotten.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._lock = threading.Lock()
        self._known = self._read()

    def measurements(self, key: str) -> tuple[Measurement, ...]:
        """The oldest first."""
        return self._known.get(key, ())

    def remember(self, key: str, measurement: Measurement) -> None:
        """Keeps the newest of each window and slots. Writes the file: not for an event loop's thread."""
        same = (measurement.window, measurement.slots)
        with self._lock:
            others = [one for one in self._known.pop(key, ()) if (one.window, one.slots) != same]
            self._known[key] = (*others, measurement)[-MAX_MEASUREMENTS:]
            while len(self._known) > MAX_KEYS:
                del self._known[next(iter(self._known))]
            self._write()

    def _write(self) -> None:
        known = {key: [astuple(one) for one in several] for key, several in self._known.items()}
        try:
            write_durably(self._path, json.dumps({"format": _FORMAT, "measured": known}).encode())
        except OSError as error:
            log.warning("measured memory cannot be remembered: %s", error.strerror)

    def _read(self) -> dict[str, tuple[Measurement, ...]]:
        try:
            return _decoded(read_regular(self._path, _MAX_FILE))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("what was measured of memory is forgotten, as its file is damaged: %s", error)
            return {}


def _decoded(data: bytes) -> dict[str, tuple[Measurement, ...]]:
    """Raises what a damaged file causes."""
    content = json.loads(data)
    if content["format"] != _FORMAT:
        raise ValueError("it has another format")
    known = {key: tuple(map(_measurement, several)) for key, several in content["measured"].items()}
    if len(known) > MAX_KEYS or any(len(several) > MAX_MEASUREMENTS for several in known.values()):
        raise ValueError("it holds too much")
    return known


def _measurement(numbers: list[object]) -> Measurement:
    window, slots, used = map(_number, numbers)
    return Measurement(window, slots, used)


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _MAX_NUMBER:
        raise ValueError("it holds what is no number of tokens or bytes")
    return value
