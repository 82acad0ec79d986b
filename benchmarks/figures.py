"""What was measured, and whether it holds. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit; `least`: the figure must be at least it, else at most."""

    limit: float
    least: bool = False

    def holds(self, figure: float) -> bool:
        return figure >= self.limit if self.least else figure <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.least else '<='} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its samples, in `unit` ("x" for a ratio); its value is their median.

    `detail` says in words what the ratio was made of.
    """

    group: str
    name: str
    unit: str
    samples: tuple[float, ...]
    bar: Bar | None = None
    detail: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def holds(self) -> bool | None:
        """None where there is no bar."""
        return None if self.bar is None else self.bar.holds(self.value)

    def with_detail(self, more: str) -> "Row":
        return replace(self, detail=f"{self.detail}; {more}")

    def as_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "name": self.name,
            "unit": self.unit,
            "median": self.value,
            "min": min(self.samples),
            "max": max(self.samples),
            "samples": list(self.samples),
            "bar": None if self.bar is None else str(self.bar),
            "holds": self.holds,
            "detail": self.detail,
        }


def ratio_row(
    group: str,
    name: str,
    measured: Sequence[float],
    reference: Sequence[float],
    unit: str,
    bar: Bar | None = None,
) -> Row:
    """Each measurement over the reference next to it. `unit` is that of both; the detail gives their medians."""
    samples = tuple(one / other for one, other in zip(measured, reference, strict=True))
    return Row(group, name, "x", samples, bar, _medians(measured, "over", reference, unit))


def difference_row(
    group: str,
    name: str,
    measured: Sequence[float],
    reference: Sequence[float],
    unit: str,
    bar: Bar | None = None,
) -> Row:
    """Each measurement less the reference next to it, in `unit`."""
    samples = tuple(one - other for one, other in zip(measured, reference, strict=True))
    return Row(group, name, unit, samples, bar, _medians(measured, "less", reference, unit))


def _medians(measured: Sequence[float], word: str, reference: Sequence[float], unit: str) -> str:
    return f"{statistics.median(measured):.4g} {word} {statistics.median(reference):.4g} {unit}"
