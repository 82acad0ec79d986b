"""In which ways a model can be loaded: the best first, and the one that takes the least last."""

from itertools import pairwise
from pathlib import Path

import pytest

from daemon.chat import LoadOptions
from daemon.scheduler.memory import MIB, Need
from daemon.scheduler.placement import Defaults, grown, launch, plans, taken
from daemon.scheduler.state import ENGINES, RAM, Plan, Purpose, Weights

GIB = 1024 * MIB
AUTOMATIC = Defaults()
WEIGHTS = Weights("a", Path("/a.gguf"), "a:latest", trained_window=131072)


def needs(window: int, slots: int) -> Need:
    """A gigabyte of weights, 32 KiB of cache a token."""
    return Need(weights=GIB, kv=32 * 1024 * window * slots, prompt_cache=GIB)


def ways(
    window: int | None = None,
    defaults: Defaults = AUTOMATIC,
    ram: int = 64 * GIB,
    weights: Weights = WEIGHTS,
) -> list[tuple[int, int, int]]:
    """(window, slots, MiB for earlier conversations)"""
    return [(plan.window, plan.slots, plan.cache) for plan in plans(weights, window, defaults, needs, ram)]


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
    made = plans(WEIGHTS, None, AUTOMATIC, needs, 64 * GIB)
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
    for known, ram in ((None, GIB), (needs, None)):
        assert plans(WEIGHTS, None, AUTOMATIC, known, ram) == (Plan(4096, 2, 1024, {ENGINES: 1}),)


def test_the_store_of_conversations_counts_as_far_as_it_is_used() -> None:
    assert taken(Need(weights=5, prompt_cache=GIB, checkpoints=3), 256) == 8 + 256 * MIB
    assert taken(Need(weights=5), 256) == 5


def test_windows_grow_to_powers_of_two() -> None:
    assert [grown(window) for window in (1, 2, 3, 1024, 1025, 6000)] == [1, 2, 4, 1024, 2048, 8192]


def test_how_an_engine_is_started() -> None:
    made = launch(WEIGHTS, Plan(2048, 3, 256, {}), LoadOptions(threads=2, mmap=False))
    assert (made.model, made.alias, made.window, made.slots) == (Path("/a.gguf"), "a:latest", 2048, 3)
    assert (made.cache_mib, made.threads, made.mmap, made.embedding) == (256, 2, False, False)
