"""What `mgr pull` is pointed at, as the daemon can read it."""

from pathlib import Path

from cli.errors import CliError

_PATH_STARTS = ("/", "./", "../", "~")


def absolute(text: str) -> str:
    """A path becomes a `file://` URL, because the daemon has another working directory; the rest stays.

    A path starts with `/`, `./`, `../` or `~`, or is an existing `.gguf` file; anything else is a model's name.
    """
    if not is_path(text):
        return text
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError:
        raise CliError(f'there is no such home folder as in "{text}"') from None
    return (path.parent.resolve() / path.name).as_uri()


def is_path(text: str) -> bool:
    if "://" in text:
        return False
    return text.startswith(_PATH_STARTS) or (text.lower().endswith(".gguf") and Path(text).is_file())
