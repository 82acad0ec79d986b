"""`mgr show`: what is known of one model."""

from typing import Annotated

import typer

from cli import output
from cli.client import connect
from cli.description import PARTS, describe, details
from cli.errors import WrongUsage


def show(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    modelfile: Annotated[bool, typer.Option("--modelfile", help="Print its Modelfile.")] = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="Print its parameters.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Print its template.")] = False,
    system: Annotated[bool, typer.Option("--system", help="Print its system prompt.")] = False,
    license_: Annotated[bool, typer.Option("--license", help="Print its license.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show what is known of a model."""
    wanted = zip(PARTS, (modelfile, parameters, template, system, license_), strict=True)
    parts = [name for name, given in wanted if given]
    if len(parts) + as_json > 1:
        raise WrongUsage("only one part can be shown at a time")
    client = connect()
    if as_json:
        output.dump(details(client, model))
    else:
        output.line(describe(client, model, parts[0] if parts else None))
