"""The daemon of a fault test, and what must be true once it has ended."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.faults.rig import FaultDaemon, ended

MakeFaultDaemon = Callable[..., FaultDaemon]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeFaultDaemon]:
    """Makes daemons that are not started yet, with these settings; afterwards ends them and looks for leftovers."""
    made: list[FaultDaemon] = []

    def new(**settings: object) -> FaultDaemon:
        folder = tmp_path / f"daemon-{len(made)}"
        folder.mkdir()
        made.append(FaultDaemon(folder, settings))
        return made[-1]

    with ended(made):
        yield new
