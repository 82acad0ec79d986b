"""Builds a version of the engine: configures, compiles, tests what came out, and puts it beside the others.

    <engines>/builds/<key>/       cmake's folder, so that a build that was interrupted goes on
    <engines>/builds/<key>/mgr/   lock, build.log, links (names for the linker), staged (the version that is made)

Whatever fails, the engine in use stays in use: the switch is the last step.
"""

import asyncio
import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from daemon.engines import stage, steps
from daemon.engines.recipe import GIB, Recipe
from daemon.engines.smoke import Report, SmokeFailed, smoke_test
from daemon.engines.source import own_repository
from daemon.engines.versions import BUILD_LOCK, BUILDS, PROGRAM, Engines, Installed, Record
from daemon.errors import Busy, Conflict, MgrError, StorageFailed

_LOG = "build.log"
_KEPT_LINES = 2000
_STOP_SECONDS = 10.0  # ninja ends its compilers and deletes what they had half written
# What would change how the tools print, and what is no business of theirs.
_DROPPED = ("CLICOLOR_FORCE", "CMAKE_COLOR_DIAGNOSTICS", "MAKEFLAGS", "DESTDIR")
_OURS = ("MGR_", "OLLAMA_", "HF_")


class BuildFailed(MgrError):
    """A step failed; the message ends with its last lines and the place of the log."""


class Watcher(Protocol):
    """Is told how a build goes on."""

    def begin(self, recipe: Recipe, configure: Sequence[str], log: Path) -> None: ...

    def phase(self, what: str) -> None: ...

    def step(self, step: steps.Step) -> None: ...


@dataclass(frozen=True, slots=True)
class Built:
    installed: Installed
    report: Report

    @property
    def log(self) -> Path:
        return self.installed.folder / _LOG


@dataclass(frozen=True, slots=True)
class _Workspace:
    """The build folder, and our own folder in it."""

    build: Path

    @property
    def log(self) -> Path:
        return self.build / "mgr" / _LOG

    @property
    def links(self) -> Path:
        return self.build / "mgr/links"

    @property
    def staged(self) -> Path:
        return self.build / "mgr/staged"

    @contextmanager
    def held(self) -> Iterator[int]:
        """Holds the folder for this process and those that inherit the descriptor. Raises Busy."""
        lock = self.build / BUILD_LOCK
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(f"this build is running already; its log is {self.log}") from None
            yield descriptor
        finally:
            os.close(descriptor)


def build(
    recipe: Recipe,
    engines: Engines,
    environment: Mapping[str, str],
    watcher: Watcher,
    *,
    use: bool = True,
) -> Built:
    """Call it in the main thread. KeyboardInterrupt ends it with every process it started.

    Raises BuildFailed, Busy where the same build runs, StorageFailed, and Conflict where it would replace the version
    in use though it is not to be used.
    """
    if not use and recipe.name == engines.chosen():
        raise Conflict(
            f"{recipe.name} is in use and this build would replace it; choose another engine first with "
            "`mgr engine use NAME`, or leave --no-use out"
        )
    workspace = _Workspace(engines.folder / BUILDS / recipe.key)
    try:
        with workspace.held() as lock:
            _check_disk(recipe, workspace.build)
            configure = _compiled(recipe, workspace, _environment(recipe, environment), lock, watcher)
            watcher.phase("testing the engine")
            report = _tested(recipe, workspace)
            installed = engines.add(workspace.staged, _record(recipe, configure))
            built = Built(installed, report)
            workspace.log.replace(built.log)
            if use:
                engines.use(installed.name)
    except OSError as error:
        raise StorageFailed(f"cannot build in {workspace.build}: {error.strerror or error}") from None
    return built


def _compiled(
    recipe: Recipe, workspace: _Workspace, environment: Mapping[str, str], lock: int, watcher: Watcher
) -> tuple[str, ...]:
    """Makes `workspace.staged`, and returns the configure line."""
    libraries = recipe.cuda.links() if recipe.cuda else {}
    stage.make_links(libraries, workspace.links)
    configure = recipe.configure(workspace.build, workspace.links)
    watcher.begin(recipe, configure, workspace.log)
    with workspace.log.open("ab", buffering=0) as log:
        log.write(f"\n=== {recipe.name}, {_now()}\n".encode())
        run = _Runner(environment, lock, log, watcher)
        run(configure, "configuring")
        run(recipe.compile(workspace.build), "compiling")
    stage.stage(workspace.build, workspace.staged)
    stage.add_libraries(recipe.cuda.libraries if recipe.cuda else (), workspace.staged / PROGRAM.parent)
    return configure


def _tested(recipe: Recipe, workspace: _Workspace) -> Report:
    try:
        report = asyncio.run(smoke_test(workspace.staged / PROGRAM, workspace.log.parent))
        if recipe.gpus and report.devices == ():
            raise SmokeFailed(
                f"it does not see the GPU here, {recipe.gpus[0].name}; see its driver, or use --backend cpu"
            )
    except SmokeFailed as error:
        raise BuildFailed(
            f"{recipe.name} was compiled and does not work: {error.message}\n"
            f"The engine in use stays in use. The log of the build: {workspace.log}"
        ) from None
    return report


class _Runner:
    """Runs one command after the other, in a session of its own, with its output in the log."""

    def __init__(self, environment: Mapping[str, str], lock: int, log: BinaryIO, watcher: Watcher) -> None:
        self._environment = environment
        self._lock = lock
        self._log = log
        self._watcher = watcher

    def __call__(self, command: Sequence[str], what: str) -> None:
        """Raises BuildFailed with the command's last lines, and OSError."""
        self._watcher.phase(f"{what} the engine")
        self._log.write(f"$ {shlex.join(command)}\n".encode())
        kept: deque[str] = deque(maxlen=_KEPT_LINES)
        process = subprocess.Popen(
            command,
            env=dict(self._environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(self._lock,),  # held for as long as anything of this build runs
        )
        with process, _ended(process):
            for raw in process.stdout or ():
                self._log.write(raw)
                line = raw.decode(errors="replace").rstrip()
                kept.append(line)
                if (step := steps.parse(line)) is not None:
                    self._watcher.step(step)
            status = process.wait()
        if status != 0:
            lines = "\n".join(steps.failure(list(kept)))
            raise BuildFailed(
                f"{what} the engine failed (status {status}):\n{lines}\n"
                f"The engine in use stays in use. The whole log: {self._log.name}"
            )


@contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """However the block ends, no process of the group is left."""
    try:
        yield
    finally:
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
            try:
                process.communicate(
                    timeout=_STOP_SECONDS
                )  # also reads on: ninja must not wait for its output
            except subprocess.TimeoutExpired:
                pass
            finally:
                _signal(process, signal.SIGKILL)


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _check_disk(recipe: Recipe, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < recipe.disk:
        raise StorageFailed(
            f"building {recipe.name} needs about {recipe.disk / GIB:.1f} GiB in {folder}, and {free / GIB:.1f} are free"
        )


def _environment(recipe: Recipe, environment: Mapping[str, str]) -> dict[str, str]:
    kept = {
        key: value for key, value in environment.items() if not key.startswith(_OURS) and key not in _DROPPED
    }
    return {**kept, **own_repository(recipe.source.folder), "NINJA_STATUS": steps.NINJA_STATUS}


def _record(recipe: Recipe, configure: tuple[str, ...]) -> Record:
    return Record(
        name=recipe.name,
        number=recipe.source.number,
        commit=recipe.source.commit,
        backend=recipe.backend,
        architectures=recipe.architectures,
        portable=recipe.portable,
        source=str(recipe.source.folder),
        configure=configure,
        built=_now(),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
