"""`mgr run`: one answer, or a conversation."""

import sys
from typing import Annotated

import typer

from cli import autostart, output, progress, source
from cli.advice import advise
from cli.client import Client
from cli.errors import ApiError, CliError, WrongUsage
from cli.session import Session
from daemon.durations import parse_keep_alive

_MOST_PIPED = 16  # MiB; far more than any model's window holds


def run(  # noqa: PLR0913, PLR0917  the parameters are the command's flags
    model: Annotated[str, typer.Argument(help="A model's name, or a source to pull it from.")],
    prompt: Annotated[list[str] | None, typer.Argument(help="Ask this and end; none: talk.")] = None,
    keepalive: Annotated[str | None, typer.Option(help="How long it stays loaded after: 5m, 0.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token each time.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes answers repeatable.")] = None,
    num_ctx: Annotated[int | None, typer.Option("--num-ctx", help="Window in tokens.")] = None,
    num_predict: Annotated[
        int | None, typer.Option("--num-predict", "--max-tokens", help="Most tokens of an answer.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print timings after each answer.")] = False,
) -> None:
    """Ask a model, which is pulled first where it is missing. Standard input comes before PROMPT."""
    options = {"temperature": temperature, "seed": seed, "num_ctx": num_ctx, "num_predict": num_predict}
    session = Session(
        model=model,
        system=system,
        options={name: value for name, value in options.items() if value is not None},
        keep_alive=keep_alive(keepalive),
        verbose=verbose,
    )
    origin = source.absolute(model)
    text = None if prompt is None and output.interactive() else prompt_text(prompt, _piped())
    client = autostart.connect_or_start()
    session.model = _ensure_stored(client, model, origin)
    if text is None:
        from cli.repl import converse

        advise(client)
        converse(client, session)
        return
    if text.strip():
        session.ask(client, text)
    else:
        session.load(client)
    advise(client)  # now a daemon that was just started knows its engine too


def prompt_text(arguments: list[str] | None, piped: str) -> str:
    """The prompt, as Ollama joins it; empty only where an empty one was given, which asks to load the model.

    Raises CliError when there is none at all.
    """
    if not piped.strip() and arguments is None:
        raise CliError("there is no prompt; give one as an argument or on standard input")
    return " ".join([*([piped] if piped.strip() else []), *(arguments or [])])


def _piped() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    data = sys.stdin.buffer.read(_MOST_PIPED * 2**20 + 1)
    if len(data) > _MOST_PIPED * 2**20:
        raise CliError(f"standard input holds more than {_MOST_PIPED} MiB; give a shorter prompt")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CliError("standard input is not UTF-8 text") from None


def keep_alive(text: str | None) -> str | int | None:
    """What the API takes: whole numbers are seconds, everything else is a duration."""
    if text is None:
        return None
    value: str | int = int(text) if text.removeprefix("-").isdecimal() else text
    try:
        parse_keep_alive(value)
    except ValueError as error:
        raise WrongUsage(f"--keepalive: {error}") from None
    return value


def _ensure_stored(client: Client, model: str, origin: str) -> str:
    """The stored name of `model`, pulled from `origin` where the store lacks it."""
    if "://" not in origin:
        try:
            client.call("POST", "/api/show", {"model": origin})
        except ApiError as error:
            if error.status != 404:
                raise
        else:
            return origin
    output.announce(f"pulling '{model}'")
    return progress.pull(client, origin)
