"""The two streams. Standard output carries what was asked for, standard error the rest.

Progress and notes are for a person at a terminal and are left out elsewhere. No escape sequence reaches a stream
that is not a terminal, and none that a server or a model wrote reaches one that is.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from cli.errors import CliError

_COLUMN_GAP = "    "
_REPLACED = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_REPLACED[ord("\r")] = ""


def printable(text: str) -> str:
    """The text with every control character replaced, except line feeds and tabs."""
    return text.translate(_REPLACED)


def interactive() -> bool:
    """Whether a person types and reads."""
    return _is_terminal(sys.stdin) and _is_terminal(sys.stdout)


def progress_wanted() -> bool:
    return _is_terminal(sys.stderr)


def write(text: str) -> None:
    """Text to standard output, at once. To a file or pipe it goes as it is.

    Raises BrokenPipeError when its reader has gone, and CliError when it cannot be written otherwise.
    """
    if sys.stdout is None:
        raise CliError("standard output is closed")
    try:
        sys.stdout.write(printable(text) if _is_terminal(sys.stdout) else text)
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
        raise
    except OSError as problem:
        silence(sys.stdout)
        raise CliError(f"cannot write the output: {problem.strerror}") from None


def line(text: str) -> None:
    write(f"{text}\n")


def note(text: str, end: str = "\n") -> None:
    """Something good to know, for a person."""
    if progress_wanted():
        announce(text, end)


def announce(text: str, end: str = "\n") -> None:
    """Something that must not go unseen: a program started, a download begun."""
    if sys.stderr is not None:
        sys.stderr.write(printable(text) + end)
        sys.stderr.flush()


def error(message: str) -> None:
    announce(f"Error: {message}")


def dump(value: Any) -> None:
    """JSON for programs."""
    line(json.dumps(value, indent=2, ensure_ascii=False))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    line(aligned([headers, *rows]))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, four spaces apart, without trailing space."""
    clean = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    return "\n".join(
        _COLUMN_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in clean
    )


def silence(stream: TextIO | None) -> None:
    """Sends what is still buffered nowhere: its reader has gone, and the interpreter flushes again at exit."""
    if stream is None:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def prepare() -> None:
    """A character that the terminal's encoding lacks is replaced instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()
