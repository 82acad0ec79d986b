"""In which ways can a model be loaded, and what does each take? Pure.

A plan that is wanted more comes first: more requests at once, and a larger store of earlier conversations. The last one
takes the least that serves the request. `queue.py` takes the first that there is room for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from daemon.chat import LoadOptions
from daemon.runner.launch import CACHE_RAM_MIB, Launch
from daemon.scheduler.memory import MIB, Need
from daemon.scheduler.state import ENGINES, RAM, Plan, Purpose, Weights

AUTO_WINDOW = 4096  # the least, if the model was trained for it
LARGEST_AUTO_WINDOW = 32768
AUTO_SLOTS = 4
# Where nothing is known of memory.
UNKNOWN_SLOTS = 2
AUTO_LOADED = 3

_SHARE_OF_CACHES = 16
_CACHES = (CACHE_RAM_MIB, CACHE_RAM_MIB // 4, 0)

# What is needed with a window of so many tokens for so many slots.
Needs = Callable[[int, int], Need]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a request says nothing; 0 is automatic. `window` in tokens, `keep_alive` in seconds."""

    window: int = 0
    slots: int = 0
    keep_alive: float = 300.0


def grown(window: int) -> int:
    """The window to load for a request that the loaded one is too small for: the next power of two, so that a
    conversation that gets longer with each turn costs few loads."""
    return 1 << (window - 1).bit_length()


def plans(
    weights: Weights, window: int | None, defaults: Defaults, needs: Needs | None, ram: int | None
) -> tuple[Plan, ...]:
    """The ways to load these weights, the best first. The window is each request's own; slots never divide it.

    `window` is what is asked for, `ram` the bytes that there are in all; None is unknown.
    """
    wanted = window or defaults.window
    slots = (defaults.slots,) if defaults.slots else tuple(range(AUTO_SLOTS, 0, -1))
    if needs is None or ram is None:
        tokens = weights.clamp(wanted or AUTO_WINDOW)
        return (Plan(tokens, defaults.slots or UNKNOWN_SLOTS, CACHE_RAM_MIB, {ENGINES: 1}),)
    windows = [weights.clamp(wanted)] if wanted else [*_windows(weights, needs, ram, slots[0])]
    ways = [(windows[0], count, _CACHES[0]) for count in slots]
    ways += [(windows[0], slots[-1], cache) for cache in _CACHES[1:]]
    ways += [(tokens, slots[-1], 0) for tokens in windows[1:]]
    return tuple(
        Plan(tokens, count, cache, {ENGINES: 1, RAM: taken(needs(tokens, count), cache)})
        for tokens, count, cache in ways
    )


def _windows(weights: Weights, needs: Needs, ram: int, slots: int) -> Iterator[int]:
    """The default window is the largest with which the caches of all slots take at most a sixteenth of the memory, as
    an engine fills them with zeros before it answers; and smaller ones, for when that is not free. Each is half as
    large as the one before."""
    # For a vector each token's probabilities are made, too, so a long window costs much more than its cache.
    generates = weights.purpose is Purpose.GENERATE
    window = weights.clamp(LARGEST_AUTO_WINDOW if generates else AUTO_WINDOW)
    while window > AUTO_WINDOW and needs(window, slots).kv > ram // _SHARE_OF_CACHES:
        window = max(window // 2, AUTO_WINDOW)
    while True:
        yield window
        if window <= AUTO_WINDOW // 4:
            return
        window //= 2


def taken(need: Need, cache: int) -> int:
    """Bytes. `cache` is in MiB: the store of earlier conversations counts in full, as it will be filled."""
    return need.most - need.prompt_cache + min(need.prompt_cache, cache * MIB)


def launch(weights: Weights, plan: Plan, options: LoadOptions) -> Launch:
    """How an engine for these weights is started."""
    return Launch(
        model=weights.path,
        alias=weights.name,
        window=plan.window,
        slots=plan.slots,
        cache_mib=plan.cache,
        batch=options.batch,
        gpu_layers=options.gpu_layers,
        threads=options.threads,
        main_gpu=options.main_gpu,
        mmap=options.mmap,
        template=weights.template,
        projector=weights.projector,
        adapters=weights.adapters,
        embedding=weights.purpose is Purpose.EMBED,
        pooling=weights.pooling,
        reranking=weights.purpose is Purpose.RERANK,
    )
