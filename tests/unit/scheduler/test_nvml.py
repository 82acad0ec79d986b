import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from daemon.scheduler.devices import MIB, Device
from daemon.scheduler.nvml import Card, Nvml, with_live

H200 = "NVIDIA H200"
OLD = "Tesla T4"


def device(id_: str, name: str = H200, unified: bool = False) -> Device:
    return Device(id_, name, 1000 * MIB, 900 * MIB, unified)


def cards(*names: str) -> list[Card]:
    """Card n has n MiB free and a UUID that begins with its number."""
    return [Card(name, f"GPU-{index}aaaaaaa-b", index * MIB) for index, name in enumerate(names)]


def free(devices: tuple[Device, ...]) -> list[int | None]:
    """MiB that are free now; None where the engine's number stayed."""
    return [one.free // MIB if one.live else None for one in devices]


def test_what_is_free_now() -> None:
    (found,) = with_live([device("CUDA0")], [Card(H200, "GPU-1", 5 * MIB)], {})
    assert found == replace(device("CUDA0"), free=5 * MIB, live=True)


def test_a_card_tells_no_more_than_the_engine_can_have() -> None:
    (found,) = with_live([device("CUDA0")], [Card(H200, "GPU-1", 2000 * MIB)], {})
    assert found.free == 1000 * MIB


def test_cards_of_one_name_are_in_order() -> None:
    devices = [device("CUDA0"), device("CUDA1"), device("CUDA2")]
    assert free(with_live(devices, cards(H200, H200, H200), {})) == [0, 1, 2]


def test_cards_of_several_names_are_found_in_any_order() -> None:
    """CUDA counts the fastest first, the driver by address."""
    devices = [device("CUDA0", H200), device("CUDA1", OLD), device("CUDA2", OLD)]
    assert free(with_live(devices, cards(OLD, H200, OLD), {})) == [1, 0, 2]


def test_vulkan_names_them_alike() -> None:
    assert free(with_live([device("Vulkan0")], cards(H200), {"CUDA_VISIBLE_DEVICES": ""})) == [0]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 2 , 1", [2, 1]),
        ("GPU-2aaa", [2]),
        ("GPU-1aaaaaaa-b,GPU-0", [1, 0]),
        ("0,-1,1", [0]),
        ("0,7", [0]),
    ],
)
def test_the_cards_that_are_visible(chosen: str, expected: list[int]) -> None:
    devices = [device(f"CUDA{index}") for index in range(len(expected))]
    environment = {"CUDA_VISIBLE_DEVICES": chosen}
    assert free(with_live(devices, cards(H200, H200, H200), environment)) == expected


def test_a_number_chooses_among_several_names_only_where_they_are_ordered() -> None:
    devices = [device("CUDA0", OLD)]
    there = cards(OLD, H200, OLD)
    assert free(with_live(devices, there, {"CUDA_VISIBLE_DEVICES": "2"})) == [None]
    assert free(
        with_live(devices, there, {"CUDA_VISIBLE_DEVICES": "2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    ) == [2]


def test_where_nothing_is_sure_the_engines_number_stays() -> None:
    assert free(with_live([device("CUDA0")], cards(H200, H200), {})) == [None]
    assert free(with_live([device("CUDA0")], [], {})) == [None]
    assert free(with_live([device("CUDA0", "NVIDIA H200 MIG 1g.18gb")], cards(H200), {})) == [None]
    assert free(with_live([device("CUDA0", "NVIDIA GB10", unified=True)], cards("NVIDIA GB10"), {})) == [None]


# ---- the library


class FakeLibrary(ModuleType):
    """What nvidia-ml-py has of it, with two cards of which the second shares the machine's memory."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801 - the library's name
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.opened = 0
        self.closed = 0
        self.broken = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.closed += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.broken:
            raise self.NVMLError("GPU is lost")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return H200

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if handle == 1:
            raise self.NVMLError_NotSupported("Not Supported")
        return SimpleNamespace(total=10, free=7, used=3)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_the_library_is_opened_once(library: FakeLibrary) -> None:
    nvml = Nvml()
    assert nvml.cards() == (Card(H200, "GPU-0", 7),)
    assert nvml.cards() == (Card(H200, "GPU-0", 7),)
    assert (library.opened, library.closed) == (1, 0)


def test_a_driver_that_is_not_there(library: FakeLibrary) -> None:
    library.broken = True
    with pytest.raises(OSError, match="Driver Not Loaded"):
        Nvml().cards()
    assert library.closed == 0


def test_a_driver_that_fails_is_asked_anew(library: FakeLibrary) -> None:
    nvml = Nvml()
    nvml.cards()
    library.broken = True
    with pytest.raises(OSError, match="GPU is lost"):
        nvml.cards()
    library.broken = False
    assert nvml.cards() == (Card(H200, "GPU-0", 7),)
    assert (library.opened, library.closed) == (2, 1)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(OSError, match="nvidia-ml-py is not installed"):
        Nvml().cards()
