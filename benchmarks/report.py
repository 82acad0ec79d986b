"""The rows as a table for people and as JSON."""

import platform
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from benchmarks.figures import Row

_VERDICTS = {True: "holds", False: "MISSED", None: ""}


def table(rows: Sequence[Row]) -> Table:
    columns = ("what", "median", "min", "max", "bar", "", "from")
    made = Table(*columns, box=None, pad_edge=False)
    for index in (1, 2, 3):
        made.columns[index].justify = "right"
    group = ""
    for row in rows:
        if row.group != group:
            group = row.group
            made.add_row(f"[bold]{group}[/bold]")
        low, middle, high = (f"{v:.2f}" for v in (min(row.samples), row.value, max(row.samples)))
        bar = "" if row.bar is None else str(row.bar)
        made.add_row(
            f"  {row.name}", f"{middle} {row.unit}", low, high, bar, _VERDICTS[row.holds], row.detail
        )
    return made


def as_json(rows: Sequence[Row], problems: Sequence[str]) -> dict[str, Any]:
    return {
        "machine": {
            "processor": platform.machine(),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "rows": [row.as_json() for row in rows],
        "problems": list(problems),
    }
