"""The table of short names: the one that comes with mgr, overlaid by the user's own file."""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from daemon.errors import MgrError, Misconfigured
from daemon.names import ModelName
from daemon.pull.source import ShortName, parse_plain
from daemon.store.blobs import Digest

_KEYS = {"name", "sha256", "size", "sources"}


def load_shortnames(own: Path | None = None) -> dict[str, ShortName]:
    """Short names in lower case. `own` need not exist. Raises Misconfigured, with the file's name."""
    table = parse_shortnames(
        files("daemon.pull").joinpath("shortnames.toml").read_text("utf-8"), "shortnames.toml"
    )
    if own is not None:
        try:
            text = own.read_text("utf-8")
        except FileNotFoundError:
            return table
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(f"the short names in {own} cannot be read") from error
        table |= parse_shortnames(text, str(own))
    return table


def parse_shortnames(text: str, where: str) -> dict[str, ShortName]:
    """The entries of one file; `where` is its name for messages. Raises Misconfigured."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{where} is not TOML: {error}") from error
    return {key.lower(): _entry(key.lower(), value, where) for key, value in tables.items()}


def _entry(key: str, value: Any, where: str) -> ShortName:
    problem = _problem(value)
    if problem is None:
        try:
            return ShortName(
                key,
                ModelName.parse(value["name"]),
                Digest(value["sha256"]),
                value.get("size"),
                tuple(parse_plain(source) for source in value["sources"]),
            )
        except MgrError as error:
            problem = error.message
    raise Misconfigured(f"{where}: the short name [{key}] is wrong: {problem}")


def _problem(value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return "it is not a table"
    if unknown := sorted(set(value) - _KEYS):
        return f"it has the unknown key {unknown[0]!r}"
    if not isinstance(value.get("name"), str) or not isinstance(value.get("sha256"), str):
        return "it needs name and sha256, both text"
    size = value.get("size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        return "its size is not a number of bytes"
    sources = value.get("sources")
    if not isinstance(sources, list) or not sources or not all(isinstance(text, str) for text in sources):
        return "it needs sources, a list of texts"
    return None
