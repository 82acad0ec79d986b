"""`mgr rm`: removes models from the store."""

from typing import Annotated

import typer

from cli import output
from cli.client import connect


def rm(models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Names of models.")]) -> None:
    """Remove models from the store, up to the first that cannot be removed."""
    client = connect()
    for model in models:
        client.call("DELETE", "/api/delete", {"model": model})
        output.note(f"deleted '{model}'")
