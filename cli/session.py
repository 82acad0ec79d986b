"""A conversation with one model, of one question or of many."""

from dataclasses import dataclass, field

from cli import output
from cli.answer import Answer, ask, timings
from cli.client import Client, Json

CUT = "(the answer was cut: the limit of tokens or the window is reached)"


@dataclass
class Session:
    """`keep_alive` as the API takes it: a duration, or whole seconds."""

    model: str
    system: str | None = None
    options: Json = field(default_factory=dict)
    keep_alive: str | int | None = None
    verbose: bool = False
    messages: list[Json] = field(default_factory=list)

    def ask(self, client: Client, text: str) -> None:
        """Writes the answer as it comes. What was answered is remembered, also when it was cut short."""
        question = {"role": "user", "content": text}
        answer = Answer()
        try:
            ask(client, {**self.request(), "messages": self._messages_with(question)}, answer)
        finally:
            if answer.text:
                self.messages += [question, {"role": "assistant", "content": answer.text}]
        if answer.final.get("done_reason") == "length":
            output.note(CUT)
        if self.verbose:
            output.announce(timings(answer.final))

    def load(self, client: Client) -> None:
        """Loads the model without a question; waits as long as that takes."""
        client.call("POST", "/api/generate", {**self.request(), "stream": False}, timeout=None)

    def request(self) -> Json:
        """What every request of this session says."""
        body: Json = {"model": self.model}
        if self.options:
            body["options"] = self.options
        if self.keep_alive is not None:
            body["keep_alive"] = self.keep_alive
        return body

    def _messages_with(self, question: Json) -> list[Json]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages, question]
