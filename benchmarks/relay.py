"""What one streamed chunk costs in the daemon's process, against nginx."""

import asyncio
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.daemons import Daemon, PacedEngine, paced_daemon
from benchmarks.figures import Bar, Row, difference_row, ratio_row
from benchmarks.load import Ask, Streams, ask
from benchmarks.nginx import Nginx
from benchmarks.options import Options
from benchmarks.pairs import pairs
from benchmarks.processes import cpu_ns

GROUP = "relay"

_BARS: Mapping[str, float] = {
    "openai": 2.0,
    "ollama-chat": 2.6,
    "ollama-generate": 2.6,
    "anthropic": 2.6,
    "responses": 2.6,
}
# What each of these may cost for a chunk beyond a plain answer in OpenAI's format, in microseconds.
_CONVERSION = 20.0
_CONVERTED = ("ollama-chat", "anthropic", "responses", "openai-schema")
_SETTLE_SECONDS = 0.5
_WINDOW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Load:
    """So many streams at once, each with `pace` chunks a second, one by one: each at a phase of its own."""

    streams: int
    pace: int

    def __str__(self) -> str:
        return f"{self.streams} x {self.pace}/s"


_LOADS = (Load(16, 100), Load(64, 20))


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where it listens, the process whose CPU time is its cost, and what it is asked."""

    port: int
    pid: int
    ask: Ask


async def measure(options: Options) -> list[Row]:
    """CPU time of the proxy's process, divided by the chunks that the clients received while all streams ran.

    The same load goes through mgr and through nginx (buffering off, one worker, HTTP/1.1 over a Unix socket to the
    same engine program) in turn, two seconds each; a sample is mgr's cost over nginx's next to it. Nothing is
    subtracted.
    """
    with tempfile.TemporaryDirectory(prefix="mgr-b-") as name:
        folder = Path(name)
        with (
            PacedEngine(folder) as engine,
            Nginx(folder, engine.socket) as nginx,
            paced_daemon(folder / "mgr", num_parallel=max(load.streams for load in _LOADS)) as daemon,
        ):
            rows = []
            for load in _LOADS:
                text = f"pace={load.pace}"
                reference = Proxy(nginx.port, nginx.pid, ask("openai", text))
                for dialect in _BARS:
                    mgr = Proxy(daemon.port, daemon.pid, ask(dialect, text))
                    rows.append(await _row(dialect, mgr, reference, load, options))
            return [*rows, *[await _conversion(kind, daemon, options) for kind in _CONVERTED]]


async def _row(dialect: str, mgr: Proxy, reference: Proxy, load: Load, options: Options) -> Row:
    paces: list[float] = []
    name = f"{dialect}, {load}"
    costs, references = await pairs(
        partial(_cost, mgr, load, paces, options),
        partial(_cost, reference, load, paces, options),
        options.count(5),
        options,
        name,
    )
    row = ratio_row(GROUP, name, costs, references, "us a chunk", Bar(_BARS[dialect]))
    return row.with_detail(f"at least {min(paces):.0%} of the pace")


async def _conversion(kind: str, daemon: Daemon, options: Options) -> Row:
    load, paces = _LOADS[0], list[float]()
    text = f"pace={load.pace}"
    plain, converted = (Proxy(daemon.port, daemon.pid, ask(each, text)) for each in ("openai", kind))
    name = f"conversion for {kind} beyond plain, {load}"
    costs, references = await pairs(
        partial(_cost, converted, load, paces, options),
        partial(_cost, plain, load, paces, options),
        options.count(5),
        options,
        name,
    )
    return difference_row(GROUP, name, costs, references, "us", Bar(_CONVERSION))


async def _cost(proxy: Proxy, load: Load, paces: list[float], options: Options) -> float:
    """Microseconds of CPU for a chunk. The share of the chunks due that came is added to `paces`."""
    async with Streams(proxy.port, [proxy.ask] * load.streams) as streams:
        await asyncio.sleep(_SETTLE_SECONDS)
        cpu, chunks, start = cpu_ns(proxy.pid), streams.chunks, time.monotonic()
        await asyncio.sleep(_WINDOW_SECONDS / 2 if options.quick else _WINDOW_SECONDS)
        cpu, chunks, seconds = cpu_ns(proxy.pid) - cpu, streams.chunks - chunks, time.monotonic() - start
    paces.append(chunks / (load.streams * load.pace * seconds))
    return cpu / 1000 / chunks
