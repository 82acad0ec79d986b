"""Times that a client feels: the first token of a warm model, and a refusal while the relay is busy."""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.daemons import Daemon, paced_daemon, socket_of
from benchmarks.figures import Bar, Row, difference_row
from benchmarks.load import Streams, ask, first_text_ms, whole
from benchmarks.options import Options
from benchmarks.pairs import pairs

GROUP = "latency"

_STREAMS = 64
_PACE = 20


async def measure(options: Options) -> list[Row]:
    """See each row; the engine is the paced one."""
    with tempfile.TemporaryDirectory(prefix="mgr-b-") as name:
        folder = Path(name) / "mgr"
        with paced_daemon(folder, num_parallel=_STREAMS) as daemon:
            rows = [await _first_token(daemon, options)]
        with paced_daemon(folder, num_parallel=_STREAMS, max_waiting=0) as daemon:
            return [*rows, *await _refusals(daemon, options)]


async def _first_token(daemon: Daemon, options: Options) -> Row:
    """Time to the first token of a loaded model through mgr, less that of the same engine process when it is asked
    over its own socket; each time from before the connection."""
    request = ask("openai", "pace=0 tokens=2")
    await first_text_ms(daemon.port, request)
    (engine,) = daemon.engines()
    through, alone = await pairs(
        partial(first_text_ms, daemon.port, request),
        partial(first_text_ms, socket_of(engine.cmdline()), request),
        options.count(50),
        options,
        "ms to a first token",
    )
    return difference_row(GROUP, "warm first token, less direct", through, alone, "ms", Bar(3.0))


async def _refusals(daemon: Daemon, options: Options) -> list[Row]:
    """Time to a 503 while every slot streams and nobody may wait."""
    busy = ask("openai", f"pace={_PACE}")
    refused = replace(ask("openai", "pace=0 tokens=2"), headers={"Connection": "close"})
    async with Streams(daemon.port, [busy] * _STREAMS):
        took = []
        for _ in range(options.count(200)):
            status, milliseconds = await whole(daemon.port, refused)
            if status != 503:
                raise RuntimeError(f"a request beyond the queue was answered with {status}")
            took.append(milliseconds)
    last = sorted(took)[-max(1, len(took) // 100)]
    detail = f"{_STREAMS} streams x {_PACE}/s meanwhile; 99 of 100 within {last:.1f} ms"
    return [Row(GROUP, "503 under load", "ms", tuple(took), Bar(5.0), detail)]
