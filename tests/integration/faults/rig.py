"""A daemon for fault tests: it has secrets to keep, and everything that comes from it can be told by a mark."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from daemon.names import ModelName
from tests.fakes.daemon import GUARD_SECONDS, DaemonProcess, ScriptedDaemon
from tests.fakes.dialects import Way

API_KEY = "key-that-nobody-may-read"
HUB_TOKEN = "hf_token_that_nobody_may_read"
SECRETS = (API_KEY, HUB_TOKEN)

BYSTANDER = "bystander"
WARM = "warm"

DEFAULTS = {"KEEP_ALIVE": "1h", "MAX_LOADED_MODELS": 8}


class MarkedDaemon(DaemonProcess):
    """`mark` is its TMPDIR, a setting that engines and all that they start inherit. `extra` is more environment.

    Models, with their tags: `bystander` is the one which nothing may happen to; `warm` is loaded once and let go, so
    that what is made only once is there.
    """

    bystander: str
    warm: str

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        keys = folder / "keys"
        keys.write_text(f"{API_KEY}\n")
        super().__init__(folder, {**DEFAULTS, "API_KEYS_FILE": keys, **(settings or {})})
        self.headers = {"Authorization": f"Bearer {API_KEY}"}
        self.mark = Path(tempfile.mkdtemp(prefix="f-"))  # short, as paths of sockets are bounded
        self.extra: dict[str, str] = {}

    def briefly(self, way: Way) -> dict[str, Any]:
        """What a request says so that its answer is short and always the same."""
        return {}

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "TMPDIR": str(self.mark), "HF_TOKEN": HUB_TOKEN, **self.extra}

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def marked(self) -> Iterator[psutil.Process]:
        """The processes that come from this daemon and have not ended, itself included."""
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR") == str(self.mark):
                    yield process
            except psutil.Error:  # it has just ended, is a zombie or another user's
                continue

    def strangers(self) -> list[psutil.Process]:
        """Those that are neither the daemon, nor what started it, nor an engine that it shows."""
        known = {self.pid, self.process.pid if self.process else 0}
        shown = {entry["pid"] for entry in self.loaded()} if self.running else set()
        return [each for each in self.marked() if each.pid not in known and _own_pid(each.pid) not in shown]

    def engine_of(self, model: str) -> int:
        """The process of the engine that answers for a model; a name is written without its tag `latest`."""
        name = str(ModelName.parse(model))
        [pid] = [entry["pid"] for entry in self.loaded() if entry["name"] == name]
        assert isinstance(pid, int)
        return pid

    def discard(self) -> None:
        """Ends it and all that it left, as a fallen test may leave anything."""
        try:
            self.stop()
        finally:
            for process in [*self.marked()]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            shutil.rmtree(self.mark, ignore_errors=True)


class FaultDaemon(MarkedDaemon, ScriptedDaemon):
    """With the scripted engine and tiny models."""

    bystander = f"{BYSTANDER}:latest"
    warm = f"{WARM}:latest"

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(folder, settings)
        self.model(BYSTANDER, WARM)


@contextmanager
def ended(daemons: Sequence[MarkedDaemon]) -> Iterator[None]:
    """Afterwards ends these daemons and looks for what they left."""
    try:
        yield
        for daemon in daemons:
            was_running = daemon.running
            assert daemon.stop() in ((0,) if was_running else (0, -9))
            assert [*daemon.marked()] == []
    finally:
        for daemon in daemons:
            daemon.discard()


def _own_pid(pid: int) -> int | None:
    """What a process calls itself: another number than ours where it has a namespace of its own."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    return int(next(line for line in status.splitlines() if line.startswith("NSpid")).split()[-1])


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def until(condition: Callable[[], bool], otherwise: Callable[[], str] | str) -> None:
    """Waits until `condition()` is true; the guard is generous. Fails with what `otherwise` says."""
    try:
        async with asyncio.timeout(GUARD_SECONDS / 2):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(otherwise if isinstance(otherwise, str) else otherwise()) from None
