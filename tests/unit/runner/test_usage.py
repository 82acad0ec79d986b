"""What a process uses, told by its mappings; the test's own process is real enough."""

import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from daemon.runner import usage
from daemon.runner.usage import Usage

MIB = 1024 * 1024


def mapping(perms: str, path: str, rss: int, anonymous: int = 0, swap: int = 0) -> SimpleNamespace:
    return SimpleNamespace(perms=perms, path=path, rss=rss, anonymous=anonymous, swap=swap)


class _Process:
    maps: list[Any]

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def memory_maps(self, grouped: bool) -> list[Any]:
        assert not grouped
        return self.maps

    def memory_full_info(self) -> SimpleNamespace:
        return SimpleNamespace(rss=100, uss=70)


def test_weights_are_told_from_libraries_devices_and_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "LINUX", True)
    monkeypatch.setattr(psutil, "Process", _Process)
    _Process.maps = [
        mapping("r--s", "/models/blobs/sha256-1", 1000),
        mapping("r-xp", "/usr/lib/libllama.so", 300),
        mapping("rw-p", "/usr/lib/libllama.so", 30, anonymous=20),
        mapping("rw-p", "[heap]", 50, anonymous=50, swap=7),
        mapping("rw-p", "[anon]", 400, anonymous=400),
        mapping("rw-s", "/dev/nvidia0", 5),
        mapping("rw-s", "/dev/shm/x", 6),
    ]
    assert usage.of(1) == Usage(anonymous=477, mapped=1000)
    assert Usage(477, 1000).total == 1477


def test_other_systems_know_what_is_the_process_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "LINUX", False)
    monkeypatch.setattr(psutil, "Process", _Process)
    assert usage.of(1) == Usage(anonymous=70, mapped=30)


def test_a_process_without_memory_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "LINUX", True)
    monkeypatch.setattr(psutil, "Process", _Process)
    _Process.maps = []
    assert usage.of(1) is None


@pytest.mark.parametrize(
    "error", [psutil.NoSuchProcess(1), psutil.AccessDenied(1), psutil.ZombieProcess(1), OSError()]
)
def test_what_cannot_be_asked_is_none(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(pid: int) -> None:
        raise error

    monkeypatch.setattr(psutil, "Process", gone)
    assert usage.of(1) is None


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells")
def test_memory_that_is_touched_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(16 * MIB))
    before = usage.of(os.getpid())
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        own = mmap.mmap(
            -1, 32 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )  # never the room of what was freed
        own.write(b"x" * len(own))
        assert sum(mapped[::4096]) == 0
        after = usage.of(os.getpid())
        own.close()
    assert before is not None
    assert after is not None
    assert after.mapped - before.mapped == 16 * MIB
    assert after.anonymous - before.anonymous == pytest.approx(32 * MIB, rel=0.25)
