"""`python -m benchmarks [GROUP ...]`: measures, prints a table, and with --json writes the samples too.

Exits with 1 when a bar was missed or a group could not be measured.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import uvloop
from rich.console import Console

from benchmarks import engine, grants, latency, memory, relay, start, store
from benchmarks.figures import Row
from benchmarks.options import Options
from benchmarks.processes import Unavailable
from benchmarks.report import as_json, table

GROUPS: Mapping[str, Callable[[Options], Awaitable[list[Row]]]] = {
    module.GROUP: module.measure for module in (relay, engine, latency, grants, start, memory, store)
}

_INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m benchmarks", description="What mgr costs, as ratios.")
    top.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all without one")
    top.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    top.add_argument("--runs", type=int, default=0, help="samples of each row")
    top.add_argument("--quick", action="store_true", help="fewer and shorter, to see that all works")
    top.add_argument("--engine", default="auto", help="as MGR_ENGINE, for the rows with the real engine")
    top.add_argument(
        "--model", type=Path, metavar="FILE", help="a GGUF file for them; else a small one is pulled"
    )
    return top


async def measured(groups: list[str], options: Options) -> tuple[list[Row], list[str]]:
    """The rows, and a sentence for each group that could not be measured. SIGTERM ends it like Ctrl-C, so that no
    process is left."""
    if task := asyncio.current_task():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    rows: list[Row] = []
    problems: list[str] = []
    for group in groups:
        options.say(f"measuring {group}")
        try:
            rows += await GROUPS[group](options)
        except Unavailable as error:
            problems.append(f"{group}: {error}")
    return rows, problems


def main() -> int:
    options = parser()
    given = options.parse_args()
    if unknown := [name for name in given.groups if name not in GROUPS]:
        options.error(f"there is no group {unknown[0]!r}; there are {', '.join(GROUPS)}")
    wanted = Options(given.runs, given.quick, given.engine, given.model)
    try:
        rows, problems = uvloop.run(measured(given.groups or list(GROUPS), wanted))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return _INTERRUPTED
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(table(rows))
    for problem in problems:
        console.print(f"not measured: {problem}", style="red", markup=False)
    if given.json:
        given.json.write_text(json.dumps(as_json(rows, problems), indent=2) + "\n")
    return 1 if problems or any(row.holds is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
