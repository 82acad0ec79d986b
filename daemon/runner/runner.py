"""One model in one engine process. The only place where its state changes (`_move`).

Callers say `ensure_ready` and `stop`, and never look at states to decide.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from daemon.chat import Done, Sink, TokenRequest
from daemon.errors import (
    EngineDied,
    EngineFailed,
    EngineGone,
    EngineHung,
    LoadFailed,
    MgrError,
    Misconfigured,
    OutOfMemory,
)
from daemon.runner import health, progress, strays
from daemon.runner.calls import Calls
from daemon.runner.endpoint import Endpoint, RunDirectory
from daemon.runner.engine import Engine, EngineFinder
from daemon.runner.launch import Launch, arguments, environment
from daemon.runner.output import classify, quote
from daemon.runner.process import Child, uninterrupted
from daemon.runner.progress import HANG_SECONDS, HangWatch
from daemon.runner.state import Event as Transition
from daemon.runner.state import Stage, State, after
from daemon.runner.upstream import Upstream

log = logging.getLogger("mgr.runner")


OnExit = Callable[[MgrError], None]

# After the last signal: the output of what the child left behind may be waited for.
_REAP_SECONDS = 4.0
# Between the moment an engine's connections break and the moment its exit is seen.
_DEATH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Running:
    """`watcher` reaps the child and gives its exit status; `hang` is what is known of its silences."""

    child: Child
    endpoint: Endpoint
    upstream: Upstream
    watcher: "asyncio.Task[int]"
    hang: HangWatch


class Runner(Calls):
    """Starts, watches, asks and stops one engine, once.

    `on_exit` is called when a ready engine dies by itself, or is ended because it hangs: with EngineFailed, or
    EngineHung. Limits are in seconds: without any progress of a load, and of a busy engine.
    """

    def __init__(
        self,
        launch: Launch,
        finder: EngineFinder,
        directory: RunDirectory,
        stall_limit: float,
        on_exit: OnExit,
        hang_limit: float = HANG_SECONDS,
    ) -> None:
        self.launch = launch
        self.engine: Engine | None = None
        self._finder = finder
        self._directory = directory
        self._stall_limit = stall_limit
        self._on_exit = on_exit
        self._hang_limit = hang_limit
        self._state = State.STOPPED
        self._running: _Running | None = None
        self._guard: asyncio.Task[None] | None = None
        self._hung = ""  # why it was ended

    def __repr__(self) -> str:
        return f"<Runner {self.launch.alias} {self._state} pid={self.pid}>"

    @property
    def pid(self) -> int | None:
        return self._running.child.pid if self._running else None

    @property
    def last_progress(self) -> float | None:
        """When a busy engine sent something last, or became busy (`time.monotonic`); None while it is not busy."""
        return self._running.upstream.last_progress if self._running else None

    @property
    def stage(self) -> Stage | None:
        """How far the end of the process has come; None while nothing ends it, and when it is gone."""
        if self._running is None:
            return None
        return self._running.child.stage or (Stage.DRAINING if self._state is State.STOPPING else None)

    def _move(self, event: Transition) -> None:
        before, self._state = self._state, after(self._state, event)
        log.info("%s: %s -> %s", self.launch.alias, before, self._state)

    # ---- start

    async def ensure_ready(self) -> None:
        """Starts the engine and returns when it answers. Call once. Raises LoadFailed.

        However it fails, and when it is cancelled, the process has been ended before it returns.
        """
        self._move(Transition.START)
        try:
            running = await self._spawn()
            await self._wait_until_healthy(running)
            self._move(Transition.HEALTHY)
        except BaseException as error:
            failure = self._explained(error) if isinstance(error, LoadFailed) else error
            await uninterrupted(self._end())
            raise failure from None

    async def _spawn(self) -> _Running:
        try:
            self._directory.check()
            endpoint = self._directory.endpoint()
            self.engine = await self._finder.find()
            known, cpu_only = self.engine.flags, self.engine.cpu_only
            command = [
                *self.engine.command,
                *arguments(self.launch, endpoint.socket, known, cpu_only=cpu_only),
            ]
            upstream = Upstream(endpoint, self._busy, self._lost)
            folder = self._directory.path
            child = await Child.spawn(
                command, environment(os.environ, endpoint.key, folder), folder, self.launch.alias
            )
        except Misconfigured as error:
            log.error("%s", error)
            raise LoadFailed("the daemon's run directory cannot be used; see mgr's log") from None
        except OSError as error:
            raise LoadFailed(f"the engine could not be started: {error.strerror}") from None
        log.info("%s: engine %s has pid %d", self.launch.alias, self.engine, child.pid)
        watcher = asyncio.create_task(self._watch(child, endpoint.key), name=f"exit of {self.launch.alias}")
        tells_progress = not (self.launch.embedding or self.launch.reranking)
        hang = HangWatch(self._hang_limit, streams=tells_progress)
        self._running = _Running(child, endpoint, upstream, watcher, hang)
        return self._running

    async def _wait_until_healthy(self, running: _Running) -> None:
        child = running.child

        def sample(status: int | None) -> health.Sample:
            return health.measure(child.pid, child.tail.total_bytes, status)

        ready = asyncio.create_task(
            health.wait_until_ready(running.upstream.health, sample, self._stall_limit),
            name=f"health of {self.launch.alias}",
        )
        try:
            await asyncio.wait({ready, running.watcher}, return_when=asyncio.FIRST_COMPLETED)
            if running.watcher.done():
                status = running.watcher.result()
                raise LoadFailed(f"the engine ended with {_described(status)} while it loaded")
            ready.result()
        finally:
            ready.cancel()

    def _explained(self, error: LoadFailed) -> LoadFailed:
        """The error with its cause, if the output tells one, and the engine's last lines."""
        lines = self._running.child.tail.lines() if self._running else []
        cause = classify(lines)
        if cause and cause.permanent and not self.launch.model.exists():
            return LoadFailed(f"the model '{self.launch.alias}' was deleted before it was loaded")
        reason = f"{cause.sentence}; {error.message}" if cause else error.message
        said = quote(lines)
        failure = OutOfMemory if cause and cause.memory else LoadFailed
        return failure(
            f"model '{self.launch.alias}' could not be loaded: {reason}"
            + (f". The engine's last lines:\n{said}" if said else ""),
            permanent=cause.permanent if cause else error.permanent,
        )

    # ---- run

    async def _watch(self, child: Child, key: str) -> int:
        """Reaps the child, whenever and however it ends."""
        status = await child.wait()
        await asyncio.to_thread(strays.end, child.pid, key)
        was_ready = self._state is State.READY
        self._move(Transition.EXITED)
        if was_ready:
            log.error("%s: the engine ended with %s", self.launch.alias, _described(status))
            killed = -status in (signal.SIGKILL, signal.SIGTERM)
            died = EngineDied(f"the engine ended with {_described(status)}", crashed=not killed)
            self._on_exit(EngineHung(self._hung) if self._hung else died)
            await self._release()
        return status

    def _busy(self) -> None:
        """Its first request in a while: it is watched until it has none. No timer runs while it is idle."""
        if self._running is not None and (self._guard is None or self._guard.done()):
            name = f"progress of {self.launch.alias}"
            self._guard = asyncio.create_task(self._end_if_it_hangs(self._running), name=name)

    async def _end_if_it_hangs(self, running: _Running) -> None:
        pid = running.child.pid
        if not await progress.hangs_while_busy(running.upstream, lambda: progress.measure(pid), running.hang):
            return
        self._hung = f"the engine sent nothing for {self._hang_limit:g} s and was ended; ask again"
        log.error("%s: process %d hangs, it is killed", self.launch.alias, pid)
        running.upstream.close(self._hung, hung=True)
        running.child.kill()
        await asyncio.wait({running.watcher}, timeout=_REAP_SECONDS)
        if not running.watcher.done():
            log.error("%s: process %d does not end; its place stays taken", self.launch.alias, pid)

    async def answer(self, request: TokenRequest, sink: Sink) -> Done:
        """Gives the pieces of one answer to `sink` and returns its end. Cancelling ends the engine's work on it.

        Raises EngineGone before the engine answered at all, EngineFailed, InvalidRequest or PromptTooLong.
        """
        return await self._ready().answer(request, sink)

    async def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self._ready().call(path, body)

    def _ready(self) -> Upstream:
        if self._running is None or self._state is not State.READY:
            raise EngineGone(f"model '{self.launch.alias}' has just been unloaded; ask again")
        return self._running.upstream

    async def _lost(self, silent: bool) -> None:
        """A request was broken off. If that is because the engine died, its exit has been told when this returns.

        One that is alive and does not listen (`silent`) is of no use, and is ended.
        """
        if self._running is not None and self._state is State.READY:
            if silent:
                self._running.child.kill()
            await asyncio.wait({self._running.watcher}, timeout=_REAP_SECONDS if silent else _DEATH_SECONDS)

    # ---- stop

    async def stop(self, reason: str) -> None:
        """Ends the engine: cuts its streams, then TERM, TERM, KILL, each with a bound. Does nothing if it is gone.

        Raises EngineFailed when the process does not go, not even by SIGKILL.
        """
        if self._running is not None:
            log.info("%s: stopping, %s", self.launch.alias, reason)
            await self._end(reason)

    async def _end(self, reason: str = "") -> None:
        """Leaves nothing, from any state."""
        running = self._running
        if running is None:
            if self._state is State.STARTING:
                self._move(Transition.EXITED)
            return
        if not running.watcher.done():
            if self._state is not State.STOPPING:
                self._move(Transition.STOP)
            running.upstream.close(reason)
            await running.child.stop()
            await asyncio.wait({running.watcher}, timeout=_REAP_SECONDS)
            if not running.watcher.done():
                raise EngineFailed(f"process {running.child.pid} of {self.launch.alias} does not end")
        await self._release()

    async def _release(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.upstream.close("")
            if self._guard is not None:
                self._guard.cancel()
            with contextlib.suppress(OSError):
                running.endpoint.remove()


def _described(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
