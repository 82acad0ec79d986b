"""Bytes over HTTP into the store, exactly as they are announced."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from daemon.errors import NotFound, PullFailed
from daemon.pull.threads import CHUNK, in_thread, pour
from daemon.store.blobs import Blobs, Digest, WrongSize

MAX_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}
_WORTH_A_RETRY = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts in seconds; `attempts` in all, `pause` seconds before the second one, doubled before each other."""

    connect: float = 10.0
    stall: float = 30.0
    attempts: int = 4
    pause: float = 0.5


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to fetch: `size` in bytes; `token` is sent to the origin of `url` and to no other."""

    url: str
    size: int
    digest: Digest
    token: str | None = None


class _Transient(PullFailed):
    """May go better the next time."""


async def fetch(
    file: RemoteFile, blobs: Blobs, on_bytes: Callable[[int], None], patience: Patience | None = None
) -> None:
    """Downloads one file into a blob. `on_bytes` is told the bytes of the present attempt.

    Raises PullFailed (ContentMismatch), NotFound, StorageFailed. May be cancelled at any point.
    """
    patience = patience or Patience()
    timeout = httpx.Timeout(patience.stall, connect=patience.connect)
    tls = await in_thread(httpx.create_ssl_context)
    async with httpx.AsyncClient(verify=tls, timeout=timeout, follow_redirects=False) as client:
        for attempt in range(patience.attempts):
            try:
                return await _attempt(client, file, blobs, on_bytes)
            except (_Transient, WrongSize) as error:
                if attempt + 1 == patience.attempts or _too_long(error):
                    raise
            await asyncio.sleep(patience.pause * 2**attempt)
    raise AssertionError("patience for no attempt at all")


def _too_long(error: PullFailed) -> bool:
    """A longer body is another file, not a broken connection."""
    return isinstance(error, WrongSize) and error.got > error.expected


async def _attempt(
    client: httpx.AsyncClient, file: RemoteFile, blobs: Blobs, on_bytes: Callable[[int], None]
) -> None:
    host = httpx.URL(file.url).host
    try:
        async with _final_response(client, file) as response:
            _check(response, file)
            await pour(response.aiter_raw(CHUNK), blobs, file.size, file.digest, on_bytes)
    except httpx.TimeoutException as error:
        raise _Transient(f"{host} sent nothing for too long; try again") from error
    except httpx.TransportError as error:
        raise _Transient(f"the connection to {host} failed; check the network and try again") from error


@asynccontextmanager
async def _final_response(client: httpx.AsyncClient, file: RemoteFile) -> AsyncIterator[httpx.Response]:
    """The answer after at most MAX_REDIRECTS redirects. The token goes to the hub's own origin only."""
    start = url = httpx.URL(file.url)
    for _ in range(MAX_REDIRECTS + 1):
        headers = {"Accept-Encoding": "identity"}
        if file.token is not None and _origin(url) == _origin(start):
            headers["Authorization"] = f"Bearer {file.token}"
        async with client.stream("GET", url, headers=headers) as response:
            if response.status_code not in _REDIRECTS:
                yield response
                return
            url = _redirected(url, response.headers.get("location", ""))
    raise PullFailed(f"{start.host} redirects more than {MAX_REDIRECTS} times")


def _redirected(url: httpx.URL, location: str) -> httpx.URL:
    target = url.join(location)
    downgrade = url.scheme == "https" and target.scheme != "https"
    if (
        not location
        or target.scheme not in {"http", "https"}
        or not target.host
        or target.userinfo
        or downgrade
    ):
        raise PullFailed(f"{url.host} redirects to an address that is not followed")
    return target


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _check(response: httpx.Response, file: RemoteFile) -> None:
    """Refuses, before the first byte, what cannot be the file."""
    host, status = response.url.host, response.status_code
    if status in _WORTH_A_RETRY:
        raise _Transient(f"{host} answered {status}; try again later")
    if status in {401, 403}:
        raise PullFailed(
            f"{host} refuses access ({status}); check the token in HF_TOKEN and the model's terms"
        )
    if status in {404, 410}:
        raise NotFound(f"the file was not found at {host} ({status})")
    if status != 200:
        raise PullFailed(f"{host} answered {status}, which is not a file")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise PullFailed(f"{host} sent the file in a content encoding that was not asked for")
    length = response.headers.get("content-length")
    if length is not None and length.isdecimal() and int(length) != file.size:
        raise WrongSize(file.size, int(length))
