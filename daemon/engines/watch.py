"""What a running daemon knows of its engine without asking anybody: which one it uses, and whether a GPU idles."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from daemon.engines.gpus import Gpu, present
from daemon.errors import LoadFailed
from daemon.runner.engine import Engine, EngineFinder

log = logging.getLogger("mgr.engine")


# A build takes CUDA or Metal by itself, where its compiler is; the others it must be told.
_BUILDS = {"amd": "`mgr engine build --backend hip` (or vulkan)"}


def hint(gpus: Sequence[Gpu], engine: Engine) -> str:
    """One sentence where this machine has a GPU and the engine uses only the CPU, else ""."""
    if not gpus or not engine.cpu_only:
        return ""
    build = _BUILDS.get(gpus[0].vendor, "`mgr engine build`")
    return (
        f"this machine has a GPU ({gpus[0].name}), but the engine ({engine}) uses only the CPU; "
        f"{build} compiles one for it"
    )


class EngineWatch:
    def __init__(self, finder: EngineFinder, gpus: Callable[[], Sequence[Gpu]] = present) -> None:
        """`gpus` may block for seconds, and never raises."""
        self._finder = finder
        self._ask_gpus = gpus
        self._gpus: Sequence[Gpu] = ()

    async def look(self) -> None:
        """Finds the engine, so that the first load need not, and the GPUs; says in the log what it found."""
        try:
            engine = await self._finder.find()
        except LoadFailed as error:
            log.error("%s; no model can be loaded", error.message)
            return
        self._gpus = await _in_daemon_thread(self._ask_gpus)
        if advice := hint(self._gpus, engine):
            log.warning("%s", advice)

    async def engine(self) -> Engine:
        """The engine that the next load would use. Raises LoadFailed."""
        return await self._finder.find()

    def details(self) -> dict[str, Any] | None:
        """The engine that was found last, for `/api/version`; None before. `devices` is None where it does not tell,
        `hint` is "" where there is nothing to say."""
        engine = self._finder.found
        if engine is None:
            return None
        return {
            "kind": engine.kind,
            "version": engine.version,
            "devices": engine.devices,
            "hint": hint(self._gpus, engine),
        }


async def _in_daemon_thread(call: Callable[[], Sequence[Gpu]]) -> Sequence[Gpu]:
    """Like asyncio.to_thread, in a thread that no exit of the process waits for: a driver can hang."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Sequence[Gpu]] = loop.create_future()

    def tell(result: Sequence[Gpu]) -> None:
        if not done.done():
            done.set_result(result)

    def work() -> None:
        result = call()
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(tell, result)

    threading.Thread(target=work, name="gpus", daemon=True).start()
    return await done
