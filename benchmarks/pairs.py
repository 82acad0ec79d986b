"""Interleaving: a measurement and its reference are taken next to each other, in changing order."""

from collections.abc import Awaitable, Callable

from benchmarks.options import Options

Measure = Callable[[], Awaitable[float]]


async def pairs(
    measured: Measure, reference: Measure, count: int, options: Options, what: str, *, rounds: int = 1
) -> tuple[list[float], list[float]]:
    """`count` results of each, pairwise; each is the least of `rounds` that are taken in turns: what else a machine
    does can only add to it."""
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(count):
        both = [
            await _pair(measured, reference, turned=(turn * rounds + each) % 2 == 1) for each in range(rounds)
        ]
        ours.append(min(mine for mine, _ in both))
        theirs.append(min(other for _, other in both))
        options.say(f"{what}, {turn + 1} of {count}: {ours[-1]:.4g}, reference {theirs[-1]:.4g}")
    return ours, theirs


async def _pair(measured: Measure, reference: Measure, *, turned: bool) -> tuple[float, float]:
    if turned:
        other = await reference()
        return await measured(), other
    return await measured(), await reference()
