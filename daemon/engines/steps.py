"""Reads what cmake, ninja and make print: how far they are, and why they failed. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# What ninja is told to begin each line with, so that a user's own setting does not hide it.
NINJA_STATUS = "[%f/%t] "
_NINJA = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_MAKE = re.compile(r"\[ *(\d+)%\] (.*)")

_SHOWN = 20
_FAILED = re.compile(r"FAILED: ")
# What compilers and linkers say, wherever it is; else what cmake and make say around it.
_REASONS = (
    re.compile(r"\berror\s*:|nvcc fatal|undefined reference|cannot find -l", re.IGNORECASE),
    re.compile(r"^CMake Error|\*\*\* "),
)
_AFTER = re.compile(r"ninja: |\[\d+/\d+\] ")


@dataclass(frozen=True, slots=True)
class Step:
    """`done` of `total` steps are over; make counts percents."""

    done: int
    total: int
    what: str


def parse(line: str) -> Step | None:
    if match := _NINJA.match(line):
        return Step(int(match[1]), int(match[2]), match[3])
    if match := _MAKE.match(line):
        return Step(int(match[1]), 100, match[2])
    return None


def failure(lines: Sequence[str]) -> list[str]:
    """The lines that tell why it failed, at most _SHOWN: from the first reason on in what the failed step printed."""
    block = [line for line in _failed_step(lines) if line.strip()]
    for reason in _REASONS:
        for number, line in enumerate(block):
            if reason.search(line):
                return block[number : number + _SHOWN]
    return block[-_SHOWN:]


def _failed_step(lines: Sequence[str]) -> list[str]:
    """What the first failed step of ninja printed, without its command; everything where ninja did not run."""
    begin = next((number for number, line in enumerate(lines) if _FAILED.match(line)), None)
    if begin is None:
        return list(lines)
    after = range(begin + 2, len(lines))
    end = next((number for number in after if _AFTER.match(lines[number])), len(lines))
    return list(lines[begin + 2 : end]) or [lines[begin]]
