"""Which loaded model makes room? A pure choice."""

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Candidate(Protocol):
    @property
    def last_used(self) -> float:
        """Monotonic seconds: when it was last granted to a request or given back by one."""


C = TypeVar("C", bound=Candidate)


def victim(candidates: Iterable[C]) -> C | None:
    """The one that was not used for the longest time."""
    return min(candidates, key=lambda candidate: candidate.last_used, default=None)
