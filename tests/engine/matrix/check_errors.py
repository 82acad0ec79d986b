"""What is refused, and how; and clients that leave."""

import time
from typing import Any

from tests.engine.conftest import releases
from tests.engine.matrix.asks import IMAGE, Ask, assistant, user
from tests.engine.matrix.cells import APIS, Cell
from tests.engine.matrix.prompts import CONVERSATION, ENDLESS, SMALL_MODEL, SMALL_WINDOW, question
from tests.fakes.daemon import GUARD_SECONDS


def image_refused(cell: Cell) -> None:
    failure = cell.failure(Ask(turns=(user("What is this?", image=IMAGE),)))
    assert failure.status == 400
    assert "projector" in failure.message


def unknown_model(cell: Cell) -> None:
    failure = cell.failure(question(cell, model="nothing-such"))
    assert failure.name == ("ResponseError" if cell.api in ("ollama", "generate") else "NotFoundError")
    assert failure.status == 404
    assert "nothing-such" in failure.message
    if cell.api == "anthropic":
        assert failure.detail["type"] == "not_found_error"
    elif cell.api not in ("ollama", "generate"):
        assert failure.detail["code"] == "model_not_found"


def too_long(cell: Cell) -> None:
    """The error tells both numbers; Ollama's chat gives up the oldest turns, and says so."""
    words = "one two three four five six seven eight nine ten " * 30
    ask = Ask(turns=(user(words),), limit=1)
    needed = cell.engine(ask).prompt_tokens
    if cell.api == "ollama":
        _check_truncated(cell, words)
        return
    failure = cell.failure(Ask(turns=ask.turns, model=SMALL_MODEL))
    assert failure.status == 400
    assert str(needed) in failure.message
    assert str(SMALL_WINDOW) in failure.message
    if cell.api == "anthropic":
        assert failure.message.startswith(f"prompt is too long: {needed} tokens > {SMALL_WINDOW} maximum")
    elif cell.api != "generate":
        assert failure.detail["code"] == "context_length_exceeded"


def _check_truncated(cell: Cell, words: str) -> None:
    told = cell.told(Ask(turns=(user(words), assistant(words), *CONVERSATION), model=SMALL_MODEL))
    kept = cell.engine(Ask(turns=CONVERSATION))
    assert (told.text, told.prompt_tokens) == (kept.text, kept.prompt_tokens)
    if cell.language == "node":  # the client for Python drops the field
        assert told.extra["truncated"] is True


def abort(cell: Cell) -> None:
    """A client that leaves frees the engine's slot long before the answer is through."""
    daemon, api = cell.bench.daemon, APIS[cell.api]
    earlier = len(releases(daemon))
    cell.told(question(cell, limit=1))
    _until(lambda: len(releases(daemon)) > earlier)
    before = len(releases(daemon))
    reply = cell.call(
        api.method, "abort-stream" if cell.stream else "abort-whole", **api.params(ENDLESS, cell.stream)
    )
    assert reply == {"aborted": True}
    _until(lambda: len(releases(daemon)) > before and not any(m["in_use"] for m in daemon.loaded()))
    assert releases(daemon)[before] < ENDLESS.limit / 2


def _until(condition: Any) -> None:
    deadline = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
