"""One answer of a model: text to standard output as it arrives, and what is known of it at its end."""

from collections.abc import Callable, Iterable
from contextlib import closing

from cli import humanize, output
from cli.client import Client, Json
from cli.errors import CliError


class Answer:
    """Holds back line feeds at the end, so that what is written ends with exactly one."""

    def __init__(self, write: Callable[[str], None] = output.write) -> None:
        self.final: Json = {}
        self._write = write
        self._pieces: list[str] = []
        self._held = ""
        self._begun = False
        self._thinking = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def receive(self, lines: Iterable[Json]) -> None:
        """Writes an answer's lines. Raises CliError when they end before the last one."""
        try:
            for line in lines:
                message = line.get("message") or {}
                self._think(message.get("thinking") or "")
                self._say(message.get("content") or "")
                if line.get("done"):
                    self.final = line
            if not self.final:
                raise CliError("the answer ended early")
        finally:
            self._end_of_thinking()
            if self._begun or self.final:
                self._write("\n")

    def _say(self, text: str) -> None:
        if not text:
            return
        self._end_of_thinking()
        self._pieces.append(text)
        text = self._held + text
        ready = text.rstrip("\n")
        self._held = text[len(ready) :]
        if ready:
            self._begun = True
            self._write(ready)

    def _think(self, text: str) -> None:
        """Thoughts are not the answer: a person sees them, a program does not."""
        if text and output.progress_wanted():
            if not self._thinking:
                output.note("Thinking...")
            self._thinking = True
            output.note(text, end="")

    def _end_of_thinking(self) -> None:
        if self._thinking:
            output.note("\n...done thinking.\n")
            self._thinking = False


def ask(client: Client, body: Json, answer: Answer) -> None:
    """Sends a chat and writes its answer; left by an exception, the request is cancelled."""
    with closing(client.stream("/api/chat", body)) as lines:
        answer.receive(lines)


def timings(final: Json) -> str:
    """The last line's counts and times, one a line; those that the server left out are left out."""
    rows = []
    for what, label in (("total", "total"), ("load", "load")):
        rows += _time_row(final, f"{what}_duration", f"{label} duration")
    for what, label in (("prompt_eval", "prompt eval"), ("eval", "eval")):
        count, time = final.get(f"{what}_count"), final.get(f"{what}_duration")
        if count:
            rows.append((f"{label} count:", f"{count} token(s)"))
        rows += _time_row(final, f"{what}_duration", f"{label} duration")
        if count and time:
            rows.append((f"{label} rate:", f"{count / time * 1e9:.2f} tokens/s"))
    return "\n".join(f"{label:<22}{value}" for label, value in rows)


def _time_row(final: Json, key: str, label: str) -> list[tuple[str, str]]:
    value = final.get(key)
    return [(f"{label}:", humanize.duration(value))] if value else []
