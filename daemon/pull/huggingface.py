"""The Hugging Face hub: which file of a repository is meant, and where its bytes are.

Only the look-up goes through huggingface-hub; the bytes are `transfer`'s. Its errors are translated here.
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
)

from daemon.errors import MgrError, NotFound, NotSupported, PullFailed
from daemon.pull.source import HubSource, check_file_name, quant_label
from daemon.pull.transfer import RemoteFile
from daemon.store.blobs import Digest

DEFAULT_QUANT = "Q4_K_M"

# The base of what the HTTP client raises that the hub's library has chosen, httpx or another.
_HTTP_ERROR: type[Exception] = huggingface_hub.errors.HTTPError  # type: ignore[attr-defined]

_TIMEOUT = 10.0
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_LISTED = 30

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file as the hub lists it; `size` in bytes and `sha256` only where it is kept in LFS."""

    name: str
    size: int | None = None
    sha256: str | None = None


async def resolve(source: HubSource, endpoint: str) -> RemoteFile:
    """The file that `source` means. Raises PullFailed, NotFound, NotSupported."""
    return await asyncio.to_thread(_resolve, source, endpoint.rstrip("/"))


def choose_file(source: HubSource, files: Iterable[RepoFile]) -> RepoFile:
    """The one file that `source` means. Without a quant that is DEFAULT_QUANT, or else the only model there is.

    Raises NotFound with the quantisations there are, NotSupported for a model in several parts.
    """
    models = [file for file in files if _is_model(file.name)]
    if source.file is not None:
        chosen = [file for file in models if file.name == source.file]
    elif source.quant is not None:
        chosen = [file for file in models if _matches(file.name, source.quant)]
    else:
        chosen = [file for file in models if _matches(file.name, DEFAULT_QUANT)] or models
    if chosen and all(_PART.search(file.name) for file in chosen):
        raise NotSupported(f"{source} is split into several files, which is not supported yet")
    if len(chosen) == 1:
        return chosen[0]
    raise NotFound(_not_one(source, chosen, models))


def _is_model(name: str) -> bool:
    base = name.rpartition("/")[2].lower()
    return base.endswith(".gguf") and "mmproj" not in base and "imatrix" not in base


def _matches(name: str, quant: str) -> bool:
    return quant_label(name) == quant.upper()


def _not_one(source: HubSource, chosen: Sequence[RepoFile], models: Sequence[RepoFile]) -> str:
    repo = f"hf.co/{source.user}/{source.repo}"
    if not models:
        return f"{repo} not usable: it has no GGUF model; look for a repository that has"
    labels = sorted({label for file in models if (label := quant_label(file.name))})
    if source.quant is not None and len(chosen) > 1:
        names = ", ".join(file.name for file in chosen[:_MAX_LISTED])
        return f"{source} means several files; name one as {repo}/<file>: {names}"
    if source.file is None and labels:
        what = "no quantisation was named" if source.quant is None else f"{source.quant} not found in {repo}"
        return f"{what}; write {repo}:<quant> with one of {', '.join(labels[:_MAX_LISTED])}"
    names = ", ".join(file.name for file in models[:_MAX_LISTED])
    return f"{source} not found; name one as {repo}/<file>: {names}"


def _resolve(source: HubSource, endpoint: str) -> RemoteFile:
    try:
        token = huggingface_hub.get_token()
        api = huggingface_hub.HfApi(endpoint=endpoint, token=token or False)
        info = api.model_info(f"{source.user}/{source.repo}", files_metadata=True, timeout=_TIMEOUT)
        listed = [
            RepoFile(file.rfilename, file.lfs.size, file.lfs.sha256) if file.lfs else RepoFile(file.rfilename)
            for file in info.siblings or []
        ]
    except (_HTTP_ERROR, OSError, ValueError, KeyError, TypeError) as error:
        raise _translated(error, source, endpoint) from error
    file = choose_file(source, listed)
    if not isinstance(file.size, int) or not isinstance(file.sha256, str):
        raise PullFailed(f"the hub gives no size and checksum for {file.name}, so it cannot be verified")
    revision = info.sha if info.sha and _COMMIT.fullmatch(info.sha) else "main"
    return RemoteFile(_url(source, endpoint, revision, file.name), file.size, _digest(file), token)


def _digest(file: RepoFile) -> Digest:
    try:
        return Digest(file.sha256 or "")
    except MgrError:
        raise PullFailed(f"the hub gives a checksum for {file.name} that is no sha256") from None


def _url(source: HubSource, endpoint: str, revision: str, name: str) -> str:
    """Every segment is encoded by itself, so that a file's name cannot lead to another repository."""
    segments = (source.user, source.repo, "resolve", revision, *check_file_name(name).split("/"))
    return "/".join([endpoint, *(quote(segment, safe="") for segment in segments)])


def _translated(error: Exception, source: HubSource, endpoint: str) -> MgrError:
    log.info("the hub did not resolve %s: %s", source, type(error).__name__)
    repo, host = f"hf.co/{source.user}/{source.repo}", urlsplit(endpoint).hostname
    if isinstance(error, GatedRepoError):
        return PullFailed(
            f"{repo} is gated: accept its terms on its page, then give the daemon a token of that account in HF_TOKEN"
        )
    if isinstance(error, RepositoryNotFoundError):
        return NotFound(
            f"{repo} not found on the hub; check the name, or give the daemon a token in HF_TOKEN if it is private"
        )
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status in {401, 403}:
            return PullFailed(f"the hub refuses access to {repo} ({status}); check the token in HF_TOKEN")
        return PullFailed(f"the hub answered {status} for {repo}; try again later")
    if isinstance(error, (_HTTP_ERROR, OSError)):
        return PullFailed(f"the hub at {host} cannot be reached; check the network and the proxy")
    return PullFailed(f"the hub at {host} gave an answer for {repo} that cannot be read")
