import errno
import fcntl
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.engines import build as builder
from daemon.engines.build import BuildFailed, build
from daemon.engines.gpus import Gpu
from daemon.engines.recipe import GIB, Machine, Recipe, Wishes, decide
from daemon.engines.smoke import Report
from daemon.engines.source import Source
from daemon.engines.steps import Step
from daemon.engines.toolchain import Toolchain
from daemon.engines.versions import Engines
from daemon.errors import Busy, Conflict, StorageFailed

ABSENT = Toolchain(Path("/absent/cmake"), "Ninja", Path("/absent/ninja"))
SOURCE = Source(Path("/absent/llama.cpp"), 7, "", frozenset())
MACHINE = Machine(ABSENT, None, (), apple=False, processors=1, memory=GIB)
H200 = Gpu("NVIDIA H200", "nvidia", "9.0")
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


def test_the_version_in_use_is_not_replaced_by_one_that_is_not_to_be_used(tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(RECIPE.name)
    with pytest.raises(Conflict, match="b7-cpu is in use and this build would replace it"):
        build(RECIPE, Engines(tmp_path), {}, Silent(), use=False)
    assert os.listdir(tmp_path) == ["current"]


def compiled(monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...] | None) -> Report:
    """Nothing is compiled or run: the build is there at once, and its test ends with the report returned."""
    report = Report("b7", devices, 8)

    async def passed(program: Path, scratch: Path) -> Report:
        return report

    def made(recipe: Recipe, workspace: builder._Workspace, *_: object) -> tuple[str, ...]:
        program = workspace.staged / "bin/llama-server"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
        workspace.log.write_text("a log")
        return ("cmake",)

    monkeypatch.setattr(builder, "smoke_test", passed)
    monkeypatch.setattr(builder, "_compiled", made)
    return report


@pytest.mark.parametrize(
    ("devices", "gpus"),
    [
        ((), ()),  # built for another machine
        (None, (H200,)),  # it does not tell
        (("CUDA0: H200",), (H200,)),
    ],
)
def test_an_engine_that_passed_is_put_in_use_with_its_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: tuple[str, ...] | None,
    gpus: tuple[Gpu, ...],
) -> None:
    report = compiled(monkeypatch, devices)
    built = build(replace(RECIPE, backend="cuda", gpus=gpus), Engines(tmp_path), {}, Silent())
    assert built.report == report
    assert built.log == tmp_path / "b7-cuda/build.log"
    assert built.log.read_text() == "a log"
    assert Engines(tmp_path).chosen() == "b7-cuda"


def test_an_engine_that_does_not_see_the_gpu_fails_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(monkeypatch, ())
    with pytest.raises(BuildFailed, match=r"b7-cuda was compiled .* does not see the GPU here, NVIDIA H200"):
        build(replace(RECIPE, backend="cuda", gpus=(H200,)), Engines(tmp_path), {}, Silent())
    assert Engines(tmp_path).list() == []


def test_a_version_that_cannot_be_installed_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(monkeypatch, None)
    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(StorageFailed):
        attempt(tmp_path)
    assert (tmp_path / "builds" / RECIPE.key / "mgr/build.log").read_text() == "a log"


def refused(path: Path, target: Path) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageFailed, match="Permission denied"):
        attempt(tmp_path / "engines")


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "builds").touch()
    with pytest.raises(StorageFailed, match=r"cannot build in .*: (File exists|Not a directory)"):
        attempt(tmp_path)
