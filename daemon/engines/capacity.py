"""What a build may take of this machine: processors, and memory, also where a control group limits them."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")


def processors() -> int:
    """How many processors this process may use, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [limit for group in _own_groups() if (limit := quota(_text(group / "cpu.max"))) is not None]
    return max(1, min([allowed, *limits]))


def memory() -> int:
    """Bytes that can be taken without swapping."""
    rooms = (
        room(_text(group / "memory.max"), _text(group / "memory.current"), _text(group / "memory.stat"))
        for group in _own_groups()
    )
    return min([psutil.virtual_memory().available, *(left for left in rooms if left is not None)])


def quota(text: str) -> int | None:
    """Reads `cpu.max` of cgroup v2, microseconds in each period: "150000 100000" allows 1 whole processor."""
    granted, _, period = text.partition(" ")
    if not granted.isdigit() or not period.strip().isdigit() or int(period) == 0:
        return None
    return max(1, int(granted) // int(period))


def room(limit: str, used: str, statistics: str) -> int | None:
    """Bytes left under a limit of cgroup v2, None without one. Files that are only cached can be given up."""
    if not limit.strip().isdigit() or not used.strip().isdigit():
        return None
    fields = dict(line.split(maxsplit=1) for line in statistics.splitlines() if len(line.split()) == 2)
    return max(0, int(limit) - int(used) + int(fields.get("inactive_file", "0")))


def _own_groups() -> Iterator[Path]:
    """The control group of this process and those around it."""
    for line in _text(_SELF).splitlines():
        if line.startswith("0::"):
            group = _GROUPS / line.removeprefix("0::").strip("/")
            yield from (place for place in (group, *group.parents) if place.is_relative_to(_GROUPS))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
