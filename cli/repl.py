"""The conversation of `mgr run` at a terminal."""

import json
import re
from collections.abc import Callable

from cli import output
from cli.client import Client, Json
from cli.description import PARTS, describe
from cli.errors import CliError
from cli.session import Session

_QUOTES = '"""'
_OPENS_QUOTES = re.compile(r'\s*(/set\s+system\s+)?"""')
_LEAVE = ("/bye", "/exit", "/quit")
_FULL = "/clear forgets the conversation; /set parameter num_ctx N asks for a window of N tokens."
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
/bye                            leave; so do /quit and Ctrl-D

A message between """ and """ may have several lines. Ctrl-C stops an answer.'''


def converse(client: Client, session: Session, read: Callable[[str], str] = input) -> None:
    """Reads messages and commands until the person leaves. `read` shows its argument and returns a line."""
    import readline  # line editing and history for input()

    # Lines that are pasted together are one message; CPython turns this off.
    readline.parse_and_bind("set enable-bracketed-paste on")
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
            if "context window" in error.message:
                output.note(_FULL)


def read_message(read: Callable[[str], str]) -> str:
    """One message: a line, or everything between triple quotes."""
    text = read(">>> ")
    if _OPENS_QUOTES.match(text) is None:
        return text
    while text.count(_QUOTES) < 2:
        text += "\n" + read("... ")
    return text.replace(_QUOTES, "")


def respond(client: Client, session: Session, text: str) -> None:
    stripped = text.strip()
    if not stripped.startswith("/"):
        if stripped:
            session.ask(client, text)
        return
    command, _, rest = stripped.partition(" ")
    match command:
        case "/help" | "/?":
            output.note(HELP)
        case "/clear":
            session.messages.clear()
            output.note("The conversation is forgotten.")
        case "/show":
            output.line(shown(client, session, _part(rest.strip())))
        case "/set":
            change(session, rest.strip())
        case _:
            raise CliError(f"there is no command {command.split()[0]}; /help lists them")


def shown(client: Client, session: Session, part: str | None) -> str:
    """What `/show` prints: of the system prompt and the parameters, what this session asks with."""
    if part == "system" and session.system is not None:
        return session.system
    told = describe(client, session.model, part)
    return with_own(told, session.options) if part == "parameters" else told


def with_own(told: str, options: Json) -> str:
    """A model's parameters, one a line as /api/show writes them, with the session's `options` in their place."""
    lines = [line for line in told.splitlines() if line.partition(" ")[0] not in options]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        lines += [f"{name:<30} {json.dumps(item, ensure_ascii=False)}" for item in values]
    return "\n".join(sorted(lines, key=lambda line: line.partition(" ")[0]))


def change(session: Session, text: str) -> None:
    """Applies what follows `/set`. Raises CliError."""
    what, _, rest = text.partition(" ")
    if what == "system" and rest.strip():
        session.system = rest.strip()
        output.note("The system prompt is set.")
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
