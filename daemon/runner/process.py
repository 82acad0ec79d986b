"""One child process: spawned into its own session, its output always drained, stopped by a ladder, reaped."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from daemon.runner.output import KEPT_LINES, Tail
from daemon.runner.state import Stage

log = logging.getLogger("mgr.engine")

T = TypeVar("T")

_GUARD = Path(__file__).with_name("guard.py")
_CHUNK_BYTES = 64 * 1024

# The steps that end a process: name, signal, and seconds to wait for its exit. The engine finishes its answer on
# the first TERM and exits at once on the second.
LADDER: Sequence[tuple[Stage, signal.Signals, float]] = (
    (Stage.ASKED, signal.SIGTERM, 1.5),
    (Stage.ASKED_AGAIN, signal.SIGTERM, 1.0),
    (Stage.KILLED, signal.SIGKILL, 5.0),
)
# A stray grandchild can hold the output open after the child's exit.
_OUTPUT_GRACE_SECONDS = 2.0
_COMMAND_LINES = 5000


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end even if the caller is cancelled meanwhile; the cancellation comes afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: S112 - it is raised below
            continue
    if cancelled is not None:
        raise cancelled
    return task.result()


class _Output:
    """Both ends of a pipe; what comes out of it is fed to `tail` for as long as anything can be written.

    The reading end is ours, and read from the event loop, so that it can be closed at any moment, also while a
    grandchild still holds the other end.
    """

    def __init__(self, tail: Tail, tag: str) -> None:
        self._tail = tail
        self._tag = tag
        self.ended = asyncio.Event()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        asyncio.get_running_loop().add_reader(self._read_end, self._readable)

    def _readable(self) -> None:
        try:
            chunk = os.read(self._read_end, _CHUNK_BYTES)
        except BlockingIOError:
            return
        for line in self._tail.feed(chunk):
            log.debug("%s: %s", self._tag, line)
        if not chunk:
            self.close()

    def close(self) -> None:
        if not self.ended.is_set():
            self.ended.set()
            asyncio.get_running_loop().remove_reader(self._read_end)
            os.close(self._read_end)


class Child:
    """A running child. Use `Child.spawn`; every child must be awaited with `wait` exactly once, by its owner."""

    def __init__(self, process: asyncio.subprocess.Process, output: _Output, tail: Tail, tag: str) -> None:
        self._process = process
        self._output = output
        self._tag = tag
        self.tail = tail
        self.stage: Stage | None = None  # of its end

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        tag: str,
        kept_lines: int = KEPT_LINES,
    ) -> "Child":
        """Starts `command` (absolute path first). `tag` marks its lines in the log. Raises OSError."""
        # The parent-death signal comes when the *thread* that forked ends.
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("engines are spawned from the main thread only")
        tail = Tail(kept_lines)
        output = _Output(tail, tag)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(_GUARD),
                str(os.getpid()),
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.write_end,
                stderr=output.write_end,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
            )
        except BaseException:
            output.close()
            raise
        finally:
            os.close(output.write_end)
        return cls(process, output, tail, tag)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Reaps the child and ends its output. Returns the exit status, negative for a signal."""
        status = await self._process.wait()
        self._kill_group()  # what the child forked and left behind
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OUTPUT_GRACE_SECONDS):
                await self._output.ended.wait()
        self._output.close()
        return status

    async def stop(self) -> None:
        """Goes down the ladder until the child is gone; someone else is in `wait`. Bounded, so it may fail."""
        for self.stage, number, seconds in LADDER:
            if self._process.returncode is not None:
                return
            self._signal_group(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.wait()
                    return

    def kill(self) -> None:
        """Ends it and all that it started at once, also what was stopped by a signal."""
        self.stage = Stage.KILLED
        self._kill_group()

    def _kill_group(self) -> None:
        self._signal_group(signal.SIGCONT)
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


async def output_of(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, seconds: float
) -> tuple[int, list[str]]:
    """Runs a command that ends by itself: its exit status and what it printed, at most _COMMAND_LINES lines of it.

    Raises OSError, and TimeoutError after `seconds`; however it ends, no process is left.
    """
    child = await Child.spawn(command, environment, folder, Path(command[0]).name, _COMMAND_LINES)
    waiting = asyncio.create_task(child.wait(), name="output of a command")
    try:
        async with asyncio.timeout(seconds):
            status = await asyncio.shield(waiting)
    finally:
        child.kill()
        await uninterrupted(_settled(waiting))
    return status, child.tail.lines()


async def _settled(task: "asyncio.Task[int]") -> None:
    await asyncio.wait({task})
