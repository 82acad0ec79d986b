"""Clients that make each other's model be loaded anew are noticed."""

from daemon.chat import LoadOptions
from daemon.scheduler.alternation import Alternation

NONE = LoadOptions()


def test_two_sets_in_turn_are_named() -> None:
    seen = Alternation()
    assert seen.loaded("a", 4096, NONE, 0.0) is None
    assert seen.loaded("a", 4096, LoadOptions(gpu_layers=0), 10.0) is None
    both = "num_ctx 4096, gpu_layers 0 and num_ctx 4096"
    assert seen.loaded("a", 4096, NONE, 20.0) == both
    assert (
        seen.loaded("a", 4096, LoadOptions(gpu_layers=0), 30.0)
        == "num_ctx 4096 and num_ctx 4096, gpu_layers 0"
    )


def test_the_same_again_growth_and_other_models_are_no_alternation() -> None:
    seen = Alternation()
    for when in range(3):
        assert seen.loaded("a", 4096, NONE, when) is None
    for window in (1024, 2048, 4096):
        assert seen.loaded("b", window, NONE, 0.0) is None
    assert seen.loaded("c", 2048, NONE, 0.0) is None


def test_what_is_long_ago_does_not_count() -> None:
    seen = Alternation()
    for window, when in ((4096, 0.0), (2048, 1.0), (4096, 700.0)):
        assert seen.loaded("a", window, NONE, when) is None
