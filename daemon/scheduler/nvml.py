"""The memory that is free now on NVIDIA's GPUs, from the driver's library by way of nvidia-ml-py."""

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from daemon.scheduler.devices import Device


@dataclass(frozen=True, slots=True)
class Card:
    """`uuid` is like "GPU-8f3c1a2b-…"; `free` in bytes."""

    name: str
    uuid: str
    free: int


class Nvml:
    """Asks the library, which stays open: opening it wakes the driver, and can take seconds."""

    def __init__(self) -> None:
        self._library: Any = None

    def cards(self) -> tuple[Card, ...]:
        """All that this process may see, ordered by PCI bus; without those that do not tell their memory. Blocks.

        Raises OSError with what is wrong where the library is missing or fails; the next call opens it anew.
        """
        try:
            library: Any = importlib.import_module("pynvml")
        except ImportError as error:
            raise OSError("nvidia-ml-py is not installed") from error
        try:
            if self._library is None:
                library.nvmlInit()
                self._library = library
            return tuple(_cards(library))
        except library.NVMLError as error:
            if self._library is not None:
                self._library = None
                with contextlib.suppress(library.NVMLError):
                    library.nvmlShutdown()
            raise OSError(str(error)) from error


def _cards(library: Any) -> Iterator[Card]:
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        with contextlib.suppress(library.NVMLError_NotSupported):  # one that shares the machine's memory
            free = library.nvmlDeviceGetMemoryInfo(handle).free
            yield Card(library.nvmlDeviceGetName(handle), library.nvmlDeviceGetUUID(handle), free)


def with_live(
    devices: Sequence[Device], cards: Sequence[Card], environment: Mapping[str, str]
) -> tuple[Device, ...]:
    """The devices, with what is free now on those that are surely one of the cards.

    An engine lists no address, so they are matched by name, and those of one name by their order. `environment` is
    the engine's, in which CUDA_VISIBLE_DEVICES may choose. Where the numbers of a name differ, nothing is sure.
    """
    found: dict[str, int] = {}
    for backend, name in {(device.backend, device.name) for device in devices if not device.unified}:
        same = [device for device in devices if (device.backend, device.name) == (backend, name)]
        visible = _visible(cards, environment) if backend == "CUDA" else cards
        of_name = [card for card in visible if card.name == name]
        if len(same) == len(of_name):
            found |= {device.id: card.free for device, card in zip(same, of_name, strict=True)}
    return tuple(
        replace(device, free=min(found[device.id], device.total), live=True) if device.id in found else device
        for device in devices
    )


def _visible(cards: Sequence[Card], environment: Mapping[str, str]) -> list[Card]:
    """What CUDA_VISIBLE_DEVICES leaves, in its order: numbers, or the beginnings of UUIDs, up to the first that is
    neither (CUDA C++ Programming Guide, "CUDA Environment Variables")."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(cards)
    ordered = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({card.name for card in cards}) == 1
    visible = []
    for entry in (entry.strip() for entry in chosen.split(",")):
        if entry.isdecimal() and not ordered:  # numbered by speed, which nothing here tells
            return list(cards)
        if entry.isdecimal():
            matching = list(cards[int(entry) : int(entry) + 1])
        else:
            matching = [card for card in cards if entry and card.uuid.startswith(entry)]
        if len(matching) != 1:
            break
        visible += matching
    return visible
