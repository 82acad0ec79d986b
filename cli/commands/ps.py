"""`mgr ps`: the models that are loaded."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from cli import humanize, output
from cli.advice import advise
from cli.client import Json, connect

_WAITS = {
    reason: f"{{requests}} waiting for {{model}}, for {{seconds}} s: {why}"
    for reason, why in {
        "loading": "it is being loaded",
        "slot": "all its slots are taken",
        "place": "other models have the place",
        "back-off": "its last starts failed",
    }.items()
}

_HEADERS = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "ENGINE")


def ps(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False) -> None:
    """List the models that are loaded."""
    client = connect()
    answer = client.call("GET", "/api/ps")
    models = answer.get("models") or []
    if as_json:
        output.dump(models)
        return
    table = rows(models, datetime.now(UTC))
    columns = len(_HEADERS) if any(row[-1] for row in table) else len(_HEADERS) - 1
    output.table(_HEADERS[:columns], [row[:columns] for row in table])
    for line in answer.get("waiting") or []:
        output.note(waits(line))
    advise(client)


def waits(line: Json) -> str:
    """One sentence on the requests that wait with the same wish."""
    return _WAITS.get(str(line.get("reason")), _WAITS["place"]).format(
        requests=line.get("requests"), model=line.get("model"), seconds=round(line.get("longest_wait") or 0)
    )


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
