"""Engines that hang are found, ended and replaced; those that only take long are left alone. On both event loops."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon.chat import ChatRequest, Done, Message, Piece, Text
from daemon.errors import EngineFailed, EngineGone, EngineHung, EngineSilent, MgrError
from daemon.runner import process
from daemon.runner.endpoint import RunDirectory
from daemon.runner.engine import EngineFinder
from daemon.runner.launch import Launch
from daemon.runner.runner import Runner
from daemon.runner.state import Stage
from tests.fakes.daemon import GUARD_SECONDS, ScriptedDaemon, eventually

REQUEST = ChatRequest(model="a", messages=(Message("user", (Text("hi"),)),))
LIMIT = 0.4
NEVER = 3600.0


class Rig:
    """Runners of the scripted engine, what they told, and files that the engine waits for."""

    def __init__(self, folder: Path, directory: RunDirectory) -> None:
        self._daemon = ScriptedDaemon(folder)  # not started: its engine and its script are what is needed
        self._directory = directory
        self.exits: list[MgrError] = []
        self.script, self.hold, self.until = self._daemon.script, self._daemon.hold, self._daemon.until

    async def ready(self, hang_limit: float = LIMIT) -> Runner:
        engine = EngineFinder(str(self._daemon.settings["ENGINE"]), [], os.defpath, self._directory.path)
        launch = Launch(model=self._daemon.folder / "m.gguf", alias="a:latest", window=1024, slots=2)
        runner = Runner(launch, engine, self._directory, 60, self.exits.append, hang_limit)
        await runner.ensure_ready()
        return runner


class Asked:
    """One request, and what came of it."""

    def __init__(self, runner: Runner) -> None:
        self.pieces: list[Piece] = []
        self.task = asyncio.create_task(runner.answer(REQUEST, self.pieces.extend))

    async def ends(self) -> Done | Exception:
        async with asyncio.timeout(GUARD_SECONDS):
            with contextlib.suppress(EngineFailed):
                return await self.task
        error = self.task.exception()
        assert isinstance(error, EngineFailed)
        return error


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    others = psutil.Process().children()  # of other tests
    directory = RunDirectory.open(None)
    yield Rig(tmp_path, directory)
    directory.close()
    left = [child for child in psutil.Process().children() if child not in others]
    assert [child for child in left if child.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("how", ["stopped", "stuck"])
async def test_a_hung_engine_is_ended_and_those_who_wait_are_told(rig: Rig, how: str) -> None:
    """All of it is stopped; or health is green, and neither tokens nor slots come. One had an answer, one had none."""
    tokens, slots = rig.hold("tokens"), rig.hold("slots")
    rig.script({"hold_tokens": str(tokens), "hang_slots": str(slots)})
    runner = await rig.ready()
    first = Asked(runner)
    await rig.until("held")
    pid = runner.pid
    assert pid is not None
    if how == "stopped":
        os.kill(pid, signal.SIGSTOP)
        second = Asked(runner)
        gone = await second.ends()
        assert isinstance(gone, EngineSilent)
        assert isinstance(gone, EngineGone)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    error = await first.ends()
    assert isinstance(error, EngineHung)
    assert not isinstance(error, EngineGone)
    assert error.message == "the engine sent nothing for 0.4 s and was ended; ask again"
    assert first.pieces != []
    assert [type(exit_) for exit_ in rig.exits] == [EngineHung]
    await eventually(lambda: runner.pid is None, "all of it has been released")
    assert not psutil.pid_exists(pid)
    assert (runner.stage, runner.last_progress) == (None, None)


async def test_progress_is_told_while_an_engine_is_busy(rig: Rig) -> None:
    tokens = rig.hold("tokens")
    rig.script({"hold_tokens": str(tokens)})
    runner = await rig.ready(NEVER)
    begun = time.monotonic()
    asked = Asked(runner)
    await rig.until("held")
    await eventually(lambda: asked.pieces != [], "it has come so far")
    first, second = runner.last_progress, runner.last_progress
    assert first is not None
    assert begun < first < time.monotonic()
    assert second == first
    tokens.release()
    assert isinstance(await asked.ends(), Done)
    assert runner.last_progress is None
    await runner.stop("test")


async def test_nothing_ticks_while_an_engine_is_idle(rig: Rig) -> None:
    runner = await rig.ready()
    before = asyncio.all_tasks()
    assert isinstance(await Asked(runner).ends(), Done)
    await eventually(lambda: asyncio.all_tasks() == before, "its watch has ended")
    await runner.stop("test")


async def test_a_stop_leaves_no_watch(rig: Rig) -> None:
    tokens = rig.hold("tokens")
    rig.script({"hold_tokens": str(tokens)})
    runner = await rig.ready(NEVER)
    before = asyncio.all_tasks()
    asked = Asked(runner)
    await rig.until("held")
    await runner.stop("test")
    assert isinstance(await asked.ends(), EngineFailed)
    await eventually(
        lambda: asyncio.all_tasks() < before, "nothing is left, not even what waits for its exit"
    )


async def test_a_hung_engine_that_no_signal_ends_takes_no_more_requests(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, slots = rig.hold("tokens"), rig.hold("slots")
    rig.script({"hold_tokens": str(tokens), "hang_slots": str(slots)})
    runner = await rig.ready()
    pid = runner.pid
    assert pid is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda pid, number: None)
        patch.setattr("daemon.runner.runner._REAP_SECONDS", 0.05)
        assert isinstance(await Asked(runner).ends(), EngineHung)
        assert isinstance(await Asked(runner).ends(), EngineSilent)
        assert rig.exits == []  # its memory is taken: nothing may be started in its place
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: len(rig.exits) == 1, "its end, when it comes, is told")


async def test_the_stages_of_a_stop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.script({"ignore_term": True})
    runner = await rig.ready()
    monkeypatch.setattr(process, "LADDER", tuple((*step[:2], step[2] / 5) for step in process.LADDER))
    assert runner.stage is None
    stopping = asyncio.create_task(runner.stop("test"))
    seen: list[Stage | None] = []
    while not stopping.done():
        if runner.stage not in seen[-1:]:
            seen.append(runner.stage)
        await asyncio.sleep(0)
    await stopping
    assert [stage for stage in seen if stage not in (None, Stage.DRAINING)] == [
        Stage.ASKED,
        Stage.ASKED_AGAIN,
        Stage.KILLED,
    ]
    assert runner.stage is None


def test_the_run_directory_of_a_daemon_that_was_killed_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import pathlib, time\n"
        "from daemon.runner.endpoint import RunDirectory\n"
        "directory = RunDirectory.open(None)\n"
        "directory.endpoint().socket.touch()\n"
        "print(directory.path, flush=True)\n"
        "time.sleep(600)\n"
    )
    with tempfile.TemporaryDirectory(prefix="r-") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        environment: dict[str, Any] = {**os.environ, "TMPDIR": place}
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment
        ) as daemon:
            assert daemon.stdout is not None
            left = Path(daemon.stdout.readline().decode().strip())
            try:
                RunDirectory.open(None).close()
                assert [path.suffix for path in left.iterdir()] == [".sock"]
            finally:
                daemon.kill()
        next_one = RunDirectory.open(None)
        assert [*Path(place).iterdir()] == [next_one.path]
        next_one.close()
