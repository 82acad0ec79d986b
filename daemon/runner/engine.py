"""Finds an engine: a program with llama-server's command line and HTTP API.

Looked for in this order, and every place tried is reported: the configured path, what was built on this machine,
`llama-server` on PATH, the `xllamacpp` wheel run by `embedded.py`. Each search looks anew, so that a switch counts from
the next load on.
"""

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.errors import LoadFailed
from daemon.runner.launch import environment, not_taken
from daemon.runner.output import quote
from daemon.runner.process import output_of

log = logging.getLogger("mgr.engine")
# A command that asks engines says itself what came of it: where nobody takes the log, it does not go to the terminal.
logging.getLogger("mgr").addHandler(logging.NullHandler())

_EMBEDDED = Path(__file__).with_name("embedded.py")
_ASK_SECONDS = 60
# A driver that wakes a sleeping GPU takes seconds; one that hangs must not hold up the load for long.
_DEVICES_SECONDS = 20

DEVICE_FILES = Path("/dev")
_OF_GPUS = ("nvidia", "kfd", "dri", "dxg")  # NVIDIA's, AMD's, those that draw, WSL's

# What an engine is chosen by, besides its path.
CHOICES = ("auto", "built", "path", "wheel")

_OPTION = re.compile(r"(-{1,2}[A-Za-z][\w.-]*)(?: (?!-)[^\s,]+)?(?:, *|$| )")
_VERSION = re.compile(r"version:?\s*(.+)", re.IGNORECASE)
_NEW_VERSION = re.compile(r".*\(build (\d+), commit (\S+)\)")
_DEVICE = re.compile(r"\s+([\w.-]+: \S.*)")


@dataclass(frozen=True, slots=True)
class Engine:
    """`command` is what its arguments are appended to; `flags` are all that its help lists; `devices` those that it
    would use besides the CPU, None where it does not tell."""

    kind: str
    command: tuple[str, ...]
    version: str
    flags: frozenset[str]
    devices: tuple[str, ...] | None = None

    @property
    def cpu_only(self) -> bool:
        """Whether it is known to have nothing but the CPU."""
        return self.devices == ()

    @property
    def not_taken(self) -> list[str]:
        """The flags of mgr that it does not know in any spelling."""
        return not_taken(self.flags)

    def __str__(self) -> str:
        return f"{self.kind} {self.version}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine may be. `shown` says so without a path; `command` is None where nothing is."""

    kind: str
    shown: str
    command: tuple[str, ...] | None

    @property
    def logged(self) -> str:
        """With the path, for the log."""
        return f"{self.shown} ({self.command[-1]})" if self.command else self.shown


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one place: an engine, or the reason, without a path, why there is none."""

    place: Place
    engine: Engine | None
    reason: str = ""


class EngineFinder:
    """Finds the engine and reads its flags, once for each version of the file on disk."""

    def __init__(
        self,
        choice: str,
        built: Sequence[tuple[str, Path]],
        search_path: str,
        folder: Path,
        preferred: Callable[[], str] = lambda: "",
    ) -> None:
        """`choice` is auto, built, path, wheel or a file; `built` are where a build may lie, each with what it is
        called; `search_path` is PATH; `folder` is where an engine runs; `preferred` says which kind goes first where
        the choice is auto."""
        self._choice = choice
        self._built = built
        self._search_path = search_path
        self._folder = folder
        self._preferred = preferred
        self._known: dict[tuple[str, ...], Engine] = {}
        self._gpu_files = _gpu_files()
        self._turn = asyncio.Lock()  # one engine is asked at a time, and only once
        self.found: Engine | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What an engine sees that is asked something."""
        return environment(os.environ, "", self._folder)

    async def find(self) -> Engine:
        """The first engine there is; it is also kept in `found`.

        Raises LoadFailed with every place tried; where each is, is in the log.
        """
        tried: list[Finding] = []
        async with self._turn:
            self._forget_what_saw_no_gpu()
            for place in self.places():
                finding = await self._look(place)
                if finding.engine is not None:
                    self._tell(finding.engine, tried)
                    self.found = finding.engine
                    return finding.engine
                tried.append(finding)
        for finding in tried:
            log.warning("no engine: %s: %s", finding.place.logged, finding.reason)
        told = "; ".join(f"{finding.place.shown}: {finding.reason}" for finding in tried)
        raise LoadFailed(f"no engine was found; tried {told}", permanent=True)

    async def survey(self) -> list[Finding]:
        """What is at each place, in the order in which `find` goes through them."""
        async with self._turn:
            self._forget_what_saw_no_gpu()
            return [await self._look(place) for place in self.places()]

    def _tell(self, engine: Engine, tried: Sequence[Finding]) -> None:
        """Says in the log what is there and could not be used, and once which engine is used."""
        for finding in tried:
            if finding.place.command is not None:
                log.warning(
                    "%s cannot be used: %s; %s is used instead", finding.place.logged, finding.reason, engine
                )
        if engine != self.found:
            log.info("the engine is %s (%s)", engine, engine.command[-1])

    def places(self) -> list[Place]:
        kinds: dict[str, Callable[[], Iterator[Place]]] = {
            "built": self._built_places,
            "path": self._path_places,
            "wheel": self._wheel_places,
        }
        if self._choice in kinds:
            return list(kinds[self._choice]())
        if self._choice != "auto":
            path = Path(self._choice).expanduser().absolute()
            return [
                Place("configured", "the configured path", (str(path),) if os.path.isfile(path) else None)
            ]
        preferred = self._preferred()
        return [
            place for kind in sorted(kinds, key=lambda kind: kind != preferred) for place in kinds[kind]()
        ]

    def _built_places(self) -> Iterator[Place]:
        for shown, path in self._built:
            # Links are followed now: a switch later on must not reach a process that starts.
            yield Place("built", shown, (str(path.resolve()),) if os.path.isfile(path) else None)

    def _path_places(self) -> Iterator[Place]:
        found = shutil.which("llama-server", path=self._search_path)
        yield Place("path", "llama-server on PATH", (str(Path(found).absolute()),) if found else None)

    def _wheel_places(self) -> Iterator[Place]:
        there = importlib.util.find_spec("xllamacpp") is not None
        command = (sys.executable, "-I", str(_EMBEDDED)) if there else None
        yield Place("wheel", "the xllamacpp wheel", command)

    def _forget_what_saw_no_gpu(self) -> None:
        """An engine was perhaps asked before a GPU's driver was up: it is asked again once one has come or gone."""
        if (files := _gpu_files()) != self._gpu_files:
            self._gpu_files = files
            self._known = {key: engine for key, engine in self._known.items() if engine.devices}

    async def _look(self, place: Place) -> Finding:
        if place.command is None:
            return Finding(place, None, "not there")
        try:
            return Finding(place, await self._read(place.kind, place.command))
        except TimeoutError:
            reason = f"it did not say what it can do within {_ASK_SECONDS} s"
        except OSError as error:
            reason = error.strerror or "cannot be run"
        except ValueError as error:
            reason = str(error)
        return Finding(place, None, reason)

    async def _read(self, kind: str, command: tuple[str, ...]) -> Engine:
        key = (*command, *_marks(Path(command[-1])))
        if key not in self._known:
            flags = flags_in(await self._ask(command, "--help"))
            if "--model" not in flags:
                raise ValueError("its help does not look like llama-server's")
            version = (
                importlib.metadata.version("xllamacpp")
                if kind == "wheel"
                else version_in(await self._ask(command, "--version"))
            )
            self._known[key] = Engine(kind, command, version, flags, await self._devices(command, flags))
        return self._known[key]

    async def _devices(self, command: tuple[str, ...], flags: frozenset[str]) -> tuple[str, ...] | None:
        if "--list-devices" not in flags:
            return None
        try:
            return devices_in(await self._ask(command, "--list-devices", _DEVICES_SECONDS))
        except (TimeoutError, ValueError) as error:
            log.warning("%s does not list its devices: %s", command[-1], error)
            return None

    async def _ask(self, command: tuple[str, ...], flag: str, seconds: float = _ASK_SECONDS) -> str:
        status, lines = await output_of([*command, flag], self.environment, self._folder, seconds)
        if status != 0:
            raise ValueError(f"its {flag} ended with status {status}{_last(lines, command)}")
        return "\n".join(lines)


def _marks(program: Path) -> list[str]:
    """What changes when the program does. The libraries beside it count: llama-server can be a few kilobytes that
    load them. Raises OSError."""
    files = [os.stat(program), *(os.lstat(library) for library in sorted(program.parent.glob("lib*")))]
    return [f"{file.st_ino} {file.st_mtime_ns} {file.st_size}" for file in files]


def _gpu_files() -> frozenset[str]:
    """What drivers of GPUs make below /dev."""
    with contextlib.suppress(OSError):
        return frozenset(name for name in os.listdir(DEVICE_FILES) if name.startswith(_OF_GPUS))
    return frozenset()


def _last(lines: Sequence[str], command: tuple[str, ...]) -> str:
    """The last line of an engine that failed: a loader that misses a library says so in its only one. It is also told
    to clients, so there is no path in it; one with a space would outlive `quote`."""
    beside = f"{Path(command[-1]).parent}/"
    said = quote([line.replace(beside, "") for line in lines if line.strip()], 1)
    return f": {said}" if said else ""


def flags_in(text: str) -> frozenset[str]:
    """Every flag that a help lists: the words with dashes at the start of a line, not those in its explanations."""
    flags: set[str] = set()
    for line in text.splitlines():
        rest = line[2:] if line.startswith("  -") else line
        while match := _OPTION.match(rest):
            flags.add(match[1])
            rest = rest[match.end() :].lstrip(" ")
    return frozenset(flags)


def version_in(text: str) -> str:
    """ "version: 0.5.0-dev (build 11434, commit 0c1e570)" and the older "version: 11434 (0c1e570)" say
    b11434 (0c1e570); anything else is quoted as it is."""
    match = _VERSION.search(text)
    if match is None:
        return "unknown"
    found = match[1].strip()
    if new := _NEW_VERSION.fullmatch(found):
        return f"b{new[1]} ({new[2]})"
    return f"b{found}" if found[:1].isdigit() and "." not in found.split()[0] else found


def devices_in(text: str) -> tuple[str, ...]:
    """The devices that `--list-devices` names, each like "CUDA0: NVIDIA H200 (143167 MiB, 142000 MiB free)"."""
    _, _, listed = text.partition("Available devices:")
    return tuple(match[1] for line in listed.splitlines() if (match := _DEVICE.fullmatch(line)))
