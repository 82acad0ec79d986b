"""The conversation of `mgr run` at a terminal."""

import re
from collections.abc import Callable

from cli import output
from cli.client import Client
from cli.commands.show import PARTS, describe
from cli.errors import CliError
from cli.session import Session

_QUOTES = '"""'
_OPENS_QUOTES = re.compile(r'(/set\s+system\s+)?"""')
_LEAVE = ("/bye", "/exit")
# The API's options; the server would ignore any other name without a word.
_WHOLE = ("num_ctx", "num_predict", "num_keep", "num_gpu", "num_thread", "seed", "top_k", "repeat_last_n")
_REAL = (
    "temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
HELP = '''\
/set parameter <name> <value>   change a parameter
/set system <text>              change the system prompt
/show [<part>]                  the model, or its modelfile, parameters, template, system or license
/clear                          forget the conversation
/bye                            leave; so does Ctrl-D

A message between """ and """ may have several lines. Ctrl-C stops an answer.'''


def converse(client: Client, session: Session, read: Callable[[str], str] = input) -> None:
    """Reads messages and commands until the person leaves. `read` shows its argument and returns a line."""
    import readline  # noqa: F401  line editing and history for input()

    output.note("Write a message; /help lists the commands.")
    while True:
        try:
            text = read_message(read)
        except EOFError:
            output.note("")
            return
        except KeyboardInterrupt:
            output.note("\nCtrl-D or /bye leaves.")
            continue
        if text.strip() in _LEAVE:
            return
        try:
            respond(client, session, text)
        except KeyboardInterrupt:
            output.note("")
        except CliError as error:
            output.error(error.message)


def read_message(read: Callable[[str], str]) -> str:
    """One message: a line, or everything between triple quotes."""
    text = read(">>> ")
    if _OPENS_QUOTES.match(text) is None:
        return text
    while text.count(_QUOTES) < 2:
        text += "\n" + read("... ")
    return text.replace(_QUOTES, "")


def respond(client: Client, session: Session, text: str) -> None:
    if not text.startswith("/"):
        if text.strip():
            session.ask(client, text)
        return
    command, _, rest = text.strip().partition(" ")
    match command:
        case "/help" | "/?":
            output.note(HELP)
        case "/clear":
            session.messages.clear()
            output.note("The conversation is forgotten.")
        case "/show":
            output.line(describe(client, session.model, _part(rest.strip())))
        case "/set":
            change(session, rest.strip())
        case _:
            raise CliError(f"there is no command {command}; /help lists them")


def change(session: Session, text: str) -> None:
    """Applies what follows `/set`. Raises CliError."""
    what, _, rest = text.partition(" ")
    if what == "system":
        session.system = rest.strip() or None
        output.note("The system prompt is set." if session.system else "The system prompt is gone.")
    elif what == "parameter":
        name, *words = rest.split() or [""]
        session.options[name] = parameter_value(name, words)
        output.note(f"{name} is {session.options[name]}.")
    else:
        raise CliError("write /set parameter <name> <value>, or /set system <text>")


def parameter_value(name: str, words: list[str]) -> int | float | list[str]:
    """The value as the API takes it. Raises CliError for an unknown name and a value of the wrong type."""
    if name == "stop":
        if not words:
            raise CliError("stop needs at least one word")
        return words
    if name not in (*_WHOLE, *_REAL):
        raise CliError(f"there is no parameter '{name}'; use {', '.join(sorted((*_WHOLE, *_REAL, 'stop')))}")
    value = " ".join(words)
    try:
        return int(value) if name in _WHOLE else float(value)
    except ValueError:
        kind = "a whole number" if name in _WHOLE else "a number"
        raise CliError(f"{name} must be {kind}, not '{value}'") from None


def _part(name: str) -> str | None:
    if name and name not in PARTS:
        raise CliError(f"there is no part '{name}'; use {', '.join(PARTS)}")
    return name or None
