import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from daemon.engines.build import build
from daemon.engines.recipe import GIB, Machine, Recipe, Wishes, decide
from daemon.engines.source import Source
from daemon.engines.steps import Step
from daemon.engines.toolchain import Toolchain
from daemon.engines.versions import Engines
from daemon.errors import Busy, StorageFailed

ABSENT = Toolchain(Path("/absent/cmake"), "Ninja", Path("/absent/ninja"))
SOURCE = Source(Path("/absent/llama.cpp"), 7, "", frozenset())
MACHINE = Machine(ABSENT, None, (), apple=False, processors=1, memory=GIB)
RECIPE = decide(Wishes(backend="cpu"), SOURCE, MACHINE)


class Silent:
    def begin(self, recipe: Recipe, configure: Sequence[str], log: Path) -> None: ...

    def phase(self, what: str) -> None: ...

    def step(self, step: Step) -> None: ...


def attempt(engines: Path) -> None:
    build(RECIPE, Engines(engines), {}, Silent())


def test_a_disk_that_is_too_small_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(GIB, GIB, GIB // 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(StorageFailed) as error:
        attempt(tmp_path)
    place = tmp_path / "builds" / RECIPE.key
    assert error.value.message == f"building b7-cpu needs about 0.5 GiB in {place}, and 0.1 are free"
    assert not (place / "mgr/build.log").exists()


def test_a_folder_that_another_build_holds(tmp_path: Path) -> None:
    place = tmp_path / "builds" / RECIPE.key / "mgr"
    place.mkdir(parents=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Busy, match="this build is running already; its log is "):
            attempt(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageFailed, match="Permission denied"):
        attempt(tmp_path / "engines")


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "builds").touch()
    with pytest.raises(StorageFailed, match=r"cannot build in .*: (File exists|Not a directory)"):
        attempt(tmp_path)
