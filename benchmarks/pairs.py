"""Interleaving: a measurement and its reference are taken next to each other, in changing order."""

from collections.abc import Awaitable, Callable

from benchmarks.options import Options

Measure = Callable[[], Awaitable[float]]


async def pairs(
    measured: Measure, reference: Measure, count: int, options: Options, what: str
) -> tuple[list[float], list[float]]:
    """`count` results of each, pairwise."""
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(count):
        if turn % 2:
            theirs.append(await reference())
            ours.append(await measured())
        else:
            ours.append(await measured())
            theirs.append(await reference())
        options.say(f"{what}, {turn + 1} of {count}: {ours[-1]:.4g}, reference {theirs[-1]:.4g}")
    return ours, theirs
