"""Resident memory of the daemon's process: idle, and for each open stream."""

import asyncio
import tempfile
from pathlib import Path

from benchmarks.daemons import paced_daemon
from benchmarks.figures import Bar, Row
from benchmarks.load import Streams, ask, first_text_ms
from benchmarks.options import Options
from benchmarks.processes import resident_bytes

GROUP = "memory"

_STREAMS = 256
_SETTLE_SECONDS = 1.0
_MB = 1_000_000


async def measure(options: Options) -> list[Row]:
    """Resident memory (RSS) of fresh daemons: just started; after an answer, with the model loaded; and with 256
    open streams that have sent one token and are silent, less that before them. Engines are not counted."""
    fresh, served, added = [], [], []
    for turn in range(options.count(3)):
        with (
            tempfile.TemporaryDirectory(prefix="mgr-b-") as name,
            paced_daemon(Path(name) / "mgr", num_parallel=_STREAMS) as daemon,
        ):
            fresh.append(await _resident(daemon.pid))
            await first_text_ms(daemon.port, ask("openai", "pace=0 tokens=2"))
            served.append(await _resident(daemon.pid))
            async with Streams(daemon.port, [ask("openai", "pace=0")] * _STREAMS):
                added.append(await _resident(daemon.pid) - served[-1])
        options.say(f"MB, {turn + 1}: {fresh[-1]:.1f}, {served[-1]:.1f}, added {added[-1]:.1f}")
    each = f"{sorted(added)[len(added) // 2] * 1000 / _STREAMS:.0f} kB a stream"
    return [
        Row(GROUP, "idle daemon, just started", "MB", tuple(fresh), Bar(90)),
        Row(GROUP, "idle daemon, after an answer", "MB", tuple(served), Bar(90)),
        Row(GROUP, f"added by {_STREAMS} silent streams", "MB", tuple(added), Bar(40), each),
    ]


async def _resident(pid: int) -> float:
    await asyncio.sleep(_SETTLE_SECONDS)
    return resident_bytes(pid) / _MB
