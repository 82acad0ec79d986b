"""Asks this machine which memory there is now."""

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from daemon.scheduler import cgroup
from daemon.scheduler.devices import Device, Memory, Pool, listed
from daemon.scheduler.nvml import Card, Nvml, with_live

log = logging.getLogger("mgr.scheduler")

# A driver that sleeps takes seconds to open; one that hangs must not hold up a load for long.
CARD_SECONDS = 5.0

_KIB = re.compile(r"^(\w+): +(\d+) kB$", re.MULTILINE)


class Machine:
    """Never raises: what cannot be read is logged once and left out. Belongs to one event loop."""

    def __init__(
        self,
        environment: Mapping[str, str],
        cards: Callable[[], Sequence[Card]] | None = None,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        card_seconds: float = CARD_SECONDS,
    ) -> None:
        """`environment` is the engines'; `cards` asks NVIDIA's driver, and may block; the rest is for tests."""
        self._environment = environment
        self._ask_driver = cards or Nvml().cards
        self._proc = proc
        self._cgroups = cgroups
        self._card_seconds = card_seconds
        self._asking: asyncio.Future[Sequence[Card]] | None = None
        self._late = False
        self._logged: set[str] = set()

    async def memory(self, lines: Iterable[str]) -> Memory:
        """What there is for an engine that lists its devices in `lines`: `Engine.devices`, or all the lines that its
        `--list-devices` prints. At once where there is no GPU of NVIDIA's, within CARD_SECONDS where there is."""
        devices = listed(lines)
        if any(map(_is_nvidia, devices)):
            devices = with_live(devices, await self._cards(), self._environment)
        ram = self.ram()
        return Memory(ram, tuple(_shared(device, ram) for device in devices))

    def ram(self) -> Pool | None:
        """The machine's, or what its tightest control group leaves. At once: a few small files of the kernel."""
        try:
            machine = self._machine_ram()
        except (OSError, ValueError, RuntimeError, psutil.Error) as error:
            self._log("the machine's memory", error)
            return None
        pools = [machine]
        try:
            pools += cgroup.pools(self._proc, self._cgroups, machine.total)
        except (OSError, ValueError) as error:
            self._log("the control group of this process", error)
        return Pool(min(pool.total for pool in pools), min(pool.free for pool in pools))

    def _machine_ram(self) -> Pool:
        try:
            return _meminfo((self._proc / "meminfo").read_text(encoding="ascii"))
        except (FileNotFoundError, KeyError):  # not Linux, or one from before 2014
            there = psutil.virtual_memory()
            return Pool(there.total, there.available)

    async def _cards(self) -> Sequence[Card]:
        """Asks in a thread that nobody has to wait for, since a driver can hang for ever. There is one such thread at
        a time, and once it was late nobody waits for it again."""
        asking = self._asking or self._ask()
        if not self._late:
            await asyncio.wait([asking], timeout=self._card_seconds)
        if asking.done():
            return asking.result()
        self._late = True
        self._log("the GPUs' memory", TimeoutError("the driver does not answer"))
        return ()

    def _ask(self) -> asyncio.Future[Sequence[Card]]:
        loop = asyncio.get_running_loop()
        asking: asyncio.Future[Sequence[Card]] = loop.create_future()

        def answered(cards: Sequence[Card]) -> None:
            self._asking, self._late = None, False
            asking.set_result(cards)

        def ask() -> None:
            cards: Sequence[Card] = ()
            try:
                cards = self._ask_driver()
            except Exception as error:  # behind it is a library in C, of any version
                self._log("the GPUs' memory", error)
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(answered, cards)

        self._asking = asking
        threading.Thread(target=ask, name="gpu memory", daemon=True).start()
        return asking

    def _log(self, what: str, error: Exception) -> None:
        if what not in self._logged:
            self._logged.add(what)
            log.warning("%s cannot be read, and is left out: %s", what, error)


def _meminfo(text: str) -> Pool:
    """Reads `/proc/meminfo` (proc_meminfo(5)), whose kB are 1,024 bytes. Raises KeyError."""
    kib = {name: int(value) for name, value in _KIB.findall(text)}
    free = kib["MemAvailable"] - cgroup.cache_in_use(kib["Mapped"], kib["Shmem"])
    return Pool(kib["MemTotal"] * 1024, max(free, 0) * 1024)


def _is_nvidia(device: Device) -> bool:
    return not device.unified and (device.backend == "CUDA" or "NVIDIA" in device.name)


def _shared(device: Device, ram: Pool | None) -> Device:
    """A GPU without memory of its own has no more than the machine, which is known as it is now."""
    if not device.unified or ram is None:
        return device
    return replace(device, free=min(device.total, ram.free), live=True)
