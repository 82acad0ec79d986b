"""What the control groups of this process leave it of the machine's memory, version 1 and 2 of them.

A limit holds for a group and all below it, so every group from ours up to the root counts. The files are those of the
kernel's admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from daemon.scheduler.devices import Pool


@dataclass(frozen=True, slots=True)
class _Files:
    """What a version calls its files; `total` begins the lines of memory.stat that count the groups below too."""

    limits: tuple[str, ...]
    usage: str
    total: str
    mapped: str


_V1 = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_", "mapped_file")
_V2 = _Files(("memory.max", "memory.high"), "memory.current", "", "file_mapped")


def pools(proc: Path, mounted: Path, machine: int) -> Iterator[Pool]:
    """What each limit leaves that holds this process to less than `machine` bytes; a group can have several.

    `proc` is /proc and `mounted` /sys/fs/cgroup. Raises OSError and ValueError for what cannot be read.
    """
    found = _group(proc / "self" / "cgroup", mounted)
    if found is None:
        return
    files, top, group = found
    folders = list(_up(top, group))
    limits = [(folder, limit) for folder in folders for limit in _limits(files, folder)]
    if files is _V1:  # which also tells the limits of groups that are out of sight
        limits.append((folders[0], _stat(folders[0]).get("hierarchical_memory_limit", machine)))
    for folder, limit in limits:
        if limit < machine:
            yield Pool(limit, max(limit - _in_use(files, folder), 0))


def cache_in_use(mapped: int, shared: int) -> int:
    """Bytes of the page cache that cannot go without harm: files that programs have mapped, as an engine does with a
    model's weights. Shared memory is mapped too, and no cache; how much of it is not told, so this is the least."""
    return max(mapped - shared, 0)


def _group(listing: Path, mounted: Path) -> tuple[_Files, Path, PurePosixPath] | None:
    """Where the memory of this process is counted: the version's files, its mount, and the group's path below it.

    The lines are "hierarchy:controllers:path" (cgroups(7)); a path can have colons. On a machine with both versions
    the memory is counted in version 1 if that has a folder for it.
    """
    unified = None
    for line in _text(listing).splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") and (mounted / "memory").is_dir():
            return _V1, mounted / "memory", PurePosixPath(path)
        if hierarchy == "0":
            unified = PurePosixPath(path)
    return None if unified is None else (_V2, mounted, unified)


def _up(top: Path, group: PurePosixPath) -> Iterator[Path]:
    """The folders of a group and of all that it is in.

    In a container the path can be the host's, while what is mounted is the container's own group: then nothing of the
    path exists below `top`, which alone is left. A path with ".." leads out of what can be seen, to the same end.
    """
    below = [] if ".." in group.parts else [group, *group.parents]
    for path in below:
        folder = top / path.relative_to("/")
        if folder != top and folder.is_dir():
            yield folder
    yield top


def _limits(files: _Files, folder: Path) -> Iterator[int]:
    """Nothing for the word "max", nor where there is no such file, as in the root of version 2."""
    for text in (_text(folder / name).strip() for name in files.limits):
        if text not in {"", "max"}:
            yield int(text)


def _in_use(files: _Files, folder: Path) -> int:
    """What is charged to a group, less what the kernel takes back before it refuses any more."""
    usage = int(_text(folder / files.usage))
    stat = _stat(folder)

    def total(name: str) -> int:
        return stat.get(files.total + name, 0)

    cache = total("inactive_file") + total("active_file")
    kept = min(cache, cache_in_use(total(files.mapped), total("shmem")))
    return max(usage - cache - total("slab_reclaimable") + kept, 0)


def _stat(folder: Path) -> dict[str, int]:
    lines = _text(folder / "memory.stat").splitlines()
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}


def _text(path: Path) -> str:
    """Empty where there is no such file: systems without control groups, and sandboxes that show some files only."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""
