import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from daemon.scheduler.devices import MIB, Memory, Pool
from daemon.scheduler.machine import CARD_SECONDS, Machine
from daemon.scheduler.nvml import Card

GIB = 1024 * MIB

MEMINFO = """\
MemTotal:       32000000 kB
MemFree:         1000000 kB
MemAvailable:   24000000 kB
Buffers:          600000 kB
Cached:         22000000 kB
Mapped:          5000000 kB
Shmem:           1000000 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
"""
AVAILABLE = (24000000 - (5000000 - 1000000)) * 1024
CARD = "CUDA0: NVIDIA H200 (143167 MiB, 142000 MiB free)"
GUARD_SECONDS = 60.0


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
    return tmp_path / "proc"


def limit_to(proc: Path, limit: int, usage: int) -> None:
    """A container with version 2 of the control groups."""
    (proc / "self" / "cgroup").write_text("0::/\n")
    group = proc.parent / "cgroup"
    group.mkdir()
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{usage}\n")
    (group / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")


def machine(proc: Path, cards: Sequence[Card] = (), seconds: float = CARD_SECONDS) -> Machine:
    return Machine({}, lambda: cards, proc, proc.parent / "cgroup", seconds)


def test_files_that_programs_have_mapped_are_not_free(proc: Path) -> None:
    assert machine(proc).ram() == Pool(32000000 * 1024, AVAILABLE)


def test_a_control_group_leaves_less(proc: Path) -> None:
    limit_to(proc, 8 * GIB, 3 * GIB)
    assert machine(proc).ram() == Pool(8 * GIB, 5 * GIB)


def test_a_machine_has_less_than_the_control_group_leaves(proc: Path) -> None:
    limit_to(proc, 30 * GIB, 0)
    assert machine(proc).ram() == Pool(30 * GIB, AVAILABLE)


def test_a_control_group_that_cannot_be_read_is_left_out_and_said_once(
    proc: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit_to(proc, 8 * GIB, 3 * GIB)
    (proc.parent / "cgroup" / "memory.current").write_text("unknown\n")
    reader = machine(proc)
    assert [reader.ram(), reader.ram()] == [Pool(32000000 * 1024, AVAILABLE)] * 2
    assert len(caplog.records) == 1
    assert "control group" in caplog.text


def test_memory_that_cannot_be_read_is_unknown(proc: Path, caplog: pytest.LogCaptureFixture) -> None:
    (proc / "meminfo").unlink()
    (proc / "meminfo").mkdir()
    assert machine(proc).ram() is None
    assert "the machine's memory cannot be read" in caplog.text


@pytest.mark.parametrize("meminfo", [None, "", "MemTotal: 32000000 kB\nMemFree: 1000000 kB\n"])
def test_what_proc_does_not_tell_psutil_does(proc: Path, meminfo: str | None) -> None:
    (proc / "meminfo").unlink()
    if meminfo is not None:
        (proc / "meminfo").write_text(meminfo)
    ram = machine(proc).ram()
    assert ram is not None
    assert ram.total == psutil.virtual_memory().total


async def test_a_machine_without_a_gpu_asks_no_driver(proc: Path) -> None:
    def cards() -> Sequence[Card]:
        raise AssertionError("asked")

    reader = Machine({}, cards, proc, proc.parent / "cgroup")
    assert await reader.memory([]) == Memory(Pool(32000000 * 1024, AVAILABLE))
    assert reader._asking is None


async def test_what_is_free_on_a_card_now(proc: Path) -> None:
    memory = await machine(proc, [Card("NVIDIA H200", "GPU-1", 7 * MIB)]).memory([CARD])
    (device,) = memory.devices
    assert (device.free, device.live) == (7 * MIB, True)


async def test_a_gpu_that_shares_the_memory_has_what_the_machine_has(proc: Path) -> None:
    reader = machine(proc)
    (device,) = (await reader.memory(["MTL0: Apple M4 Max (98304 MiB, 98303 MiB free)"])).devices
    assert (device.free, device.live, device.total) == (AVAILABLE, True, 98304 * MIB)
    (device,) = (await reader.memory(["MTL0: Apple M1 (5461 MiB, 5461 MiB free)"])).devices
    assert device.free == 5461 * MIB


async def test_a_driver_that_fails_leaves_the_engines_numbers(
    proc: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def cards() -> Sequence[Card]:
        raise AttributeError("function not found")

    reader = Machine({}, cards, proc, proc.parent / "cgroup")
    for _ in range(2):
        (device,) = (await reader.memory([CARD])).devices
        assert (device.free, device.live) == (142000 * MIB, False)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_a_driver_that_hangs_is_waited_for_once(proc: Path) -> None:
    threads = []
    answer = threading.Event()

    def cards() -> Sequence[Card]:
        threads.append(threading.current_thread())
        answer.wait(GUARD_SECONDS)
        return [Card("NVIDIA H200", "GPU-1", 7 * MIB)]

    reader = Machine({}, cards, proc, proc.parent / "cgroup", card_seconds=0.01)
    for _ in range(3):
        (device,) = (await reader.memory([CARD])).devices
        assert not device.live
    assert len(threads) == 1
    assert threads[0].daemon  # it cannot hold up the end of mgr

    late = reader._asking
    assert late is not None
    answer.set()
    await late
    reader._card_seconds = GUARD_SECONDS
    (device,) = (await reader.memory([CARD])).devices
    assert (device.free, device.live) == (7 * MIB, True)
    assert len(threads) == 2


async def test_this_machine() -> None:
    memory = await Machine({}, cards=lambda: ()).memory([])
    assert memory.devices == ()
    assert memory.ram is not None
    assert 64 * MIB < memory.ram.total <= psutil.virtual_memory().total
    assert 0 < memory.ram.free < memory.ram.total
