"""One pull that any number of callers watch. It stops when the last of them leaves."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from daemon.errors import PullFailed

# Seconds after which watchers see counters that have changed.
TICK = 0.06


@dataclass(frozen=True, slots=True)
class PullProgress:
    """One line of progress, with Ollama's words. `total` and `completed` in bytes; `digest` like "sha256:...".

    `model` comes with the last line: the name that the model is stored under.

    Within a pull `completed` never goes back for a status and never passes `total`.
    """

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None
    model: str | None = None


Report: TypeAlias = Callable[[PullProgress], None]


class Job:
    """Runs `run` from the first watcher on. `on_end` is called once no caller may join any more."""

    def __init__(self, run: Callable[[Report], Awaitable[None]], on_end: Callable[[], None]) -> None:
        self._run = run
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._watchers = 0
        self._lines: list[PullProgress] = []
        self._best: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._tick: asyncio.TimerHandle | None = None

    async def watch(self) -> AsyncGenerator[PullProgress, None]:
        """Every status so far, then each change; a slow watcher skips intermediate counters.

        Raises what the pull raised.
        """
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.ensure_future(self._main())
        task, position = self._task, 0
        shown: PullProgress | None = None
        try:
            while True:
                changed, ended = self._changed, task.done()
                lines = self._lines[position:]
                for line in lines:
                    if line is not shown:
                        yield line
                    shown = line
                position += max(len(lines) - 1, 0)
                if ended:
                    break
                await changed.wait()
            if task.cancelled():
                raise PullFailed("the pull was stopped; pull again to continue")
            task.result()
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                await self.cancel()

    async def cancel(self) -> None:
        """Stops the pull and waits until it has."""
        self._on_end()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _main(self) -> None:
        try:
            await self._run(self._report)
        finally:
            self._on_end()
            self._wake()

    def _report(self, line: PullProgress) -> None:
        if line.completed is not None and line.total is not None:
            best = max(self._best.get(line.status, 0), line.completed)
            line = replace(line, completed=min(best, line.total))
            self._best[line.status] = best
        if self._lines and self._lines[-1] == line:
            return
        if not self._lines or self._lines[-1].status != line.status:
            self._lines.append(line)
        else:
            self._lines[-1] = line
            if line.completed != line.total:
                self._wake_soon()
                return
        self._wake()

    def _wake_soon(self) -> None:
        if self._tick is None:
            self._tick = asyncio.get_running_loop().call_later(TICK, self._wake)

    def _wake(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        self._changed.set()
        self._changed = asyncio.Event()
