"""Fixtures of the tests that drive a daemon with the scripted engine."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.daemon import ScriptedDaemon

MakeDaemon = Callable[..., ScriptedDaemon]


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
