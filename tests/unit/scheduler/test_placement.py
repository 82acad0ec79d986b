"""In which ways a model can be loaded: the best first, and the one that takes the least last."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from daemon.chat import LoadOptions
from daemon.runner.launch import Offload
from daemon.scheduler.devices import Device
from daemon.scheduler.memory import MIB, Division, Need
from daemon.scheduler.offload import Site, sites
from daemon.scheduler.placement import Defaults, grown, launch, plans
from daemon.scheduler.state import ENGINES, RAM, Plan, Purpose, Weights

GIB = 1024 * MIB
AUTOMATIC, AUTO = Defaults(), LoadOptions()
WEIGHTS = Weights("a", Path("/a.gguf"), "a:latest", trained_window=131072)


def needs(layers: int, window: int, slots: int) -> Division:
    """A gigabyte of weights and 32 KiB of cache a token, over nine layers and the output."""
    kv = 32 * 1024 * window * slots
    host = Need(weights=GIB * (10 - layers) // 10, kv=kv * (10 - layers) // 10, prompt_cache=GIB)
    return Division(host, Need(weights=GIB * layers // 10, kv=kv * layers // 10))


def ways(
    window: int | None = None,
    defaults: Defaults = AUTOMATIC,
    ram: int = 64 * GIB,
    weights: Weights = WEIGHTS,
) -> list[tuple[int, int, int]]:
    """(window, slots, MiB for earlier conversations)"""
    found = plans(weights, window, defaults, [Site(None, ram, needs)])
    return [(plan.window, plan.slots, plan.cache) for plan in found]


def test_a_window_that_is_asked_for_is_given_with_fewer_slots_and_a_smaller_store_if_need_be() -> None:
    assert ways(10_000) == [
        (10_000, 4, 1024),
        (10_000, 3, 1024),
        (10_000, 2, 1024),
        (10_000, 1, 1024),
        (10_000, 1, 256),
        (10_000, 1, 0),
    ]
    assert ways(200_000)[0][0] == 131072  # it was not trained for more


def test_slots_that_are_set_are_kept() -> None:
    assert ways(512, Defaults(slots=2)) == [(512, 2, 1024), (512, 2, 256), (512, 2, 0)]


def test_a_window_that_is_set_is_the_default_and_a_request_goes_before_it() -> None:
    assert ways(None, Defaults(window=2048))[0] == (2048, 4, 1024)
    assert ways(512, Defaults(window=2048))[0] == (512, 4, 1024)


@pytest.mark.parametrize(
    ("ram", "window"), [(64 * GIB, 32768), (32 * GIB, 16384), (8 * GIB, 4096), (GIB, 4096)]
)
def test_the_default_window_follows_the_memory(ram: int, window: int) -> None:
    found = ways(ram=ram)
    assert found[0] == (window, 4, 1024)
    # The last resort is a quarter of the least default.
    assert found[-1] == (1024, 1, 0)


def test_each_plan_takes_less_than_the_one_before() -> None:
    made = plans(WEIGHTS, None, AUTOMATIC, [Site(None, 64 * GIB, needs)])
    assert all(one.takes[RAM] > other.takes[RAM] for one, other in pairwise(made))
    assert {plan.takes[ENGINES] for plan in made} == {1}
    assert made[0].takes[RAM] == GIB + 32 * 1024 * 32768 * 4 + GIB


def test_a_short_trained_window_is_the_default() -> None:
    short = Weights("a", Path("/a.gguf"), "a:latest", trained_window=512)
    assert ways(weights=short)[0][0] == ways(weights=short)[-1][0] == 512


def test_vectors_get_no_long_window_by_themselves() -> None:
    embeds = Weights("a", Path("/a.gguf"), "a", trained_window=131072, purpose=Purpose.EMBED)
    assert ways(weights=embeds)[0][0] == 4096


def test_without_any_knowledge_of_memory_there_is_one_plan() -> None:
    assert plans(WEIGHTS, None, AUTOMATIC, []) == (Plan(4096, 2, 1024, {ENGINES: 1}),)


GPU = Device("CUDA0", "NVIDIA H200", 16 * GIB, 16 * GIB)


def on_gpu(window: int | None, options: LoadOptions = AUTO, total: int = 16 * GIB) -> list[Plan]:
    return [
        *plans(WEIGHTS, window, AUTOMATIC, sites(needs, 9, 64 * GIB, [replace(GPU, total=total)], options))
    ]


def test_all_layers_on_a_gpu_come_before_fewer_and_the_machines_memory_comes_last() -> None:
    made = on_gpu(10_000)
    assert [(plan.layers, plan.slots, plan.cache) for plan in made[:6]] == [
        (10, 4, 1024), (10, 3, 1024), (10, 2, 1024), (10, 1, 1024), (10, 1, 256), (10, 1, 0)
    ]  # fmt: skip
    assert [(plan.layers, plan.slots, plan.cache) for plan in made[6:9]] == [
        (9, 1, 1024), (9, 1, 256), (9, 1, 0)
    ]  # fmt: skip
    assert [plan.layers for plan in made][-6:] == [0] * 6
    assert made[0].takes == {ENGINES: 1, RAM: GIB, "CUDA0": GIB + 32 * 1024 * 10_000 * 4}
    assert made[-1].takes == {ENGINES: 1, RAM: GIB + 32 * 1024 * 10_000}


def test_a_smaller_default_window_comes_before_fewer_layers_on_a_gpu() -> None:
    made = on_gpu(None)
    windows = [(plan.layers, plan.window) for plan in made]
    assert windows[0] == (10, 32768)  # its caches take a quarter of the GPU
    assert [pair for pair in dict.fromkeys(windows) if pair[0] > 7] == [
        (10, 32768), (10, 16384), (10, 8192), (10, 4096), (9, 4096), (8, 4096)
    ]  # fmt: skip
    assert windows[-1] == (0, 1024)
    assert on_gpu(None, total=8 * GIB)[0].window == 16384


def test_layers_that_are_asked_for_are_all_that_is_tried() -> None:
    assert {plan.layers for plan in on_gpu(512, LoadOptions(gpu_layers=4))} == {4}
    assert {plan.layers for plan in on_gpu(512, LoadOptions(gpu_layers=99))} == {10}
    [offload] = {plan.offload for plan in on_gpu(512, LoadOptions(gpu_layers=0))}
    assert offload == Offload(0, 10, ())


def test_windows_grow_to_powers_of_two() -> None:
    assert [grown(window) for window in (1, 2, 3, 1024, 1025, 6000)] == [1, 2, 4, 1024, 2048, 8192]


def test_how_an_engine_is_started() -> None:
    offload = Offload(10, 10, ("CUDA0",))
    made = launch(WEIGHTS, Plan(2048, 3, 256, {}, offload), LoadOptions(threads=2, mmap=False))
    assert (made.model, made.alias, made.window, made.slots) == (Path("/a.gguf"), "a:latest", 2048, 3)
    assert (made.cache_mib, made.threads, made.mmap, made.embedding) == (256, 2, False, False)
    assert made.offload == offload
