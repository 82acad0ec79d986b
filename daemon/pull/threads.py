"""Blocking work in threads, in pieces, so that it can be cancelled between them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import IO, ParamSpec, TypeVar

from daemon.store.blobs import Blobs, Digest

P = ParamSpec("P")
T = TypeVar("T")

CHUNK = 1024 * 1024


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like asyncio.to_thread, but when cancelled it returns only after the call has: nobody else then uses what the
    call uses. So the call must be short."""
    work = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        if not work.cancelled():
            work.exception()
        raise


async def chunks_of(stream: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := await in_thread(stream.read, CHUNK):
        yield chunk


async def pour(
    chunks: AsyncIterator[bytes],
    blobs: Blobs,
    size: int | None,
    digest: Digest | None,
    on_bytes: Callable[[int], None],
) -> Digest:
    """Writes one blob. `on_bytes` is told how many bytes there are; `size` and `digest` are checked if given.

    Raises ContentMismatch, StorageFailed; leaves nothing behind when it raises or is cancelled.
    """
    ingest = blobs.ingest(size, digest)
    try:
        await in_thread(ingest.open)
        async for chunk in chunks:
            await in_thread(ingest.write, chunk)
            on_bytes(ingest.written)
        return await in_thread(ingest.commit)
    finally:
        await in_thread(ingest.close)
