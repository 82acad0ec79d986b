"""The engines that were built on this machine, side by side, and which of them is in use.

    <folder>/<name>/      one version: engine.json (its Record), bin/ (llama-server and its libraries), build.log
    <folder>/current      symlink whose target is the name in use; `previous` is the one before it
    <folder>/builds/      where they are compiled
    <folder>/.lock        held by the one process that changes any of this

A switch is one rename, so a reader sees the old or the new one. What is half removed or half written starts with a
dot and is no version. `current` may also name an engine that was not built here (see BORROWED): then it points to
nothing.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from daemon.errors import Conflict, InvalidRequest, NotFound, StorageFailed

# Engines that mgr finds elsewhere and that can be chosen like a version of its own, and how each is removed.
_REMOVED_BY = {
    "wheel": "the wheel is a Python package; it is removed with: pip uninstall xllamacpp",
    "path": "llama-server on PATH was not built by mgr; remove it as it was installed",
}
BORROWED = tuple(_REMOVED_BY)
AUTO = "auto"  # chosen where nothing is

PROGRAM = Path("bin/llama-server")
CURRENT = "current"
PREVIOUS = "previous"
BUILDS = "builds"
BUILD_LOCK = Path("mgr/lock")  # in a folder of `builds`, held for as long as anything of the build runs
RECORD = "engine.json"

_RESERVED = frozenset({*BORROWED, CURRENT, PREVIOUS, BUILDS, AUTO, "built"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")
_LOCK = ".lock"
_HIDDEN = re.compile(r"\..+-[0-9a-f]{8}(\.old)?")
_REPLACED = re.compile(r"\.(.+)-[0-9a-f]{8}\.old")
_MOST_RECORD_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Record:
    """What a version was made of. `number` and `commit` are llama.cpp's, None and "" where the source does not tell;
    `backend` is cpu, cuda, vulkan, hip or metal; `architectures` are CUDA's; `configure` is the exact command line
    of cmake; `built` is the end of the build, ISO 8601 in UTC."""

    name: str
    number: int | None
    commit: str
    backend: str
    architectures: tuple[str, ...]
    portable: bool
    source: str
    configure: tuple[str, ...]
    built: str

    @property
    def version(self) -> str:
        """As the engine found by the daemon tells it: b11434 (0c1e570)."""
        number = "unknown" if self.number is None else f"b{self.number}"
        return f"{number} ({self.commit})" if self.commit else number


@dataclass(frozen=True, slots=True)
class Installed:
    record: Record
    folder: Path

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def program(self) -> Path:
        return self.folder / PROGRAM


@dataclass(frozen=True, slots=True)
class Broken:
    """A folder that should be a version and cannot be used, and why."""

    name: str
    reason: str


class Engines:
    """The folder of versions. It need not exist until something is added. Every method may raise StorageFailed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self) -> "Sequence[Installed]":
        """Every version that can be used, the newest build first."""
        found = [entry for entry in self._scan() if isinstance(entry, Installed)]
        return sorted(found, key=lambda entry: (entry.record.built, entry.name), reverse=True)

    def broken(self) -> Sequence[Broken]:
        """Every folder that looks like a version and is none, by name."""
        return sorted(
            (entry for entry in self._scan() if isinstance(entry, Broken)), key=lambda entry: entry.name
        )

    def get(self, name: str) -> Installed:
        """The version of that name. Raises InvalidRequest, and NotFound with the names that there are."""
        found = self._read(_checked(name))
        if found is None:
            there = ", ".join(entry.name for entry in self.list()) or "none is installed"
            raise NotFound(f"there is no engine '{name}'; there are: {there}")
        if isinstance(found, Broken):
            raise NotFound(f"the engine '{name}' cannot be used: {found.reason}; remove it or build it again")
        return found

    def chosen(self) -> str:
        """The name in use, also one of BORROWED or one that is broken; "" where nothing was chosen."""
        return self._target(CURRENT)

    def current(self) -> Installed | None:
        """The version in use, if one was chosen and it is whole."""
        return self._linked(CURRENT)

    def previous(self) -> Installed | None:
        """The version that was in use before the current one, if it is whole."""
        return self._linked(PREVIOUS)

    def programs(self) -> Sequence[Path]:
        """Where a daemon looks: the current program, then the previous one. Links; what they name may change."""
        return [self.folder / link / PROGRAM for link in (CURRENT, PREVIOUS)]

    def add(self, staged: Path, record: Record) -> Installed:
        """Puts the finished folder `staged`, which is on the same file system, in place under the record's name.

        One of the same name is replaced; a process that runs from it keeps its files. Raises InvalidRequest.
        """
        name = _checked(record.name)
        if not _runnable(staged / PROGRAM):
            raise InvalidRequest(f"{staged} holds no program {PROGRAM}, so it is no engine")
        with self._changing("install"):
            (staged / RECORD).write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
            place, aside = self.folder / name, self._hidden(name, ".old")
            with contextlib.suppress(FileNotFoundError):
                place.rename(aside)
            try:
                staged.rename(place)
            except OSError:
                if aside.exists():
                    aside.rename(place)
                raise
        return Installed(record, place)

    def use(self, name: str) -> None:
        """From now on `name` is used: a version, one of BORROWED, or with AUTO whatever is found first. What was used
        becomes the previous one.

        Raises InvalidRequest and NotFound.
        """
        if name not in (AUTO, *BORROWED):
            self.get(name)
        if name == (self.chosen() or AUTO):
            return
        with self._changing("switch"):
            if (before := self.current()) is not None:
                self._link(PREVIOUS, before.name)
            if name == AUTO:
                (self.folder / CURRENT).unlink(missing_ok=True)
                return
            self._link(CURRENT, name)
            if self._target(PREVIOUS) == name:
                (self.folder / PREVIOUS).unlink()

    def remove(self, name: str) -> None:
        """Deletes a version, broken or not, and every leftover; only these where `name` is BUILDS.

        Raises InvalidRequest, NotFound, and Conflict for the one in use.
        """
        if name in _REMOVED_BY:
            raise InvalidRequest(_REMOVED_BY[name])
        if name != BUILDS and self._read(_checked(name)) is None:
            self.get(name)
        with self._changing("remove"):
            if name != BUILDS:
                self._remove(name)
            for folder in self._leftovers():
                _delete(folder)

    def leftover_bytes(self) -> int:
        """What the builds take that are still running, were interrupted, failed, or whose version is gone."""
        with self._failing("list"):
            return sum(_bytes(folder) for folder in self._leftovers())

    # ---- the folder

    def _scan(self) -> "Iterator[Installed | Broken]":
        with self._failing("list"):
            try:
                names = sorted(os.listdir(self.folder))
            except FileNotFoundError:
                return
        for name in names:
            if _NAME.fullmatch(name) and name not in _RESERVED and (found := self._read(name)) is not None:
                yield found

    def _read(self, name: str) -> Installed | Broken | None:
        """The version in the folder `name`, whatever its record calls it; None where there is no such folder."""
        folder = self.folder / name
        if os.path.islink(folder) or not os.path.isdir(folder):
            return None
        try:
            data = (folder / RECORD).read_bytes()[:_MOST_RECORD_BYTES]
            record = replace(_parse(data), name=name)
        except OSError as error:
            return Broken(name, f"its {RECORD} cannot be read: {error.strerror}")
        except ValueError as error:
            return Broken(name, f"its {RECORD} is wrong: {error}")
        if not _runnable(folder / PROGRAM):
            return Broken(name, f"it has no program {PROGRAM}")
        return Installed(record, folder)

    def _target(self, link: str) -> str:
        """The name that a link holds; "" for none, and for one that leads out of the folder."""
        try:
            name = os.readlink(self.folder / link)
        except OSError:
            return ""
        return name if name in BORROWED or (_NAME.fullmatch(name) and name not in _RESERVED) else ""

    def _linked(self, link: str) -> Installed | None:
        name = self._target(link)
        found = self._read(name) if name else None
        return found if isinstance(found, Installed) else None

    def _link(self, link: str, name: str) -> None:
        temporary = self._hidden(link)
        temporary.symlink_to(name)
        temporary.replace(self.folder / link)

    def _remove(self, name: str) -> None:
        if name == self.chosen():
            raise Conflict(
                f"the engine '{name}' is in use; choose another one first with `mgr engine use NAME`, or none with "
                f"`mgr engine use {AUTO}`"
            )
        if self._target(PREVIOUS) == name:
            (self.folder / PREVIOUS).unlink()
        (self.folder / name).rename(self._hidden(name))

    def _hidden(self, name: str, ending: str = "") -> Path:
        return self.folder / f".{name}-{secrets.token_hex(4)}{ending}"

    def _restore(self) -> None:
        """Puts back a version whose replacement did not get in place: the process was killed between two renames."""
        for path in self.folder.iterdir():
            replaced = _REPLACED.fullmatch(path.name)
            if replaced and not (place := self.folder / replaced[1]).exists():
                path.rename(place)

    def _sweep(self) -> None:
        """Deletes the folders that were moved aside, now or by a process that did not get to its end."""
        for path in self.folder.iterdir():
            if _HIDDEN.fullmatch(path.name) and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)

    def _leftovers(self) -> "Sequence[Path]":
        """The folders in `builds` that no cmake command line of a version names; also one that is being built in."""
        needed = {Path(argument) for entry in self.list() for argument in entry.record.configure}
        try:
            folders = [path for path in (self.folder / BUILDS).iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []
        return [path for path in folders if path not in needed and not path.is_symlink()]

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        """For one process at a time; what one left that was killed is put right before and after."""
        with self._failing(what):
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / _LOCK):
                self._restore()
                yield
                self._sweep()

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageFailed(
                f"cannot {what} engines in {self.folder}: {error.strerror or error}"
            ) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits for its turn: a change takes no longer than deleting a folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _delete(build: Path) -> None:
    """Deletes a folder of `builds`, unless something is being built in it."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(FileNotFoundError):  # no build ever began in it
            descriptor = os.open(build / BUILD_LOCK, os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        shutil.rmtree(build, ignore_errors=True)


def _bytes(folder: Path) -> int:
    """The size of all files below it; one that vanishes meanwhile has none."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _checked(name: str) -> str:
    """Raises InvalidRequest unless the name can be a version's: no way out of the folder, no name with a meaning."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise InvalidRequest(
            f"{name!r} cannot be the name of an engine; use letters, digits and . _ + - (at most 80), "
            f"and none of {', '.join(sorted(_RESERVED))}"
        )
    return name


def _runnable(program: Path) -> bool:
    return os.path.isfile(program) and os.access(program, os.X_OK)


def _parse(data: bytes) -> Record:
    """The record in an engine.json. Raises ValueError with what is wrong; keys that are not known are left out."""
    try:
        values = json.loads(data)
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(values, Mapping):
        raise ValueError("it is not an object")
    return Record(**{item.name: _field(values, item.name) for item in fields(Record)})


def _field(values: Mapping[str, Any], name: str) -> Any:
    value = values.get(name)
    match name:
        case "number":
            right = value is None or type(value) is int
        case "portable":
            right = isinstance(value, bool)
        case "architectures" | "configure":
            right = isinstance(value, list) and all(isinstance(item, str) for item in value)
            value = tuple(value or ()) if right else value
        case _:
            right = isinstance(value, str)
    if not right:
        raise ValueError(f"{name!r} is missing or of a wrong kind")
    return value
