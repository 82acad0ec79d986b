"""`mgr ps`: the models that are loaded."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from cli import humanize, output
from cli.advice import advise
from cli.client import Json, connect

_HEADERS = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "ENGINE")


def ps(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False) -> None:
    """List the models that are loaded."""
    client = connect()
    models = client.call("GET", "/api/ps").get("models") or []
    if as_json:
        output.dump(models)
        return
    table = rows(models, datetime.now(UTC))
    columns = len(_HEADERS) if any(row[-1] for row in table) else len(_HEADERS) - 1
    output.table(_HEADERS[:columns], [row[:columns] for row in table])
    advise(client)


def rows(models: list[Json], now: datetime) -> list[tuple[str, ...]]:
    """One row a model; the engine is empty where the server does not tell it."""
    return [
        (
            str(model.get("name", "")),
            str(model.get("digest", ""))[:12],
            humanize.size(model.get("size") or 0),
            humanize.processor(model.get("size") or 0, model.get("size_vram") or 0),
            str(model.get("context_length") or "-"),
            humanize.until(str(model.get("expires_at", "")), now),
            str(model.get("engine") or ""),
        )
        for model in models
    ]
