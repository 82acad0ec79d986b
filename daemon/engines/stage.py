"""Makes the folder of an installed version from a finished build folder."""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from daemon.engines.recipe import TARGETS

# libllama.so, libllama.so.0.5.0, libllama.0.dylib
_LIBRARY = re.compile(r".*\.(so(\.[\d.]+)?|dylib)")


def stage(build: Path, target: Path) -> None:
    """Copies the programs and their shared libraries from `build`/bin to `target`/bin; links stay links.

    `target` is made anew. Raises FileNotFoundError where a program was not built.
    """
    shutil.rmtree(target, ignore_errors=True)
    (target / "bin").mkdir(parents=True)
    libraries = sorted(path.name for path in (build / "bin").iterdir() if _LIBRARY.fullmatch(path.name))
    for name in (*TARGETS, *libraries):
        shutil.copy2(build / "bin" / name, target / "bin" / name, follow_symlinks=False)


def add_libraries(libraries: Iterable[Path], folder: Path) -> None:
    """Puts libraries of another package beside the programs, so that they stay when the package goes.

    Hard links take no room; where there can be none, the programs find the libraries at their own place.
    """
    for library in libraries:
        try:
            os.link(library, folder / library.name, follow_symlinks=False)
        except OSError:  # another file system, or another owner's file
            return


def make_links(names: dict[str, Path], folder: Path) -> None:
    """Makes `folder` anew with a symlink for each name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, path in names.items():
        (folder / name).symlink_to(path)
