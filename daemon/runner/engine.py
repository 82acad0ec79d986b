"""Finds an engine: a program with llama-server's command line and HTTP API.

Looked for in this order, and every place tried is reported: the configured path, the build of `native/llama.cpp`,
`llama-server` on PATH, the `xllamacpp` wheel run by `embedded.py`.
"""

import asyncio
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.errors import LoadFailed
from daemon.runner.launch import environment
from daemon.runner.process import output_of

log = logging.getLogger("mgr.engine")

_EMBEDDED = Path(__file__).with_name("embedded.py")
_HELP_SECONDS = 60

# What an engine is chosen by, besides its path.
CHOICES = ("auto", "built", "path", "wheel")
_FLAG = re.compile(r"(?<![\w-])-{1,2}[A-Za-z][\w-]*")
_VERSION = re.compile(r"version:?\s*(.+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Engine:
    """`command` is what its arguments are appended to; `flags` are all that its help lists."""

    kind: str
    command: tuple[str, ...]
    version: str
    flags: frozenset[str]

    @property
    def cpu_only(self) -> bool:
        """Whether it is known to have no other backend, as the wheel."""
        return self.kind == "wheel"

    def __str__(self) -> str:
        return f"{self.kind} {self.version}"


@dataclass(frozen=True, slots=True)
class _Place:
    kind: str
    shown: str
    command: tuple[str, ...] | None


class EngineFinder:
    """Finds the engine and reads its flags, once for each version of the file on disk."""

    def __init__(self, choice: str, built: Sequence[Path], search_path: str, folder: Path) -> None:
        """`choice` is auto, built, path, wheel or a file; `built` are where a build may lie; `search_path` is PATH;
        `folder` is where an engine runs."""
        self._choice = choice
        self._built = built
        self._search_path = search_path
        self._folder = folder
        self._known: dict[tuple[str, int, int], Engine] = {}
        self._turn = asyncio.Lock()  # one engine is asked at a time, and only once

    async def find(self) -> Engine:
        """The first engine there is. Raises LoadFailed with every place tried; where each is, is in the log."""
        tried = []
        async with self._turn:
            for place in self._places():
                if place.command is None:
                    reason = "not there"
                else:
                    try:
                        return await self._read(place.kind, place.command)
                    except TimeoutError:
                        reason = f"its --help did not end in {_HELP_SECONDS} s"
                    except OSError as error:
                        reason = error.strerror or "cannot be run"
                    except ValueError as error:
                        reason = str(error)
                log.warning("no engine in %s (%s): %s", place.shown, place.command, reason)
                tried.append(f"{place.shown}: {reason}")
        raise LoadFailed(f"no engine was found; tried {'; '.join(tried)}", permanent=True)

    def _places(self) -> list[_Place]:
        choices: dict[str, Callable[[], list[_Place]]] = {
            "built": self._built_places,
            "path": self._path_places,
            "wheel": self._wheel_places,
        }
        if self._choice in choices:
            return choices[self._choice]()
        if self._choice != "auto":
            path = Path(self._choice).expanduser().absolute()
            return [_Place("configured", "the configured path", (str(path),) if path.is_file() else None)]
        return [place for places in choices.values() for place in places()]

    def _built_places(self) -> list[_Place]:
        shown = "the build of native/llama.cpp"
        return [_Place("built", shown, (str(path),) if path.is_file() else None) for path in self._built]

    def _path_places(self) -> list[_Place]:
        found = shutil.which("llama-server", path=self._search_path)
        return [_Place("path", "llama-server on PATH", (str(Path(found).absolute()),) if found else None)]

    def _wheel_places(self) -> list[_Place]:
        there = importlib.util.find_spec("xllamacpp") is not None
        command = (sys.executable, "-I", str(_EMBEDDED)) if there else None
        return [_Place("wheel", "the xllamacpp wheel", command)]

    async def _read(self, kind: str, command: tuple[str, ...]) -> Engine:
        found = os.stat(command[-1])
        key = (command[-1], found.st_mtime_ns, found.st_size)
        if key not in self._known:
            flags = frozenset(_FLAG.findall(await self._ask(command, "--help")))
            if "--model" not in flags:
                raise ValueError("its help does not look like llama-server's")
            version = (
                importlib.metadata.version("xllamacpp")
                if kind == "wheel"
                else _version(await self._ask(command, "--version"))
            )
            self._known[key] = Engine(kind, command, version, flags)
        return self._known[key]

    async def _ask(self, command: tuple[str, ...], flag: str) -> str:
        clean = environment(os.environ, "", self._folder)
        status, lines = await output_of([*command, flag], clean, self._folder, _HELP_SECONDS)
        if status != 0:
            raise ValueError(f"its {flag} ended with status {status}")
        return "\n".join(lines)


def _version(text: str) -> str:
    """ "version: 11434 (0c1e570)" says b11434 (0c1e570); anything else is quoted as it is."""
    match = _VERSION.search(text)
    if match is None:
        return "unknown"
    found = match[1].strip()
    return f"b{found}" if found[:1].isdigit() and "." not in found.split()[0] else found
