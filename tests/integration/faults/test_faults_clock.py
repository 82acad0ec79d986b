"""The wall clock is set forth and back by a day. Nothing that lasts is measured with it."""

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from tests.integration.faults.conftest import MakeFaultDaemon
from tests.integration.faults.invariants import SAID, invariants
from tests.integration.faults.rig import FaultDaemon, until

DAY = 24 * 3600
_LIBRARIES = [
    *Path("/usr").glob("lib*/faketime/libfaketime.so.1"),
    *Path("/usr/lib").glob("*/faketime/libfaketime.so.1"),
]
_LIBRARY = next(iter(_LIBRARIES), None)
_PATCH = """
import os, time
_real = time.time
def _set():
    with open(os.environ["CLOCK"]) as file:
        return _real() + float(file.read() or 0)
time.time = _set
"""


def by_library(daemon: FaultDaemon, clock: Path) -> None:
    """Of the C library, so for everything in the process. https://github.com/wolfcw/libfaketime"""
    daemon.extra = {
        "LD_PRELOAD": str(_LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "NO_FAKE_STAT": "1",
        # Its repair of waits for a monotonic clock lets a thread wait for Python's lock for seconds.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # its newer name
    }


def by_python(daemon: FaultDaemon, clock: Path) -> None:
    """`time.time` alone."""
    (daemon.folder / "sitecustomize.py").write_text(_PATCH)
    path = os.pathsep.join([str(daemon.folder), os.environ.get("PYTHONPATH", "")])
    daemon.extra = {"PYTHONPATH": path, "CLOCK": str(clock)}


WITH_LIBRARY = pytest.param(
    by_library, marks=pytest.mark.skipif(_LIBRARY is None, reason="needs libfaketime (Debian: faketime)")
)


@pytest.mark.parametrize("fake", [WITH_LIBRARY, by_python])
async def test_f35_the_clock_is_set(make: MakeFaultDaemon, fake: Callable[[FaultDaemon, Path], None]) -> None:
    """Meanwhile one model answers, one loads, one is idle for an hour, one soon expires."""
    daemon = make(LOAD_TIMEOUT="60s")
    clock = daemon.folder / "clock"
    clock.write_text("+0")
    fake(daemon, clock)
    daemon.model("answers", "loads", "idle", "expires")
    tokens, load = daemon.hold("tokens"), daemon.hold("load")
    daemon.script(answers={"hold_tokens": str(tokens)}, loads={"hold_load": str(load)})
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load("idle")
        asked = [watch.start("answers"), watch.start("loads")]
        await daemon.until("held", "answers")
        await daemon.until("loading", "loads")
        for days in (1, -1):
            await watch.ask("expires", keep_alive="1s")
            clock.write_text(f"{days * DAY:+}")
            if fake is by_library:  # what is for a person follows the clock
                await until(partial(_is_ahead, daemon, days), "the clock is set")
            await watch.bystander_answers()
            await until(lambda: "expires:latest" not in shown(daemon), "its second has passed")
            assert {"idle:latest", "answers:latest", "loads:latest"} <= {*shown(daemon)}
        tokens.release()
        load.release()
        assert [ending.text for ending in await asyncio.gather(*asked)] == [SAID, SAID]
    assert len(daemon.events("start", "idle")) == 1
    assert len(daemon.events("start", "expires")) == 2


def shown(daemon: FaultDaemon) -> dict[str, str]:
    """When each loaded model expires, as it is shown."""
    return {model["name"]: model["expires_at"] for model in daemon.loaded()}


def _is_ahead(daemon: FaultDaemon, days: int) -> bool:
    """Whether the daemon's clock is so many days ahead; the idle model expires within the hour."""
    expires = datetime.fromisoformat(shown(daemon)["idle:latest"])
    return round((expires - datetime.now(UTC)).total_seconds() / DAY) == days
