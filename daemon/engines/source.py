"""The engine's source: whether a folder holds it, which build it is, and which options its cmake files know."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from daemon.errors import InvalidRequest

SUBMODULE = Path(__file__).parents[2] / "native/llama.cpp"

# A clone without history cannot count its commits, and the number is that count.
_NUMBERS = {"0c1e57098bba43ac29e6e3b677cdceebdd22334f": 11312}
_SHORT = 9  # digits of a commit, as the engine prints it

_COMMIT = re.compile(r"[0-9A-Za-z]{1,40}")
_CMAKE_FILES = ("CMakeLists.txt", "ggml/CMakeLists.txt")
_DECLARED = re.compile(r"^[ \t]*(?:option|set)[ \t]*\([ \t]*([A-Z][A-Z0-9_]+)", re.MULTILINE)
_GIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Source:
    """`number` is None and `commit` "" where nothing tells; `knows` are the options that its cmake files declare.

    `revision` tells it from another source that was in the same folder: "" for a checkout of git, which gives new
    times to the files that it changes; what unpacks an archive keeps old ones, by which no compiler runs again.
    """

    folder: Path
    number: int | None
    commit: str
    knows: frozenset[str]
    revision: str = ""


def read(
    folder: Path | None, environment: Mapping[str, str], number: int | None = None, commit: str = ""
) -> Source:
    """The source in `folder`, None for the submodule. `number` and `commit` are believed where they are given.

    Raises InvalidRequest for a folder that is no source of the engine, and for a commit that can be none.
    """
    if commit and not _COMMIT.fullmatch(commit):
        raise InvalidRequest(f"{commit!r} is no commit; write it in letters and digits, like 0c1e570")
    place = checked(folder, SUBMODULE)
    full = _git(place, environment, "rev-parse", "HEAD")
    followed = full and number is None and not commit
    revision = "" if followed else f"{number} {commit} {(place / _CMAKE_FILES[0]).stat().st_ctime_ns}"
    if number is None:
        number = _NUMBERS.get(commit or full) or counted(
            _git(place, environment, "rev-parse", "--is-shallow-repository"),
            _git(place, environment, "rev-list", "--count", "HEAD"),
        )
    texts = (path.read_text("utf-8", "replace") for name in _CMAKE_FILES if (path := place / name).is_file())
    return Source(place, number, (commit or full)[:_SHORT], declared("\n".join(texts)), revision)


def checked(folder: Path | None, submodule: Path) -> Path:
    """The folder to build, resolved. Raises InvalidRequest with what to type."""
    place = (folder or submodule).expanduser().resolve()
    if (place / "CMakeLists.txt").is_file():
        return place
    if folder is not None:
        missing = "holds no CMakeLists.txt" if place.is_dir() else "is no folder"
        raise InvalidRequest(f"{place} {missing}, so it is no source of llama.cpp; name its top folder")
    if place.is_dir():
        raise InvalidRequest(
            f"{place} is empty; fetch it with: git -C {place.parents[1]} submodule update --init native/llama.cpp "
            "(or name another source with --source DIR)"
        )
    raise InvalidRequest("this mgr came without the engine's source; name a folder of it with --source DIR")


def declared(text: str) -> frozenset[str]:
    """The options and cache variables that cmake files declare, by name."""
    return frozenset(_DECLARED.findall(text))


def counted(shallow: str, count: str) -> int | None:
    """The build number from git's two answers; a clone without history counts wrongly."""
    return int(count) if shallow == "false" and count.isdigit() else None


def own_repository(folder: Path) -> dict[str, str]:
    """What keeps git, also when cmake calls it, from taking a repository around `folder` for the source's own."""
    return {"GIT_CEILING_DIRECTORIES": str(folder.parent)}


def _git(folder: Path, environment: Mapping[str, str], *arguments: str) -> str:
    """What git prints in that folder, "" where it fails or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", os.fspath(folder), *arguments],  # noqa: S607 - the user's own git
            env={**environment, **own_repository(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
