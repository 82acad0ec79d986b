"""A real control group of this machine's: what is read in it, and that the tests' own group counts its kills."""

import subprocess
import sys
from pathlib import Path

from daemon.scheduler.devices import MIB
from tests.fakes.cgroup import GUARD_SECONDS, MemoryGroup, memory_group

LIMIT = 128 * MIB
RAM = "from daemon.scheduler.machine import Machine; ram = Machine({}).ram(); print(ram.total, ram.free)"
HELD = 64 * MIB


def run_inside(group: MemoryGroup, program: str) -> "subprocess.CompletedProcess[str]":
    command = group.inside([sys.executable, "-c", program])
    root = Path(__file__).parents[2]
    return subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=GUARD_SECONDS, check=False
    )


def test_the_limit_is_what_the_daemon_has() -> None:
    with memory_group(LIMIT) as group:
        total, free = map(int, run_inside(group, RAM).stdout.split())
        assert total == LIMIT
        assert 0 < free < LIMIT

        holding = f"held = b'1' * {HELD}; {RAM}"
        total, free = map(int, run_inside(group, holding).stdout.split())
        assert total == LIMIT
        assert 0 <= free < LIMIT - HELD
        assert group.oom_kills == 0
    assert not group.folder.exists()


def test_a_kill_for_lack_of_memory_is_counted() -> None:
    with memory_group(LIMIT) as group:
        done = run_inside(group, f"held = b'1' * {2 * LIMIT}; print('held')")
        assert (done.returncode, done.stdout) == (-9, "")
        assert group.oom_kills == 1
