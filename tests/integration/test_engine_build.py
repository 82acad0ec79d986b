"""`mgr engine build` from its command line to the engine in use, on a tiny CMake project."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.engines import source as sources
from daemon.engines import toolchain
from daemon.engines.build import build
from daemon.engines.recipe import GIB, Machine, Recipe, Wishes, decide
from daemon.engines.steps import Step
from tests.fakes.engine_source import CMAKE, GUARD, EngineSource

SCRIPTS = Path(sys.executable).parent

OLD = 1577836800  # seconds since the epoch, 2020: what an archive holds

pytestmark = pytest.mark.skipif(
    not (shutil.which("c++") and shutil.which("cmake", path=f"{SCRIPTS}:{os.environ.get('PATH', '')}")),
    reason="needs a C++ compiler, and cmake (the extra `build`)",
)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[EngineSource]:
    made = EngineSource(tmp_path)
    yield made
    made.hold.unlink(missing_ok=True)


def test_a_source_becomes_the_engine_in_use(project: EngineSource) -> None:
    done = project.build("--build-commit", "abc1234")
    folder = project.engines.folder / "b7-cpu"
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Built b7-cpu (b1 (scripted))",
        str(folder),
        f"Its log: {folder}/build.log",
        "It is in use from the next load on.",
    ]
    assert "100 %" in done.stderr
    assert "note: the engine says that it is b1 (scripted); is 7 the build number" in done.stderr
    current = project.engines.current()
    assert current is not None
    record = current.record
    assert (record.number, record.commit, record.backend, record.source) == (
        *(7, "abc1234", "cpu"),
        str(project.folder),
    )
    log = (folder / "build.log").read_text()
    line = f"$ {' '.join(record.configure)}".replace(
        "-DCMAKE_INSTALL_RPATH=$ORIGIN", "'-DCMAKE_INSTALL_RPATH=$ORIGIN'"
    )
    assert line in log.splitlines()
    assert "number 7, tests OFF" in log


def test_an_engine_finds_its_libraries_wherever_it_is_moved(project: EngineSource, tmp_path: Path) -> None:
    assert project.build("--no-use").returncode == 0
    shutil.rmtree(project.engines.folder / "builds")
    moved = (project.engines.folder / "b7-cpu").rename(tmp_path / "moved")
    assert subprocess.check_output([moved / "bin/llama-quantize"], text=True) == "tiny\n"


def test_secrets_and_settings_do_not_reach_the_compiler(project: EngineSource) -> None:
    assert project.build().returncode == 0
    seen = project.read("environment").splitlines()
    assert not [line for line in seen if line.startswith("MGR_")]
    assert "NINJA_STATUS=[%f/%t] " in seen


def test_a_version_that_is_not_to_be_used(project: EngineSource) -> None:
    done = project.build("--no-use")
    assert done.stdout.splitlines()[-1] == "Use it with: mgr engine use b7-cpu"
    assert project.engines.chosen() == ""
    assert [engine.name for engine in project.engines.list()] == ["b7-cpu"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_build_leaves_nothing_running_and_goes_on(
    project: EngineSource, number: signal.Signals
) -> None:
    project.hold.touch()
    process = project.start()
    waiting = project.until_held()
    process.send_signal(number)
    assert process.wait(GUARD) == 130
    waiting.wait(GUARD)
    assert process.communicate()[0] == ""
    assert project.engines.list() == []

    project.hold.unlink()
    done = project.build()
    assert done.returncode == 0, done.stderr
    assert project.read("first-runs") == "run\n"  # the step that was done is not done again


def test_a_broken_source_leaves_the_old_engine_in_use(project: EngineSource) -> None:
    assert project.build().returncode == 0
    project.write("quantize.cpp", "int main() { return unknown_name; }\n")
    done = project.build("--build-number", "8")
    assert done.returncode == 1
    assert done.stdout == ""
    said = done.stderr[done.stderr.index("Error: ") :].splitlines()
    assert said[0] == "Error: compiling the engine failed (status 1):"
    assert "error: " in said[1]
    assert "unknown_name" in said[1]
    assert said[-1].startswith("The engine in use stays in use. The whole log: ")
    log = Path(said[-1].partition("The whole log: ")[2])
    assert "unknown_name" in log.read_text()
    assert project.engines.chosen() == "b7-cpu"
    assert [engine.name for engine in project.engines.list()] == ["b7-cpu"]


def test_a_source_that_cannot_be_configured(project: EngineSource) -> None:
    project.write("CMakeLists.txt", f'{CMAKE}message(FATAL_ERROR "no such thing here")\n')
    done = project.build()
    assert done.returncode == 1
    assert "Error: configuring the engine failed (status 1):\nCMake Error at CMakeLists.txt:" in done.stderr
    assert "no such thing here" in done.stderr


def test_a_newer_source_with_old_times_is_compiled(project: EngineSource) -> None:
    assert project.build().returncode == 0
    project.write("llama.cpp", 'const char *said() { return "newer"; }\n')
    os.utime(project.folder / "llama.cpp", (OLD, OLD))
    assert project.build("--build-number", "8").returncode == 0
    quantize = project.engines.folder / "b8-cpu/bin/llama-quantize"
    assert subprocess.check_output([quantize], text=True) == "newer\n"


def test_a_program_that_is_no_engine_is_told_once(project: EngineSource) -> None:
    project.write("server.sh", "#!/bin/sh\nexit 3\n")
    done = project.build()
    assert done.returncode == 1
    assert "ended with status 3" in done.stderr
    assert done.stderr.count("ended with status 3") == 1


def test_an_engine_that_does_not_answer_never_replaces_the_old_one(project: EngineSource) -> None:
    assert project.build().returncode == 0
    project.script(say=["out of luck"], exit_code=3)
    done = project.build("--build-number", "8")
    assert done.returncode == 1
    assert "Error: b8-cpu was compiled and does not work: " in done.stderr
    assert "bin/llama-server" not in done.stderr
    assert "out of luck" in done.stderr
    assert project.engines.chosen() == "b7-cpu"
    assert [engine.name for engine in project.engines.list()] == ["b7-cpu"]


def test_the_same_build_runs_once_at_a_time(project: EngineSource) -> None:
    project.hold.touch()
    first = project.start()
    project.until_held()
    second = project.build()
    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].startswith("Error: this build is running already; its log is ")
    project.hold.unlink()
    assert first.communicate(timeout=GUARD)[0].startswith("Built b7-cpu ")
    assert first.returncode == 0


def test_progress_is_drawn_on_a_terminal_and_the_result_is_not(project: EngineSource) -> None:
    ours, theirs = pty.openpty()
    process = project.start(stderr=theirs)
    os.close(theirs)
    drawn = b""
    try:
        while chunk := os.read(ours, 65536):
            drawn += chunk
    except OSError:  # its other end is closed
        pass
    os.close(ours)
    out, _ = process.communicate(timeout=GUARD)
    assert process.returncode == 0
    assert out.startswith("Built b7-cpu ")
    assert "\x1b" not in out
    assert b"compiling the engine" in drawn
    assert b"jobs" in drawn


class Steps:
    """What a watcher is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.last = Step(0, 0, "")

    def begin(self, recipe: Recipe, configure: Sequence[str], log: Path) -> None:
        self.phases.append(recipe.name)

    def phase(self, what: str) -> None:
        self.phases.append(what)

    def step(self, step: Step) -> None:
        self.last = step


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_does_where_there_is_no_ninja(project: EngineSource) -> None:
    tools = replace(
        toolchain.find(os.environ, SCRIPTS),
        generator="Unix Makefiles",
        builder=Path(shutil.which("make") or ""),
    )
    machine = Machine(tools, None, (), apple=False, processors=2, memory=4 * GIB)
    source = sources.read(project.folder, os.environ, 7)
    watcher = Steps()
    built = build(decide(Wishes(backend="cpu"), source, machine), project.engines, os.environ, watcher)
    assert built.installed.record.configure[5:7] == ("-G", "Unix Makefiles")
    assert built.report.tokens == 4
    assert watcher.last.done == watcher.last.total == 100
    phases = ["configuring the engine", "compiling the engine", "testing the engine"]
    assert watcher.phases == ["b7-cpu", *phases]


def git(folder: Path, *arguments: str) -> str:
    identity: Mapping[str, str] = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": os.devnull,
        **{
            f"GIT_{who}_{what}": "a@example.com"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
    }
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env=identity, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_the_build_number_is_the_count_of_commits(tmp_path: Path) -> None:
    folder = tmp_path / "outer/llama.cpp"
    folder.mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text("option(GGML_CUDA)\n")
    git(tmp_path / "outer", "init", "-q")
    git(tmp_path / "outer", "commit", "-q", "--allow-empty", "-m", "another project")
    # the repository around it does not count
    unpacked = sources.read(folder, os.environ)
    assert unpacked == sources.Source(folder, None, "", frozenset({"GGML_CUDA"}), unpacked.revision)
    assert sources.read(folder, os.environ).revision == unpacked.revision
    (folder / "CMakeLists.txt").replace(folder / "old")
    shutil.copy2(folder / "old", folder / "CMakeLists.txt")
    # what was unpacked anew is another source, whatever its times say
    assert sources.read(folder, os.environ).revision not in ("", unpacked.revision)

    git(folder, "init", "-q")
    git(folder, "add", ".")
    for number in range(3):
        git(folder, "commit", "-q", "--allow-empty", "-m", str(number))
    head = git(folder, "rev-parse", "HEAD")
    assert sources.read(folder, os.environ).number == 3
    assert sources.read(folder, os.environ).commit == head[:9]
    assert sources.read(folder, os.environ).revision == ""
    given = {
        sources.read(folder, os.environ, *it).revision for it in ((7, ""), (8, ""), (7, "a"), (None, "a"))
    }
    assert len(given - {""}) == 4
    assert sources.read(folder, os.environ, 11312, "given").number == 11312
    assert sources.read(folder, os.environ, 11312, "given").commit == "given"

    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{folder}", "shallow")
    shallow = sources.read(tmp_path / "shallow", os.environ)
    assert (shallow.number, shallow.commit) == (None, head[:9])
