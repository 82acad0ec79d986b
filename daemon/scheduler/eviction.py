"""Which loaded models make room first? A pure choice."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

# A load that takes less is cheap, whatever it took last time.
_CHEAP_LOAD_SECONDS = 5.0


class Candidate(Protocol):
    @property
    def last_used(self) -> float:
        """Monotonic seconds: when it was last granted to a request or given back by one."""

    @property
    def load_seconds(self) -> float:
        """How long it took to load, and would again."""


C = TypeVar("C", bound=Candidate)


def order(candidates: Iterable[C], now: float) -> list[C]:
    """The first is the one to go: it was idle for long, measured by what it costs to have it back."""

    def worth(candidate: C) -> float:
        return (now - candidate.last_used) / max(candidate.load_seconds, _CHEAP_LOAD_SECONDS)

    return sorted(candidates, key=worth, reverse=True)
