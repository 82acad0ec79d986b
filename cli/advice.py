"""What a daemon wants its users to know, once per command: that its engine leaves a GPU idle."""

from cli import output
from cli.client import Client, Json
from cli.errors import CliError


def advise(client: Client) -> None:
    """Notes the daemon's hint, for a person. A daemon that cannot be asked has none."""
    if not output.progress_wanted():
        return
    try:
        told = hint(client.version())
    except CliError:
        return
    if told:
        output.note(f"Note: {told}.")


def hint(version: Json) -> str:
    """The hint in the answer of `/api/version`; "" where there is none, and from another server than mgr."""
    mgr = version.get("mgr")
    engine = mgr.get("engine") if isinstance(mgr, dict) else None
    told = engine.get("hint") if isinstance(engine, dict) else None
    return told if isinstance(told, str) else ""
