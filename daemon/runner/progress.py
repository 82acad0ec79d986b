"""Does an engine that owes answers still work, or does it hang?

Health says nothing: llama-server's HTTP threads answer it, and send comments into open streams, while the loop that
makes tokens stands still (llama.cpp issues 13281 and 27388). Nor is an answer about its slots a sign of life: since
b11311 another thread gives it while the loop computes (`yield_to_queue`; measured with that loop's thread stopped). So
an engine hangs when it has sent nothing to anyone for the limit, its process does nothing meanwhile, and of its slots
it says nothing, or the same again. A long prefill tells its progress, and works; a model that is read from a slow disk
at every token reads. An engine that works and still sends nothing for ten times the limit hangs as well (a GPU is
waited for by spinning), unless it makes vectors: that is one long answer.

Only time that was watched counts. After a suspend of the machine, or of mgr, a look comes late: the engine stood still
as we did, so such a look tells nothing, and what decides is always two looks on end that were on time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import psutil

HANG_SECONDS = 120.0
# How long an engine may take to say how its slots are.
ANSWER_SECONDS = 3.0

_LOOK_SECONDS = 5.0
_LATE_SECONDS = ANSWER_SECONDS + 5.0
_LONG_SILENCE = 10
# Of one processor. Threads that only wait wake up now and then.
_IDLE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Work:
    """What a process has done in its life: seconds of processors, and bytes read from disks, mapped ones included."""

    cpu: float
    read: int


class HangWatch:
    """What is known of one engine. Asked at each look, in this order: `silent`, then `idle`, then `hangs`.

    `limit` is in seconds. `streams`: the engine tells its progress while it works.
    """

    def __init__(self, limit: float, *, streams: bool) -> None:
        self.pause = min(_LOOK_SECONDS, limit / 4)  # seconds between two looks
        self._limit = limit
        self._streams = streams
        self._silence = 0.0  # seconds, watched
        self._last_byte: float | None = None
        self._seen: float | None = None
        # From the look before, if that was in the same silence, and on time.
        self._worked: tuple[float, Work] | None = None
        self._said: bytes | None = None  # at the look before; None: it was not asked

    def silent(self, now: float, last_byte: float) -> bool:
        """Whether nothing has come for longer than the limit. `last_byte` is when something came last."""
        elapsed = self.pause if self._seen is None else now - self._seen
        late = elapsed > self.pause + _LATE_SECONDS
        moved, self._seen, self._last_byte = last_byte != self._last_byte, now, last_byte
        self._silence = 0.0 if moved else self._silence + (self.pause if late else elapsed)
        if moved or late:
            self._worked, self._said = None, None
        return self._silence > self._limit

    def idle(self, now: float, work: Work) -> bool | None:
        """Whether it has done nothing since the look before; None when there is nothing to compare with."""
        before, self._worked = self._worked, (now, work)
        if before is None:
            return None
        since, worked = before
        return work.read == worked.read and work.cpu - worked.cpu < _IDLE_SHARE * (now - since)

    def hangs(self, idle: bool | None, said: bytes | None) -> bool:
        """The verdict. `said`: of its slots; None where it was not asked."""
        before, self._said = self._said, said
        if idle:
            return said == before
        return idle is False and self._streams and self._silence > self._limit * _LONG_SILENCE


class Watched(Protocol):
    """The engine's side that is looked at."""

    @property
    def busy(self) -> bool:
        """Whether it owes an answer."""

    @property
    def last_byte(self) -> float:
        """When it sent something last, by a clock that only goes forward."""

    async def slots(self) -> bytes:
        """What it says of its slots within ANSWER_SECONDS, possibly nothing. It is the same while nothing moves."""


async def hangs_while_busy(
    engine: Watched,
    work: Callable[[], Work],
    watch: HangWatch,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bool:
    """Watches for as long as the engine is busy. True: it hangs."""
    while True:
        await sleep(watch.pause)
        if not engine.busy:
            return False
        last_byte = engine.last_byte
        if not watch.silent(clock(), last_byte):
            continue
        idle = watch.idle(clock(), work())
        # It is asked only if it seems to do nothing: an engine that is asked often sees late that a client has left.
        said = None if idle is False else await engine.slots()
        if watch.hangs(idle, said) and engine.last_byte == last_byte:
            return True


def measure(pid: int) -> Work:
    """The work of the process and those below it; what cannot be read (another platform, just exited) counts as 0."""
    cpu, read = 0.0, 0
    try:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            cpu += times.user + times.system
            read += each.io_counters().read_bytes if hasattr(each, "io_counters") else 0
    except psutil.Error:
        pass
    return Work(cpu, read)
