"""`mgr serve`: the daemon, in the foreground."""

from typing import Annotated

import typer

from daemon.settings import load


def serve(  # noqa: PLR0913, PLR0917  the parameters are the command's flags
    host: Annotated[str | None, typer.Option(help="Address, or a path that ends in .sock.")] = None,
    models: Annotated[str | None, typer.Option(help="Root of the model store.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="auto, built, path, wheel, or the path of a llama-server.")
    ] = None,
    keep_alive: Annotated[str | None, typer.Option(help="How long an idle model stays loaded: 5m.")] = None,
    context_length: Annotated[
        str | None, typer.Option(help="Default window in tokens; 0: automatic.")
    ] = None,
    num_parallel: Annotated[str | None, typer.Option(help="Slots of each model; 0: automatic.")] = None,
    max_loaded_models: Annotated[str | None, typer.Option(help="Engines at once; 0: automatic.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text, or json for one object a line.")] = None,
) -> None:
    """Run the daemon. Every setting can also be given as MGR_<NAME>."""
    settings = load(flags=dict(locals()))  # the parameters are named as the settings
    from daemon.server import serve as run_daemon

    raise typer.Exit(run_daemon(settings))
