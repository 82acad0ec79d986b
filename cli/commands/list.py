"""`mgr list`: the models in the store."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from cli import humanize, output
from cli.client import Json, connect


def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List the models in the store."""
    models = connect().call("GET", "/api/tags").get("models") or []
    if as_json:
        output.dump(models)
    else:
        output.table(("NAME", "ID", "SIZE", "MODIFIED"), rows(models, datetime.now(UTC)))


def rows(models: list[Json], now: datetime) -> list[tuple[str, ...]]:
    return [
        (
            str(model.get("name", "")),
            str(model.get("digest", ""))[:12],
            humanize.size(model.get("size") or 0),
            humanize.ago(str(model.get("modified_at", "")), now),
        )
        for model in models
    ]
