"""One model in one engine process. The only place where its state changes (`_move`).

Callers say `ensure_ready` and `stop`, and never look at states to decide.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

from daemon.chat import Event, TokenRequest
from daemon.errors import EngineFailed, LoadFailed, MgrError
from daemon.runner import health
from daemon.runner.endpoint import Endpoint, RunDirectory
from daemon.runner.engine import Engine, EngineFinder
from daemon.runner.launch import Launch, arguments, environment
from daemon.runner.output import classify, quote
from daemon.runner.process import Child
from daemon.runner.state import Event as Transition
from daemon.runner.state import State, after
from daemon.runner.upstream import Upstream

log = logging.getLogger("mgr.runner")


OnExit = Callable[[MgrError], None]


@dataclass(frozen=True, slots=True)
class _Running:
    child: Child
    endpoint: Endpoint
    upstream: Upstream
    watcher: "asyncio.Task[None]"


class Runner:
    """Starts, watches, asks and stops one engine. `on_exit` is called once when a ready engine dies by itself."""

    def __init__(
        self,
        launch: Launch,
        finder: EngineFinder,
        directory: RunDirectory,
        stall_limit: float,
        on_exit: OnExit,
    ) -> None:
        self.launch = launch
        self.engine: Engine | None = None
        self._finder = finder
        self._directory = directory
        self._stall_limit = stall_limit
        self._on_exit = on_exit
        self._state = State.STOPPED
        self._running: _Running | None = None
        self._failure: MgrError | None = None

    def __repr__(self) -> str:
        return f"<Runner {self.launch.alias} {self._state} pid={self.pid}>"

    @property
    def state(self) -> State:
        """A snapshot for status pages and tests."""
        return self._state

    @property
    def pid(self) -> int | None:
        return self._running.child.pid if self._running else None

    def _move(self, event: Transition) -> None:
        before, self._state = self._state, after(self._state, event)
        log.info("%s: %s -> %s", self.launch.alias, before, self._state)

    async def ensure_ready(self) -> None:
        """Starts the engine and returns when it answers. Call once. Raises LoadFailed; nothing is left then.

        A cancelled call leaves nothing either.
        """
        self._move(Transition.START)
        try:
            running = await self._spawn()
        except BaseException:
            self._move(Transition.EXITED)
            raise
        ready = asyncio.create_task(self._wait_until_healthy(running), name=f"health of {self.launch.alias}")
        try:
            await asyncio.wait({ready, running.watcher}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not running.watcher.done():
                ready.result()
                self._move(Transition.HEALTHY)
                return
            raise self._failure or LoadFailed("the engine ended before it was ready")
        except LoadFailed as error:
            failure = self._explained(error, running.child)
            await self._end(running)
            raise failure from None
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.create_task(self._end(running)))
            raise
        finally:
            ready.cancel()

    async def _spawn(self) -> _Running:
        self.engine = await asyncio.to_thread(self._finder.find)
        endpoint = self._directory.endpoint()
        known, cpu_only = self.engine.flags, self.engine.cpu_only
        command = [
            *self.engine.command,
            *arguments(self.launch, endpoint.socket, known, cpu_only=cpu_only),
        ]
        folder = self._directory.path
        try:
            child = await Child.spawn(
                command, environment(os.environ, endpoint.key, folder), folder, self.launch.alias
            )
        except OSError as error:
            raise LoadFailed(f"the engine could not be started: {error.strerror}") from None
        log.info("%s: engine %s has pid %d", self.launch.alias, self.engine, child.pid)
        watcher = asyncio.create_task(self._watch(child), name=f"exit of {self.launch.alias}")
        self._running = _Running(child, endpoint, Upstream(endpoint), watcher)
        return self._running

    async def _wait_until_healthy(self, running: _Running) -> None:
        child = running.child

        def sample(status: int | None) -> health.Sample:
            return health.measure(child.pid, child.tail.total_bytes, status)

        await health.wait_until_ready(running.upstream.health, sample, self._stall_limit)

    async def _watch(self, child: Child) -> None:
        """Reaps the child, whenever and however it ends."""
        status = await child.wait()
        before = self._state
        self._move(Transition.EXITED)
        if before is State.STARTING:
            self._failure = LoadFailed(f"the engine ended with {_described(status)} while it loaded")
        elif before is State.READY:
            log.error("%s: the engine ended with %s", self.launch.alias, _described(status))
            self._on_exit(EngineFailed(f"the engine ended with {_described(status)}"))
            await self._release()

    def _explained(self, error: LoadFailed, child: Child) -> LoadFailed:
        """The error with its cause, if the output tells one, and the engine's last lines."""
        lines = child.tail.lines()
        cause = classify(lines)
        reason = f"{cause.sentence}; {error.message}" if cause else error.message
        redactions = {
            str(self.launch.model): "<model>",
            str(self._directory.path): "<run>",
            str(Path(__file__).parent): "<engine>",
        }
        said = quote(lines, redactions)
        return LoadFailed(
            f"model '{self.launch.alias}' could not be loaded: {reason}"
            + (f". The engine's last lines:\n{said}" if said else ""),
            permanent=bool(cause and cause.permanent),
        )

    def answer(self, request: TokenRequest) -> AsyncGenerator[Event, None]:
        """The events of one answer. Raises EngineFailed, InvalidRequest or PromptTooLong when iterated."""
        if self._running is None or self._state is not State.READY:
            raise EngineFailed(f"model '{self.launch.alias}' has just been unloaded; ask again")
        return self._running.upstream.answer(request)

    async def stop(self, reason: str) -> None:
        """Ends the engine: cuts its streams, then TERM, TERM, KILL, each with a bound. Does nothing if it is gone."""
        if self._state is State.READY and self._running is not None:
            log.info("%s: stopping, %s", self.launch.alias, reason)
            await self._end(self._running)

    async def _end(self, running: _Running) -> None:
        if not running.watcher.done():
            self._move(Transition.STOP)
            await running.upstream.aclose()
            await running.child.stop()
            await running.watcher
        await self._release()

    async def _release(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await running.upstream.aclose()
            with contextlib.suppress(OSError):
                running.endpoint.remove()


def _described(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
