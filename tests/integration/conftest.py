"""Fixtures of the tests that drive a daemon with the scripted engine."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.fakes.daemon import ScriptedDaemon

MakeDaemon = Callable[..., ScriptedDaemon]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """What deals with processes itself is tested on both loops that the daemon may run on."""
    if item.path.name == "test_runner.py":
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[MakeDaemon]:
    """Makes daemons that are not started yet, with these settings; ends them after the test."""
    made: list[ScriptedDaemon] = []

    def make(**settings: object) -> ScriptedDaemon:
        folder = tmp_path / f"daemon-{len(made)}"
        folder.mkdir()
        made.append(ScriptedDaemon(folder, settings))
        return made[-1]

    yield make
    for daemon in made:
        daemon.stop()


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> ScriptedDaemon:
    """A running daemon with the models a, b and c."""
    daemon = make_daemon()
    daemon.model("a", "b", "c")
    return daemon.start()
