"""One child process: spawned into its own session, its output always drained, stopped by a ladder, reaped."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from daemon.runner.output import Tail

log = logging.getLogger("mgr.engine")

_GUARD = Path(__file__).with_name("guard.py")
_CHUNK_BYTES = 64 * 1024

# The steps that end a process: signal, and seconds to wait for its exit. The engine finishes its answer on the
# first TERM and exits at once on the second.
LADDER: Sequence[tuple[signal.Signals, float]] = (
    (signal.SIGTERM, 1.5),
    (signal.SIGTERM, 1.0),
    (signal.SIGKILL, 5.0),
)
# A stray grandchild can hold the output open after the child's exit.
_OUTPUT_GRACE_SECONDS = 2.0


class _Output:
    """The reading end of a pipe that is ours, so that it can be closed while a grandchild still holds the other."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self.reader = reader
        self._transport = transport

    @classmethod
    async def open(cls) -> "tuple[_Output, int]":
        """The output, and the descriptor to write to, which the caller closes."""
        read_end, write_end = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
        )
        return cls(reader, transport), write_end

    def close(self) -> None:
        self._transport.close()


class Child:
    """A running child. Use `Child.spawn`; every child must be awaited with `wait` exactly once, by its owner."""

    def __init__(self, process: asyncio.subprocess.Process, output: _Output, tag: str) -> None:
        self._process = process
        self._output = output
        self._tag = tag
        self.tail = Tail()
        self._drain = asyncio.create_task(self._read_output(), name=f"output of {tag}")

    @classmethod
    async def spawn(
        cls, command: Sequence[str], environment: Mapping[str, str], folder: Path, tag: str
    ) -> "Child":
        """Starts `command` (absolute path first). `tag` marks its lines in the log. Raises OSError."""
        # The parent-death signal comes when the *thread* that forked ends.
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("engines are spawned from the main thread only")
        output, write_end = await _Output.open()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(_GUARD),
                str(os.getpid()),
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
            )
        except BaseException:
            output.close()
            raise
        finally:
            os.close(write_end)
        return cls(process, output, tag)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exited(self) -> bool:
        return self._process.returncode is not None

    async def _read_output(self) -> None:
        """Reads for as long as anything can be written, so that the child never blocks on a full pipe."""
        while chunk := await self._output.reader.read(_CHUNK_BYTES):
            for line in self.tail.feed(chunk):
                log.debug("%s: %s", self._tag, line)

    async def wait(self) -> int:
        """Reaps the child and ends its output. Returns the exit status, negative for a signal."""
        status = await self._process.wait()
        self._signal_group(signal.SIGKILL)  # what the child forked and left behind
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drain, _OUTPUT_GRACE_SECONDS)
        self._output.close()
        return status

    async def stop(self) -> None:
        """Goes down the ladder until the child is gone; someone else is in `wait`."""
        for number, seconds in LADDER:
            if self.exited:
                return
            self._signal_group(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.wait()
                    return
        log.error("%s: process %d did not go, not even by SIGKILL", self._tag, self.pid)

    def kill(self) -> None:
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
