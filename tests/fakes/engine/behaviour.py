"""What a script says of one start of the engine, and where the engine writes what happens."""

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.01


@dataclass
class Behaviour:
    """What one start does. Paths are files to wait for until they are gone."""

    hold_load: str = ""  # answers 503 "Loading model" while it exists
    hold_prefill: str = ""  # sends no token while it exists
    hold_tokens: str = ""  # stops in the middle of the answer while it exists
    hold_after: int = 1  # ... after so many tokens
    say: list[str] = field(default_factory=list)  # lines to print at the start
    exit_code: int | None = None  # ends right after them
    nonsense_health: bool = False  # answers its health route in another protocol
    spam_bytes: int = 0  # prints so much garbage without a line end before it is ready
    spam_between: int = 0  # ... and so much before each token
    chatty_load: bool = False  # prints a line every now and then while it loads
    ignore_term: bool = False
    fork: bool = False  # leaves a grandchild that holds the output open
    setsid: bool = False  # ... in a session of its own, so that no signal to the group reaches it
    crash_after: float | None = None  # crashes so many seconds after it was ready
    crash_on: str = ""  # crashes on a request that has this text in it, before it answers
    hang_slots: str = ""  # does not answer /slots while it exists
    thinking: list[str] = field(default_factory=list)  # pieces of reasoning, before the tokens
    tokens: list[str] = field(default_factory=lambda: ["Hello", ",", " world", "!"])
    repeat: int = 1  # the tokens so many times
    parrot: bool = False  # says the text of the last turn instead, three characters at a time
    # Deltas of chat after the tokens, such as {"tool_calls": [{"index": 0, "id": ..., "function": {...}}]}
    deltas: list[dict[str, Any]] = field(default_factory=list)
    # The whole stream, instead of all that: texts are sent as the data of an event as they are, objects as JSON.
    events: list[Any] | None = None
    packets: str = "events"  # what is written at once: each of the "events", all in "one", or single "bytes"
    die_after: int | None = None  # is gone after so many tokens
    refuse: dict[str, Any] | None = None  # an error object with a code, instead of an answer
    reason: str = "stop"
    stopping_word: str = ""  # the stop sequence that hit
    prompt_tokens: int = 7
    count_words: bool = (
        False  # the prompt has the tokens of its text instead, and those beyond the window are refused
    )
    echo: bool = False  # repeats a prefilled turn of the assistant, as old engines do
    infill: bool = True
    props: dict[str, Any] = field(default_factory=dict)  # over what /props says


class Log:
    def __init__(self, path: str, alias: str) -> None:
        self._path, self._alias = path, alias

    def __call__(self, event: str, **values: Any) -> None:
        line = json.dumps({"event": event, "alias": self._alias, "pid": os.getpid(), **values}) + "\n"
        with Path(self._path).open("a", encoding="utf-8") as file:
            file.write(line)


async def while_exists(path: str) -> None:
    while path and Path(path).exists():
        await asyncio.sleep(POLL_SECONDS)
