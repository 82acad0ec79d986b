"""In which ways can a model be loaded, and what does each take? Pure.

A plan that is wanted more comes first: more layers on a GPU, more requests at once, a larger store of earlier
conversations. The last one takes the least that serves the request. `queue.py` takes the first that there is room for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from daemon.chat import LoadOptions
from daemon.runner.launch import CACHE_RAM_MIB, Launch
from daemon.scheduler.offload import Site
from daemon.scheduler.state import ENGINES, Plan, Purpose, Weights

AUTO_WINDOW = 4096  # the least, if the model was trained for it
LARGEST_AUTO_WINDOW = 32768
AUTO_SLOTS = 4
# Where nothing is known of memory.
UNKNOWN_SLOTS = 2
AUTO_LOADED = 3

_LEAST_WINDOW = AUTO_WINDOW // 4  # where there is no other way
# Of the memory, for the caches of a model: an engine fills them with zeros before it answers, a GPU at once.
_SHARE_OF_CACHES, _SHARE_ON_GPU = 16, 4
_CACHES = (CACHE_RAM_MIB, CACHE_RAM_MIB // 4, 0)


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
    weights: Weights, window: int | None, defaults: Defaults, sites: Sequence[Site]
) -> tuple[Plan, ...]:
    """The ways to load these weights, the best first. The window is each request's own; slots never divide it.

    `window` is what is asked for; `sites` are where the model may lie, the best first, none where nothing is known.
    """
    wanted = window or defaults.window
    if not sites:
        tokens = weights.clamp(wanted or AUTO_WINDOW)
        return (Plan(tokens, defaults.slots or UNKNOWN_SLOTS, CACHE_RAM_MIB, {ENGINES: 1}),)
    slots = (defaults.slots,) if defaults.slots else tuple(range(AUTO_SLOTS, 0, -1))
    found: list[Plan] = []
    for layers, alike in groupby(sites, lambda site: site.layers):
        group = [*alike]
        is_first, is_last = layers == sites[0].layers, layers == sites[-1].layers
        if wanted:
            windows = [weights.clamp(wanted)]
        else:
            # Rather a smaller window than fewer layers on a GPU, as long as it is not very small.
            windows = [*_windows(weights, group[0], slots[0], _LEAST_WINDOW if is_last else AUTO_WINDOW)]
        if not is_first and not is_last:
            windows = windows[-1:]
        found += [
            Plan(tokens, count, cache, {ENGINES: 1, **site.takes(tokens, count, cache)}, site.offload)
            for tokens, count, cache in _ways(windows, slots if is_first or is_last else slots[-1:])
            for site in group
        ]
    return tuple(found)


def _ways(windows: Sequence[int], slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Window, slots, and MiB for earlier conversations: what is wanted less goes first."""
    yield from ((windows[0], count, _CACHES[0]) for count in slots)
    yield from ((windows[0], slots[-1], cache) for cache in _CACHES[1:])
    yield from ((tokens, slots[-1], 0) for tokens in windows[1:])


def _windows(weights: Weights, site: Site, slots: int, least: int) -> Iterator[int]:
    """The default window is the largest with which the caches of all slots take at most a part of the memory; and
    smaller ones, for when that is not free. Each is half as large as the one before, the last at most `least`."""
    # For a vector each token's probabilities are made, too, so a long window costs much more than its cache.
    generates = weights.purpose is Purpose.GENERATE
    window = weights.clamp(LARGEST_AUTO_WINDOW if generates else AUTO_WINDOW)
    part = site.memory // (_SHARE_ON_GPU if site.layers else _SHARE_OF_CACHES)
    while window > AUTO_WINDOW and site.kv(window, slots) > part:
        window = max(window // 2, AUTO_WINDOW)
    while True:
        yield window
        if window <= least:
            return
        window //= 2


def launch(weights: Weights, plan: Plan, options: LoadOptions) -> Launch:
    """How an engine for these weights is started."""
    return Launch(
        model=weights.path,
        alias=weights.name,
        window=plan.window,
        slots=plan.slots,
        cache_mib=plan.cache,
        batch=options.batch,
        offload=plan.offload,
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
