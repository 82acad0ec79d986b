"""How much of the GPUs there is for models."""

from dataclasses import replace

from daemon.scheduler.devices import MIB, Device
from daemon.scheduler.gpus import Gpus

GIB = 1024 * MIB
CARD = Device("CUDA0", "NVIDIA L4", 10 * GIB, 10 * GIB, live=True)
RESERVE = GIB // 2


def capacity(device: Device, taken: int = 0) -> int:
    return Gpus.seen(("line",), [device], {device.id: taken}, 1.0).capacity()[device.id]


def test_all_but_a_twentieth_of_an_empty_one() -> None:
    assert capacity(CARD) == 10 * GIB - RESERVE
    large = replace(CARD, total=100 * GIB, free=100 * GIB)
    assert capacity(large) == 99 * GIB  # a gigabyte is enough


def test_what_others_have_is_theirs() -> None:
    assert capacity(replace(CARD, free=7 * GIB)) == 7 * GIB - RESERVE
    assert capacity(replace(CARD, free=0)) == 0


def test_what_our_models_have_is_not_others() -> None:
    assert capacity(replace(CARD, free=4 * GIB), taken=6 * GIB) == 10 * GIB - RESERVE
    assert capacity(replace(CARD, free=4 * GIB), taken=5 * GIB) == 9 * GIB - RESERVE
    assert capacity(replace(CARD, free=4 * GIB), taken=8 * GIB) == 10 * GIB - RESERVE  # estimated too high


def test_an_old_number_is_from_before_our_models() -> None:
    assert capacity(replace(CARD, free=7 * GIB, live=False), taken=3 * GIB) == 7 * GIB - RESERVE


def test_memory_of_the_machine_is_counted_there() -> None:
    assert capacity(replace(CARD, free=GIB, unified=True)) == 10 * GIB - RESERVE
