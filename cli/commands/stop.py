"""`mgr stop`: unloads models, or ends the daemon."""

import time
from typing import Annotated

import typer

from cli import identity, output
from cli.client import Client, connect
from cli.errors import ApiError, CliError, NotRunning, WrongUsage

# A server gives answers their time to end (8 s at most), and then a process that hangs its own.
_GONE_SECONDS = 30.0
_LOOK_SECONDS = 0.1


def stop(
    model: Annotated[str | None, typer.Argument(help="The model to unload.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Unload every model.")] = False,
    daemon: Annotated[bool, typer.Option("--daemon", help="End the daemon itself.")] = False,
) -> None:
    """Unload a model; its answers have a moment to end. The daemon keeps running."""
    if (model is not None) + everything + daemon != 1:
        raise WrongUsage("say what to stop: a model, --all or --daemon")
    client = connect()
    if daemon:
        _end(client)
    elif model is not None:
        was_loaded = is_loaded(model, _loaded(client))
        _unload(client, model)
        output.note(f"stopped '{model}'" if was_loaded else f"'{model}' was not loaded")
    else:
        for name in _loaded(client):
            _unload(client, name)
            output.note(f"stopped '{name}'")


def is_loaded(model: str, loaded: list[str]) -> bool:
    """Whether `model`, which may lack its tag, is one of the full names `loaded`."""
    wanted = model.lower()
    return any(name.lower() == wanted or name.lower().rpartition(":")[0] == wanted for name in loaded)


def _loaded(client: Client) -> list[str]:
    return [str(entry.get("name", "")) for entry in client.call("GET", "/api/ps").get("models") or []]


def _end(client: Client) -> None:
    try:
        process = identity.daemon_process(client)
    except NotRunning:
        raise CliError(f"no daemon runs on {client.address}") from None
    identity.terminate(process)
    output.note(f"stopped mgr on {client.address}, process {process.pid}")


def _unload(client: Client, model: str) -> None:
    """Returns when its engine is gone. Raises CliError when that takes too long."""
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
    deadline = time.monotonic() + _GONE_SECONDS
    while stage := _stage(client, model):
        if time.monotonic() > deadline:
            raise CliError(f"'{model}' still does not end ({stage}); see the daemon's log")
        time.sleep(_LOOK_SECONDS)


def _stage(client: Client, model: str) -> str:
    """How far the end of its engine has come, "" when it is gone; one that is loaded anew has none."""
    models = client.call("GET", "/api/ps").get("models") or []
    stages = [
        str(entry.get("stage") or "") for entry in models if is_loaded(model, [str(entry.get("name", ""))])
    ]
    return next(iter(stages), "")
