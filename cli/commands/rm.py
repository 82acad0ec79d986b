"""`mgr rm`: removes models from the store."""

from typing import Annotated

import typer

from cli import output
from cli.client import connect
from cli.errors import CliError


def rm(models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Names of models.")]) -> None:
    """Remove models from the store, up to the first that cannot be removed."""
    client = connect()
    for index, model in enumerate(models):
        try:
            client.call("DELETE", "/api/delete", {"model": model})
        except CliError as error:
            gone = f" (deleted before it: {', '.join(models[:index])})" if index else ""
            raise CliError(error.message + gone) from None
        output.note(f"deleted '{model}'")
