"""A memory control group of the real kernel, for tests that must end without an out-of-memory kill.

It needs root, or a delegated group, and a file system of control groups that can be written to: a container often has
neither, and the test is skipped there.
"""

import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
GUARD_SECONDS = 30.0

# `sh` goes into the group itself, so that all that comes of the command is counted from its first byte on.
_ENTER = 'echo $$ >"$0" && exec "$@"'


@dataclass(frozen=True)
class MemoryGroup:
    """`folder` is the group; its files have the names of the version that the machine counts memory with."""

    folder: Path
    limit_file: str
    swap_file: str
    usage_file: str
    events_file: str

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command line that runs a command in this group, with the same pid as if it had been run itself."""
        return ["/bin/sh", "-c", _ENTER, str(self.folder / "cgroup.procs"), *command]

    def limit_to(self, size: int) -> None:
        """Bytes of memory, with no swap on top. Raises OSError."""
        (self.folder / self.limit_file).write_text(str(size))
        with suppress(OSError):  # a kernel that does not count swap
            (self.folder / self.swap_file).write_text(str(size) if "memsw" in self.swap_file else "0")

    @property
    def limit(self) -> int:
        return int((self.folder / self.limit_file).read_text())

    @property
    def usage(self) -> int:
        return int((self.folder / self.usage_file).read_text())

    @property
    def oom_kills(self) -> int:
        """How many processes the kernel has killed because the group was full."""
        lines = (self.folder / self.events_file).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]

    def remove(self) -> None:
        """Kills what is left in it."""
        deadline = time.monotonic() + GUARD_SECONDS
        while True:
            for pid in self.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                return self.folder.rmdir()
            except OSError:  # a process that was killed is in it until it has been reaped
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """A group of its own that has `limit` bytes; gone afterwards. Skips the test where none can be made."""
    try:
        group = _make(limit)
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error.strerror}")
    try:
        yield group
    finally:
        group.remove()


def _make(limit: int) -> MemoryGroup:
    name = f"mgr-test-{os.getpid()}-{secrets.token_hex(4)}"
    if (ROOT / "memory").is_dir():
        group = MemoryGroup(
            ROOT / "memory" / name,
            "memory.limit_in_bytes",
            "memory.memsw.limit_in_bytes",
            "memory.usage_in_bytes",
            "memory.oom_control",
        )
    else:
        group = MemoryGroup(ROOT / name, "memory.max", "memory.swap.max", "memory.current", "memory.events")
    group.folder.mkdir()
    try:
        group.limit_to(limit)
    except OSError:
        group.folder.rmdir()
        raise
    return group
