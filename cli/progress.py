"""The progress of a pull, drawn on standard error when that is a terminal."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from cli import output
from cli.client import Client, Json
from cli.errors import CliError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def pull(client: Client, source: str, *, name: str | None = None, replace: bool = False) -> str:
    """Pulls and returns the name that the model is stored under."""
    body: Json = {"model": source}
    if name is not None:
        body["as"] = name
    if replace:
        body["replace"] = True
    last = follow(client.stream("/api/pull", body))
    if last.get("status") != "success":
        raise CliError(f"the pull of '{source}' ended early; start it again to go on where it stopped")
    return str(last.get("model") or name or source)


def follow(lines: Iterable[Json]) -> Json:
    """Reads progress lines to their end and returns the last one, {} if there was none."""
    last: Json = {}
    with _bars() if output.progress_wanted() else nullcontext() as bars:
        for line in lines:
            last = line
            if bars is not None:
                bars.update(line)
    return last


class _Bars:
    """One bar for each file, a line for each other step."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._step = ""

    def update(self, line: Json) -> None:
        status, digest = output.printable(str(line.get("status", ""))), line.get("digest")
        if digest is not None and line.get("total"):
            self._bar(str(digest), status, int(line["total"]), int(line.get("completed") or 0))
        elif status != self._step:
            self._progress.console.print(status, markup=False, highlight=False)
            self._step = status

    def _bar(self, digest: str, status: str, total: int, completed: int) -> None:
        if digest in self._tasks:
            self._progress.update(self._tasks[digest], total=total, completed=completed)
        else:
            self._tasks[digest] = self._progress.add_task(status, total=total, completed=completed)


@contextmanager
def _bars() -> Iterator[_Bars]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False
    ) as bars:
        yield _Bars(bars)
