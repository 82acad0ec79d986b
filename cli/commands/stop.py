"""`mgr stop`: unloads models, or ends the daemon."""

from typing import Annotated

import typer

from cli import identity, output
from cli.client import Client, connect
from cli.errors import ApiError, CliError, WrongUsage


def stop(
    model: Annotated[str | None, typer.Argument(help="The model to unload.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Unload every model.")] = False,
    daemon: Annotated[bool, typer.Option("--daemon", help="End the daemon itself.")] = False,
) -> None:
    """Unload a model at once; the daemon keeps running."""
    if (model is not None) + everything + daemon != 1:
        raise WrongUsage("say what to stop: a model, --all or --daemon")
    client = connect()
    if daemon:
        process = identity.daemon_process(client)
        identity.terminate(process)
        output.note(f"stopped mgr on {client.address}, process {process.pid}")
    elif model is not None:
        _unload(client, model)
    else:
        for loaded in client.call("GET", "/api/ps").get("models") or []:
            _unload(client, str(loaded.get("name", "")))


def _unload(client: Client, model: str) -> None:
    """Without a time limit: an answer that is running is not cut off."""
    try:
        client.call(
            "POST",
            "/api/generate",
            {"model": model, "prompt": "", "keep_alive": 0, "stream": False},
            timeout=None,
        )
    except ApiError as error:
        if error.status != 404:
            raise
        raise CliError(f'couldn\'t find model "{model}" to stop') from None
    output.note(f"stopped '{model}'")
