"""`mgr pull`: fetches a model into the store."""

from typing import Annotated

import typer

from cli import autostart, output, progress, source
from cli.errors import ApiError, CliError, WrongUsage

# The end of the server's sentence about a name that another model has, and what that means here.
_ADVICE = "replace it, or use another name"
_FLAGS = "replace it with --force, or use another name with --name NAME"


def pull(
    model: Annotated[str, typer.Argument(metavar="SOURCE", help="A model's name, a URL, or a .gguf file.")],
    name: Annotated[str | None, typer.Option(help="Store it under this name.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace another model of that name.")] = False,
) -> None:
    """Fetch a model, and print the name that it is stored under."""
    if name is not None and not name.strip():
        raise WrongUsage("--name is empty; leave it out, or give the name to store the model under")
    origin = source.absolute(model)
    client = autostart.connect_or_start()
    try:
        stored = progress.pull(client, origin, name=name, replace=force)
    except ApiError as error:
        raise CliError(error.message.replace(_ADVICE, _FLAGS)) from None
    output.line(output.printable(stored))
