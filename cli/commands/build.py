"""`mgr engine build`: compiles the engine, with its progress on standard error and the result on standard output."""

import os
import platform
import shlex
import signal
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import output
from daemon.settings import load

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from daemon.engines.build import Built
    from daemon.engines.cuda import Cuda
    from daemon.engines.recipe import Recipe, Wishes
    from daemon.engines.source import Source
    from daemon.engines.steps import Step

_MOST_NUMBER = 2**31 - 1  # it is an int of C

# Without a terminal, a line each time so much more is done.
_LINE_PERCENT = 10
_SPEED_SECONDS = 600.0  # a step takes seconds or minutes: the time left is judged by many


def build(
    source: Annotated[
        Path | None, typer.Option(help="Folder of llama.cpp; else native/llama.cpp.", show_default=False)
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="cpu, cuda, vulkan, hip or metal; else what this machine can do.", show_default=False
        ),
    ] = None,
    cuda_arch: Annotated[
        str,
        typer.Option(help="CUDA architectures, like 86,90; else those of the GPUs here.", show_default=False),
    ] = "",
    portable: Annotated[
        bool, typer.Option("--portable", help="Make it for other machines too, not for this processor.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Compilers at once; else what fits.", show_default=False)
    ] = None,
    build_number: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MOST_NUMBER,
            help="Its build number, where git does not tell.",
            show_default=False,
        ),
    ] = None,
    build_commit: Annotated[
        str, typer.Option(help="Its commit, where git does not tell.", show_default=False)
    ] = "",
    no_use: Annotated[
        bool, typer.Option("--no-use", help="Build and test it, and keep the one in use.")
    ] = False,
) -> None:
    """Compile llama.cpp, test it, and use it from then on. When interrupted, the same command goes on."""
    from daemon.engines import architectures, build, recipe
    from daemon.engines import source as sources
    from daemon.engines.places import overruled
    from daemon.engines.versions import Engines

    settings = load()
    wishes = recipe.Wishes(backend, architectures.parse(cuda_arch) if cuda_arch else (), portable, jobs)
    found = sources.read(source, os.environ, build_number, build_commit)
    chosen = _recipe(wishes, found, os.environ)
    try:
        with _signals_interrupt(), _Screen() as screen:
            built = build.build(chosen, Engines(settings.engines), os.environ, screen, use=not no_use)
    except KeyboardInterrupt:
        output.note("interrupted; the same command goes on where it stopped")
        raise
    output.line(result(built, used=not no_use))
    if remark := otherwise_numbered(built):
        output.announce(remark)
    if not no_use and (remark := overruled(settings.engine, chosen.name)):
        output.announce(remark)


def _recipe(wishes: "Wishes", source: "Source", environment: Mapping[str, str]) -> "Recipe":
    from daemon.engines import capacity, cuda, gpus, recipe, toolchain

    if wishes.backend is not None:
        toolchain.require(wishes.backend, environment)
    machine = recipe.Machine(
        tools=toolchain.find(environment, Path(sysconfig.get_path("scripts"))),
        cuda=cuda.find(environment, Path(sysconfig.get_path("purelib")))
        if wishes.backend in (None, "cuda")
        else None,
        gpus=gpus.present(),
        apple=platform.system() == "Darwin",
        processors=capacity.processors(),
        memory=capacity.memory(),
    )
    return recipe.decide(wishes, source, machine)


def described(recipe: "Recipe", configure: Sequence[str], log: Path) -> list[tuple[str, str]]:
    """What was chosen, a row each."""
    cuda = recipe.cuda
    rows = [
        ("version", recipe.name),
        ("source", str(recipe.source.folder)),
        ("backend", f"cuda {'.'.join(map(str, cuda.version))} ({cuda.nvcc})" if cuda else recipe.backend),
        ("architectures", ", ".join(recipe.architectures)),
        ("libraries", _libraries(cuda) if cuda and cuda.packaged else ""),
        ("processor", "any, chosen at run time" if recipe.portable else "this one (native)"),
        ("jobs", str(recipe.jobs)),
        ("cmake", shlex.join(configure)),
        ("log", str(log)),
    ]
    return [(name, value) for name, value in rows if value]


def _libraries(cuda: "Cuda") -> str:
    return (
        f"CUDA's own from {cuda.root / 'lib'}, hard-linked beside the engine where the file system allows it"
    )


def result(built: "Built", *, used: bool) -> str:
    name, report = built.installed.name, built.report
    devices = "" if report.devices is None else f"; devices: {', '.join(report.devices) or 'the CPU only'}"
    state = "It is in use from the next load on." if used else f"Use it with: mgr engine use {name}"
    return (
        f"Built {name} ({report.version}{devices})\n{built.installed.folder}\nIts log: {built.log}\n{state}"
    )


def otherwise_numbered(built: "Built") -> str:
    """What to say where the engine's own version holds another build number than its record, else ""."""
    number, version = built.installed.record.number, built.report.version
    if number is None or version.partition(" ")[0] == f"b{number}":
        return ""
    return f"note: the engine says that it is {version}; is {number} the build number of this source?"


class _Screen:
    """Shows how a build goes on: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._said = 0

    def __enter__(self) -> "_Screen":
        if output.progress_wanted():
            self._bar = _bar()
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, recipe: "Recipe", configure: Sequence[str], log: Path) -> None:
        self._say(output.aligned(described(recipe, configure, log)))
        for note in recipe.notes:
            self._say(f"note: {note}")

    def phase(self, what: str) -> None:
        self._said = 0
        if self._bar is None:
            output.announce(what)
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=None, count="")

    def step(self, step: "Step") -> None:
        if self._bar is not None and self._task is not None:
            count = f"{step.done}/{step.total}"
            self._bar.update(self._task, total=step.total, completed=step.done, count=count)
        elif self._bar is None and (line := due(step, self._said)):
            output.announce(line)
            self._said = _percent(step)

    def _say(self, text: str) -> None:
        if self._bar is None:
            output.announce(text)
        else:
            self._bar.console.print(output.printable(text), markup=False, highlight=False, soft_wrap=True)


def due(step: "Step", said: int) -> str:
    """The line for a step, "" while it is less than _LINE_PERCENT over the last one that was `said`."""
    percent = _percent(step)
    return f"{percent:3} %  {step.done}/{step.total}" if percent >= said + _LINE_PERCENT else ""


def _percent(step: "Step") -> int:
    return 100 * step.done // step.total if step.total else 0


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
        redirect_stdout=False,
        redirect_stderr=False,
        speed_estimate_period=_SPEED_SECONDS,
    )


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """A closed terminal and a polite kill end a build as Ctrl-C does, with everything that it started."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
