"""Where a model may lie: the best place first."""

import pytest

from daemon.chat import LoadOptions
from daemon.errors import InvalidRequest
from daemon.scheduler.devices import MIB, Device
from daemon.scheduler.memory import Division, Need
from daemon.scheduler.offload import Site, sites
from daemon.scheduler.state import RAM

GIB = 1024 * MIB
ANY = LoadOptions()
ONE = Device("CUDA0", "NVIDIA L4", 8 * GIB, 8 * GIB)
OTHER = Device("CUDA1", "NVIDIA H200", 24 * GIB, 24 * GIB)
SHARED = Device("Vulkan0", "AMD Radeon Graphics", 16 * GIB, 16 * GIB, unified=True)


def divide(layers: int, window: int, slots: int) -> Division:
    """Four layers and the output: 100 MiB of weights each, and 60 MiB to compute with on a GPU."""
    on_gpu = Need(weights=100 * layers * MIB, compute=60 * MIB) if layers else Need()
    return Division(Need(weights=100 * (5 - layers) * MIB, kv=window * slots, prompt_cache=GIB), on_gpu)


def found(*devices: Device, options: LoadOptions = ANY) -> list[Site]:
    return sites(divide, 4, 64 * GIB, devices, options)


def described(*devices: Device, options: LoadOptions = ANY) -> list[tuple[int, tuple[str, ...]]]:
    return [
        (site.layers, site.offload.devices if site.offload else ())
        for site in found(*devices, options=options)
    ]


def test_without_a_gpu_there_is_one_place_and_the_engine_is_told_nothing() -> None:
    [site] = found()
    assert (site.offload, site.layers, site.memory) == (None, 0, 64 * GIB)
    assert site.takes(10, 2, 1) == {RAM: 500 * MIB + 20 + MIB}
    assert site.kv(10, 2) == 20


def test_with_one_gpu_the_more_layers_it_has_the_better() -> None:
    assert described(ONE) == [(count, ("CUDA0",)) for count in (5, 4, 3, 2, 1)] + [(0, ())]
    whole = found(ONE)[0]
    assert whole.takes(10, 2, 1) == {RAM: 20 + MIB, "CUDA0": 560 * MIB}
    assert (whole.memory, whole.offload and whole.offload.shares) == (8 * GIB, ())


def test_of_several_one_alone_is_tried_first_the_largest_before_the_others() -> None:
    both = ("CUDA0", "CUDA1")
    assert described(ONE, OTHER)[:4] == [(5, ("CUDA1",)), (5, ("CUDA0",)), (5, both), (4, both)]


def test_several_divide_the_layers_by_their_size_and_each_may_get_one_more() -> None:
    spread = found(ONE, OTHER)[2]
    assert spread.offload is not None
    assert spread.offload.shares == (8 * 1024, 24 * 1024)
    assert spread.takes(1, 1, 0) == {
        RAM: 1,
        "CUDA0": (125 + 100 + 60) * MIB,
        "CUDA1": (375 + 100 + 60) * MIB,
    }


def test_memory_that_is_shared_is_taken_from_both_and_used_where_there_is_no_other() -> None:
    assert found(SHARED)[0].takes(1, 1, 0) == {RAM: 1 + 560 * MIB, "Vulkan0": 560 * MIB}
    assert described(SHARED, ONE)[0] == (5, ("CUDA0",))


def test_gpus_of_two_makers_are_not_mixed() -> None:
    other = Device("Vulkan0", "Intel Arc", 16 * GIB, 16 * GIB)
    assert {devices for _, devices in described(ONE, other)} == {("CUDA0",), ()}


def test_a_gpu_and_layers_that_are_asked_for() -> None:
    asked = LoadOptions(main_gpu=1, gpu_layers=2)
    assert described(ONE, OTHER, options=asked) == [(2, ("CUDA1",))]
    assert described(options=asked) == [(0, ())]
    with pytest.raises(InvalidRequest, match="main_gpu is 2, and there are 2 GPUs here, numbered from 0"):
        found(ONE, OTHER, options=LoadOptions(main_gpu=2))
