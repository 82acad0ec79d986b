from dataclasses import replace
from pathlib import Path

import pytest

from cli.commands.build import described, due, otherwise_numbered, result
from daemon.engines.build import Built
from daemon.engines.cuda import Cuda
from daemon.engines.gpus import Gpu
from daemon.engines.recipe import GIB, Machine, Wishes, decide
from daemon.engines.smoke import Report
from daemon.engines.source import Source
from daemon.engines.steps import Step
from daemon.engines.toolchain import Toolchain
from daemon.engines.versions import Installed, Record

SOURCE = Source(Path("/src"), 11312, "0c1e57098", frozenset({"GGML_CUDA"}))
TOOLS = Toolchain(Path("/t/cmake"), "Ninja", Path("/t/ninja"))
CUDA = Cuda(Path("/c/bin/nvcc"), Path("/c"), (12, 8))
RECORD = Record("b7-cuda", 7, "abc", "cuda", ("90-real",), False, "/src", (), "2026-01-01T00:00:00+00:00")
INSTALLED = Installed(RECORD, Path("/e/b7-cuda"))
H200 = Gpu("NVIDIA H200", "nvidia", "9.0")


def test_what_was_chosen_is_told() -> None:
    machine = Machine(TOOLS, CUDA, (H200,), apple=False, processors=4, memory=64 * GIB)
    rows = dict(described(decide(Wishes(), SOURCE, machine), ("cmake", "-DX=$ORIGIN"), Path("/log")))
    assert rows == {
        "version": "b11312-cuda",
        "source": "/src",
        "backend": "cuda 12.8 (/c/bin/nvcc)",
        "architectures": "90-real",
        "processor": "this one (native)",
        "jobs": "4",
        "cmake": "cmake '-DX=$ORIGIN'",
        "log": "/log",
    }


def test_the_libraries_of_packages_are_told() -> None:
    packaged = replace(CUDA, libraries=(Path("/c/lib/libcublas.so.13"),))
    machine = Machine(TOOLS, packaged, (H200,), apple=False, processors=4, memory=64 * GIB)
    rows = dict(described(decide(Wishes(), SOURCE, machine), (), Path("/log")))
    assert rows["libraries"].startswith("CUDA's own from /c/lib, hard-linked beside the engine")


def test_a_build_for_the_processor_has_no_architectures() -> None:
    machine = Machine(TOOLS, None, (), apple=False, processors=4, memory=64 * GIB)
    rows = dict(described(decide(Wishes(portable=True), SOURCE, machine), (), Path("/log")))
    assert "architectures" not in rows
    assert (rows["backend"], rows["processor"]) == ("cpu", "any, chosen at run time")


@pytest.mark.parametrize(
    ("done", "said", "line"),
    [
        (0, 0, ""),
        (21, 0, ""),
        (22, 0, " 10 %  22/216"),
        (30, 10, ""),
        (44, 10, " 20 %  44/216"),
        (216, 90, "100 %  216/216"),
    ],
)
def test_a_line_now_and_then(done: int, said: int, line: str) -> None:
    assert due(Step(done, 216, ""), said) == line


def test_no_steps_at_all_are_no_line() -> None:
    assert due(Step(0, 0, ""), 0) == ""


@pytest.mark.parametrize(
    ("devices", "shown"),
    [(None, ""), ((), "; devices: the CPU only"), (("CUDA0: H200",), "; devices: CUDA0: H200")],
)
def test_the_result(devices: tuple[str, ...] | None, shown: str) -> None:
    built = Built(INSTALLED, Report("b7 (abc)", devices, 8))
    first = f"Built b7-cuda (b7 (abc){shown})\n/e/b7-cuda\nIts log: /e/b7-cuda/build.log\n"
    assert result(built, used=True) == f"{first}It is in use from the next load on."
    assert result(built, used=False) == f"{first}Use it with: mgr engine use b7-cuda"


@pytest.mark.parametrize(
    ("number", "version", "differs"),
    [(7, "b7 (abc)", False), (7, "b7", False), (None, "b8 (abc)", False), (7, "b70 (abc)", True)],
)
def test_a_build_number_that_the_engine_does_not_tell(
    number: int | None, version: str, differs: bool
) -> None:
    installed = replace(INSTALLED, record=replace(RECORD, number=number))
    note = "note: the engine says that it is b70 (abc); is 7 the build number of this source?"
    assert otherwise_numbered(Built(installed, Report(version, None, 8))) == (note if differs else "")
