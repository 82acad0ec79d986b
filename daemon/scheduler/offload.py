"""On which GPUs can a model lie, and with how many of its layers? Pure.

The more layers a place has on GPUs the better it is: all of them, on one GPU each or spread over all; then one layer
fewer each, for a model that is too large; the last is the machine's memory alone. GPUs that share the machine's memory
are used where there is no other, as the engine does it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemon.chat import LoadOptions
from daemon.errors import InvalidRequest
from daemon.runner.launch import Offload
from daemon.scheduler.devices import Device
from daemon.scheduler.memory import MIB, Division, Need
from daemon.scheduler.state import RAM, Amounts

# What a model needs with so many of its layers on GPUs, and a window of so many tokens for so many slots.
Divide = Callable[[int, int, int], Division]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a model may lie. `offload` is None where the engine knows of no GPU, `memory` the bytes of what its cache
    lies in."""

    offload: Offload | None
    memory: int
    _divide: Divide
    _devices: tuple[Device, ...] = ()

    @property
    def layers(self) -> int:
        """How many lie on GPUs."""
        return 0 if self.offload is None else self.offload.layers

    def takes(self, window: int, slots: int, cache: int) -> Amounts:
        """Bytes of the RAM and of each GPU; what lies on one without memory of its own is taken from both. `cache` are
        MiB: the store of earlier conversations counts in full, as it will be filled."""
        host, device = self._divide(self.layers, window, slots)
        ram = host.most - host.prompt_cache + min(host.prompt_cache, cache * MIB)
        parts = {one.id: self._part(device, one) for one in self._devices}
        return {RAM: ram + sum(parts[one.id] for one in self._devices if one.unified), **parts}

    def kv(self, window: int, slots: int) -> int:
        """Bytes of the caches of all slots, wherever they lie."""
        host, device = self._divide(self.layers, window, slots)
        return host.kv + device.kv

    def _part(self, need: Need, device: Device) -> int:
        """Layers are whole, so of several GPUs each may get one more than its share; each has its own of the rest."""
        if len(self._devices) == 1:
            return need.total
        divided = need.weights + need.kv + need.state
        share = divided * device.total // sum(one.total for one in self._devices)
        return share + divided // max(self.layers, 1) + need.total - divided


def sites(
    divide: Divide, layers: int, ram: int, devices: Sequence[Device], options: LoadOptions
) -> list[Site]:
    """The best first. `layers` are the model's, `ram` the bytes of the machine's memory in all, and `options` may say
    on which GPU, and how many layers. Raises InvalidRequest for a GPU that is not there."""
    usable = _usable(devices, options.main_gpu)
    if not usable:
        return [Site(None, ram, divide)]
    everything = layers + 1  # the output counts as one
    if options.gpu_layers is None:
        counts: Sequence[int] = range(everything, -1, -1)
    else:
        counts = [min(options.gpu_layers, everything)]
    found: list[Site] = []
    for count in counts:
        if count == 0:
            found.append(Site(Offload(0, everything, ()), ram, divide))
            continue
        if count == everything and len(usable) > 1:
            ordered = sorted(usable, key=lambda device: -device.total)
            found += [
                Site(Offload(count, everything, (one.id,)), one.total, divide, (one,)) for one in ordered
            ]
        shares = tuple(device.total // MIB for device in usable) if len(usable) > 1 else ()
        offload = Offload(count, everything, tuple(device.id for device in usable), shares)
        found.append(Site(offload, sum(device.total for device in usable), divide, usable))
    return found


def _usable(devices: Sequence[Device], chosen: int | None) -> tuple[Device, ...]:
    if chosen is not None and devices:
        if chosen >= len(devices):
            raise InvalidRequest(
                f"main_gpu is {chosen}, and there are {len(devices)} GPUs here, numbered from 0; choose one of them"
            )
        return (devices[chosen],)
    own = [device for device in devices if not device.unified] or devices
    return tuple(device for device in own if device.backend == own[0].backend)
