"""`mgr pull`: fetches a model into the store."""

from typing import Annotated

import typer

from cli import autostart, output, progress, source


def pull(
    model: Annotated[str, typer.Argument(metavar="SOURCE", help="A model's name, a URL, or a .gguf file.")],
    name: Annotated[str | None, typer.Option(help="Store it under this name.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace another model of that name.")] = False,
) -> None:
    """Fetch a model, and print the name that it is stored under."""
    origin = source.absolute(model)
    client = autostart.connect_or_start()
    output.line(output.printable(progress.pull(client, origin, name=name, replace=force)))
