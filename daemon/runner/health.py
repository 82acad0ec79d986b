"""When is a starting engine ready, and when has it stalled?

There is no limit on the total time: a large model on a slow disk takes what it takes. A start fails when nothing
moves for the stall limit: no output, no I/O, no growth, no change of its health.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psutil

from daemon.errors import LoadFailed

_SHORTEST_PAUSE_SECONDS = 0.005
_LONGEST_PAUSE_SECONDS = 0.25
_PAUSE_SHARE = 0.03


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything that shows that a start goes on. Bytes, except `health`, the HTTP status of the last probe."""

    output: int
    read: int
    resident: int
    health: int | None


class StallWatch:
    """Adds up for how long samples have been the same.

    The time between two of them counts for half the limit at most: if it is longer, it was us who stood still,
    stopped by a signal or without a processor, and the engine has to be looked at again before it is given up.
    """

    def __init__(self, limit: float, now: float) -> None:
        self._limit = limit
        self._still = 0.0
        self._looked = now
        self._last: Sample | None = None

    def stalled(self, sample: Sample, now: float) -> bool:
        self._still += min(now - self._looked, self._limit / 2)
        self._looked = now
        if sample != self._last:
            self._last, self._still = sample, 0.0
        return self._still >= self._limit


def measure(pid: int, output: int, health: int | None) -> Sample:
    """A sample of the process; what cannot be read (another platform, just exited) counts as 0."""
    read = resident = 0
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            resident = process.memory_info().rss
            counters = process.io_counters() if hasattr(process, "io_counters") else None
            read = counters.read_chars if counters is not None else 0
    except psutil.Error:
        pass
    return Sample(output, read, resident, health)


def pause_after(elapsed: float) -> float:
    """Seconds until the next probe of a start that has taken `elapsed` seconds.

    Being told late should cost a few hundredths of the load, whether that takes a quarter of a second or a minute.
    """
    return min(max(elapsed * _PAUSE_SHARE, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)


async def wait_until_ready(
    probe: Callable[[], Awaitable[int | None]], sample: Callable[[int | None], Sample], stall_limit: float
) -> None:
    """Returns when `probe` answers 200. `probe` gives the status of the health route, None while nothing listens.

    Raises LoadFailed when nothing has moved for `stall_limit` seconds.
    """
    clock = asyncio.get_running_loop().time
    begin = clock()
    watch = StallWatch(stall_limit, begin)
    while True:
        status = await probe()
        if status == 200:
            return
        if watch.stalled(sample(status), clock()):
            raise LoadFailed(f"the engine made no progress for {stall_limit:g} s while it loaded the model")
        await asyncio.sleep(pause_after(clock() - begin))
