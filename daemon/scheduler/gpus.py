"""How much of the GPUs' memory is there for models? Pure.

Other programs have what is neither free nor taken by a model of ours. That changes seldom, and is looked at while no
model comes or goes; what our models have follows from their plans at any time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from daemon.scheduler.devices import MIB, Device
from daemon.scheduler.state import Amounts

# What stays free on each, for what an estimate misses.
_RESERVE = 1 / 20
_MOST_RESERVED = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Gpus:
    """`lines` are the engine's list, `foreign` the bytes that others have of each device, `seen_at` monotonic
    seconds."""

    lines: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    foreign: Amounts = field(default_factory=dict)
    seen_at: float = float("-inf")

    @classmethod
    def seen(cls, lines: tuple[str, ...], devices: Sequence[Device], taken: Amounts, now: float) -> "Gpus":
        """`taken` is what our models have of each device now."""
        return cls(lines, tuple(devices), {device.id: _foreign(device, taken) for device in devices}, now)

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        return tuple((device.id, device.total) for device in self.devices)

    def used(self, device: Device | None) -> int | None:
        """Bytes of a device that are ours, as it is now; None where that cannot be told."""
        if device is None or not device.live or device.unified or device.id not in self.foreign:
            return None
        return device.total - device.free - self.foreign[device.id]

    def capacity(self) -> Amounts:
        """Bytes for models, in all."""
        return {
            device.id: max(device.total - self.foreign[device.id] - _reserve(device), 0)
            for device in self.devices
        }


def _foreign(device: Device, taken: Amounts) -> int:
    if device.unified:
        return 0  # it is the machine's memory, which is counted as such
    # A number that is as old as the engine's list is from before any model was loaded.
    ours = taken.get(device.id, 0) if device.live else 0
    return max(device.total - device.free - ours, 0)


def _reserve(device: Device) -> int:
    return min(int(device.total * _RESERVE), _MOST_RESERVED)
