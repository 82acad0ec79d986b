"""What `mgr pull` is pointed at, as the daemon can read it."""

import os
import stat
from pathlib import Path

from cli.errors import CliError

_PATH_STARTS = ("/", "./", "../", "~")
_HUB_STARTS = ("hf.co/", "huggingface.co/")


def absolute(text: str) -> str:
    """A path becomes a `file://` URL, because the daemon has another working directory; the rest stays.

    A path starts with `/`, `./`, `../` or `~`, or ends in `.gguf` and is no file of the hub; anything else is a
    model's name. Raises CliError with the reason when the path is not a file that the caller may read.
    """
    if not is_path(text):
        return text
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError:
        raise CliError(f'there is no such home folder as in "{text}"') from None
    problem = _problem(path)
    if problem:
        raise CliError(f"cannot pull '{text}': {problem}")
    return (path.parent.resolve() / path.name).as_uri()


def is_path(text: str) -> bool:
    if "://" in text or text.lower().startswith(_HUB_STARTS):
        return False
    return text.startswith(_PATH_STARTS) or text.lower().endswith(".gguf")


def _problem(path: Path) -> str:
    """Why the path is not a file to pull; empty where it is one."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return (error.strerror or "it cannot be read").lower()
    if stat.S_ISDIR(mode):
        return "is a directory"
    if not stat.S_ISREG(mode):
        return "is not a regular file"
    return "" if os.access(path, os.R_OK) else "permission denied"
