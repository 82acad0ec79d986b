"""A runner and its engine, driven from the test's own event loop, which is both the standard one and uvloop's."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon.chat import ChatRequest, Event, Message, Text
from daemon.errors import EngineFailed, LoadFailed, MgrError
from daemon.runner import process
from daemon.runner.endpoint import RunDirectory
from daemon.runner.engine import EngineFinder
from daemon.runner.launch import Launch
from daemon.runner.process import Child, uninterrupted
from daemon.runner.runner import Runner
from daemon.runner.state import Stage
from tests.fakes.daemon import ENGINE, eventually

REQUEST = ChatRequest(model="a", messages=(Message("user", (Text("hi"),)),))


@dataclass
class Rig:
    """A runner for a scripted engine, and what it told."""

    folder: Path
    directory: RunDirectory
    others: list[psutil.Process]  # of other tests, from before
    exits: list[MgrError] = field(default_factory=list)

    def script(self, **behaviour: Any) -> None:
        script = {"log": str(self.folder / "events"), "default": behaviour}
        (self.folder / "script.json").write_text(json.dumps(script))

    def runner(self, stall_limit: float = 60) -> Runner:
        engine = self.folder / "engine.sh"
        if not engine.exists():
            engine.write_text(
                f'#!/bin/sh\nexec "{sys.executable}" "{ENGINE}" --script "{self.folder}/script.json" "$@"\n'
            )
            engine.chmod(0o755)
        finder = EngineFinder(str(engine), [], os.defpath, self.directory.path)
        launch = Launch(model=self.folder / "m.gguf", alias="a", window=1024, slots=2)
        return Runner(launch, finder, self.directory, stall_limit, self.exits.append)

    def children(self) -> list[psutil.Process]:
        return [child for child in below_us() if child not in self.others]


async def events_of(runner: Runner) -> list[Event]:
    events: list[Event] = []
    events.append(await runner.answer(REQUEST, events.extend))
    return events


def below_us() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    directory = RunDirectory.open(None)
    rig = Rig(tmp_path, directory, below_us())
    rig.script()
    yield rig
    directory.close()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Neither a process nor a descriptor, but for the few that uvloop opens once and for all."""
    others, before = below_us(), psutil.Process().num_fds()
    yield
    assert [child for child in below_us() if child not in others] == []
    assert psutil.Process().num_fds() <= before + 4


async def test_from_start_to_stop(rig: Rig) -> None:
    runner = rig.runner()
    await runner.ensure_ready()
    assert len(await events_of(runner)) == 6  # progress, four tokens, done
    await runner.stop("test")
    await runner.stop("again")
    assert runner.pid is None
    assert rig.exits == []
    with pytest.raises(EngineFailed, match="just been unloaded"):
        await events_of(runner)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 40])
async def test_a_start_cancelled_at_any_moment_leaves_nothing(rig: Rig, turns: int) -> None:
    rig.script(hold_load=str(rig.folder))
    for _ in range(6):
        starting = asyncio.create_task(rig.runner().ensure_ready())
        for _ in range(turns):
            await asyncio.sleep(0.01 if turns > 10 else 0)
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled()
    await eventually(lambda: rig.children() == [], "all are reaped")


async def test_a_cancel_while_a_failed_start_is_cleaned_up_leaves_nothing(rig: Rig) -> None:
    """The load stalls, the engine ignores TERM, and the client leaves during the stop ladder."""
    rig.script(hold_load=str(rig.folder), ignore_term=True)
    runner = rig.runner(stall_limit=0.2)
    starting = asyncio.create_task(runner.ensure_ready())
    await eventually(lambda: "stopping" in repr(runner), "the ladder has begun")
    for _ in range(3):
        starting.cancel()
        await asyncio.sleep(0.01)
    await asyncio.wait({starting})
    assert starting.cancelled()
    await eventually(lambda: rig.children() == [], "it is ended and reaped")


async def test_a_health_route_that_talks_nonsense_is_a_stall_and_not_the_end(rig: Rig) -> None:
    rig.script(nonsense_health=True)
    with pytest.raises(LoadFailed, match="no progress"):
        await rig.runner(stall_limit=0.5).ensure_ready()


async def test_an_engine_whose_socket_is_gone_is_ended(rig: Rig) -> None:
    runner = rig.runner()
    await runner.ensure_ready()
    for socket in rig.directory.path.glob("*.sock"):
        socket.unlink()
    with pytest.raises(EngineFailed, match="stopped before it answered"):
        await events_of(runner)
    await eventually(lambda: rig.exits != [], "its exit is told")
    assert "signal 9" in str(rig.exits[0])


async def test_a_run_directory_that_was_cleaned_away_is_made_again(rig: Rig) -> None:
    rig.directory.close()
    runner = rig.runner()
    await runner.ensure_ready()
    await runner.stop("test")


async def test_a_process_that_no_signal_ends_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = rig.runner()
    await runner.ensure_ready()
    pid = runner.pid
    assert pid is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda pid, number: None)
        patch.setattr(process, "LADDER", ((Stage.ASKED, 15, 0.05), (Stage.KILLED, 9, 0.05)))
        patch.setattr("daemon.runner.runner._REAP_SECONDS", 0.05)
        with pytest.raises(EngineFailed, match="does not end"):
            await runner.stop("test")
    os.kill(pid, 9)
    await runner.stop("again")


async def test_an_engine_whose_help_hangs_holds_nobody_up(rig: Rig) -> None:
    engine = rig.folder / "hangs.sh"
    engine.write_text("#!/bin/sh\nsleep 600\n")
    engine.chmod(0o755)
    finder = EngineFinder(str(engine), [], os.defpath, rig.directory.path)
    asking = [asyncio.create_task(finder.find()) for _ in range(8)]
    await eventually(lambda: len(rig.children()) > 0, "it is asked")
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    await eventually(lambda: rig.children() == [], "it is ended and reaped")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/bin/sh\necho nothing\n", "its help does not look like llama-server's"),
        ("#!/bin/sh\nexit 3\n", "its --help ended with status 3"),
        ("#!/no/such/interpreter\n", "its --help ended with status 1"),
        (None, "not there"),
    ],
)
async def test_why_an_engine_cannot_be_used_is_told_without_its_path(
    rig: Rig, text: str | None, reason: str
) -> None:
    engine = rig.folder / "bad.sh"
    if text is not None:
        engine.write_text(text)
        engine.chmod(0o755)
    finder = EngineFinder(str(engine), [], os.defpath, rig.directory.path)
    with pytest.raises(LoadFailed) as caught:
        await finder.find()
    assert f"the configured path: {reason}" in caught.value.message
    assert str(rig.folder) not in caught.value.message
    assert caught.value.permanent


async def test_every_place_that_was_tried_is_reported(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    built = [("the build", rig.folder / "llama-server")]
    finder = EngineFinder("auto", built, str(rig.folder), rig.directory.path)
    with pytest.raises(
        LoadFailed, match=r"tried the build: not there; .*PATH: not there; .*wheel: not there"
    ):
        await finder.find()


async def test_the_order_of_engines_and_that_each_is_asked_once(rig: Rig) -> None:
    built, on_path = rig.folder / "built", rig.folder / "llama-server"
    for path in (built, on_path):
        path.write_text(f'#!/bin/sh\necho "$@" >> "{path}.asked"\necho "--model version: 5 (abc)"\n')
        path.chmod(0o755)
    finder = EngineFinder("auto", [("the build", built)], str(rig.folder), rig.directory.path)
    first = await finder.find()
    assert (first.kind, first.version) == ("built", "b5 (abc)")
    assert await finder.find() is first
    assert Path(f"{built}.asked").read_text().split() == ["--help", "--version"]
    built.unlink()
    assert (await finder.find()).kind == "path"


async def test_a_closed_output_is_not_read_from_another_file(rig: Rig) -> None:
    """A descriptor that was given back is another's."""
    folder = rig.directory.path
    for _ in range(20):
        spawning = asyncio.create_task(
            Child.spawn([sys.executable, "-c", "print('x' * 100)"], {}, folder, "x")
        )
        await asyncio.sleep(0)
        spawning.cancel()
        await asyncio.wait({spawning})
        if not spawning.cancelled():
            await spawning.result().wait()
    child = await Child.spawn([sys.executable, "-c", "print('hello')"], {}, folder, "x")
    assert await child.wait() == 0
    assert child.tail.lines() == ["hello"]


async def test_work_that_must_not_be_interrupted_is_not() -> None:
    done = []

    async def work() -> None:
        for step in range(3):
            await asyncio.sleep(0.01)
            done.append(step)

    task = asyncio.create_task(uninterrupted(work()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert done == [0, 1, 2]
