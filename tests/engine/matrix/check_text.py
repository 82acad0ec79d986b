"""Text, how it is made, what it costs, and how a conversation goes on."""

from dataclasses import replace

import pytest

from tests.engine.matrix.asks import LIMIT, Ask, Logprob, assistant, user
from tests.engine.matrix.cells import APIS, Cell
from tests.engine.matrix.prompts import CONVERSATION, ENDING, QUESTION, question


def plain(cell: Cell) -> None:
    told, engine = cell.told(question(cell)), cell.engine(question(cell))
    assert (told.text, told.finish) == (engine.text, "length")
    assert len(told.text) > 10
    if cell.stream:
        assert told.pieces > LIMIT / 2


def system(cell: Cell) -> None:
    ask = question(cell, system="You speak French.")
    told = cell.told(ask)
    assert told.text == cell.engine(ask).text
    assert told.text != cell.engine(question(cell)).text


def multi_part(cell: Cell) -> None:
    ask = Ask(turns=(user("My cat is called Tom.", "What is my cat called?"),), limit=5)
    told = cell.told(ask)
    assert told.text == cell.engine(ask).text
    assert told.prompt_tokens == cell.engine(ask).prompt_tokens
    assert "Tom" in told.text


def multi_turn(cell: Cell) -> None:
    told, engine = cell.told(ENDING), cell.engine(ENDING)
    assert (told.text, told.finish) == (engine.text, "stop")
    assert (told.prompt_tokens, told.tokens) == (engine.prompt_tokens, engine.tokens)
    assert "Tom" in told.text


def prefilled(cell: Cell) -> None:
    """The beginning of an answer is continued, and not repeated."""
    ask = Ask(turns=(user(QUESTION), assistant("The months of the year are: January,")), limit=6)
    told = cell.told(ask)
    assert told.text == cell.agreed(told.text)
    assert told.text.lstrip().startswith("February")
    assert told.tokens == ask.limit
    assert told.prompt_tokens > cell.engine(question(cell)).prompt_tokens


def stop(cell: Cell) -> None:
    whole = cell.engine(question(cell)).text
    word = whole.split()[2]
    told = cell.told(question(cell, stop=("never-said", word)))
    assert (told.text, told.finish) == (whole[: whole.index(word)], "stop")
    if cell.api == "anthropic":
        assert (told.extra["stop_reason"], told.extra["stop_sequence"]) == ("stop_sequence", word)


def limit(cell: Cell) -> None:
    told = cell.told(question(cell, limit=5))
    assert (told.tokens, told.finish) == (5, "length")
    assert told.text
    assert cell.engine(question(cell)).text.startswith(told.text)


def seed(cell: Cell) -> None:
    """One seed gives one text, however it is asked for; another seed gives another text."""
    ask = Ask(turns=(user(QUESTION),), limit=6, temperature=1.5)
    seven, eight = (cell.told(replace(ask, seed=number)).text for number in (7, 8))
    assert seven == cell.agreed(seven, cell.api)
    assert eight != seven


def logprobs(cell: Cell) -> None:
    ask = question(cell, top_logprobs=2)
    told = cell.told(ask)
    assert told.text == cell.engine(question(cell)).text
    assert "".join(entry.token for entry in told.logprobs) == told.text
    assert len(told.logprobs) == told.tokens
    for entry in told.logprobs:
        (best, number), (_, other) = entry.best
        assert best == entry.token, "greedy takes the likeliest"
        assert number == pytest.approx(entry.value)
        assert other <= number
    kind = "continuation" if cell.api == "completions" else "chat"
    assert _numbers(told.logprobs) == pytest.approx(cell.agreed(_numbers(told.logprobs), kind), abs=0.02)


def _numbers(logprobs: tuple[Logprob, ...]) -> list[float]:
    numbers = [entry.value for entry in logprobs]
    assert all(number <= 0 for number in numbers)
    return numbers


def usage(cell: Cell) -> None:
    told, engine = cell.told(question(cell)), cell.engine(question(cell))
    assert (told.prompt_tokens, told.tokens) == (engine.prompt_tokens, LIMIT)
    if cell.api in ("ollama", "generate"):
        durations = [told.extra[f"{name}_duration"] for name in ("total", "prompt_eval", "eval")]
        assert 0 < sum(durations[1:]) <= durations[0]


def thinking_off(cell: Cell) -> None:
    told = cell.told(question(cell, think=False))
    assert (told.text, told.thinking) == (cell.engine(question(cell)).text, "")


def thinking_on(cell: Cell) -> None:
    """SmolLM2 does not think: Ollama's API says so, the others go on without."""
    whole = cell.engine(question(cell)).text
    word = whole.split()[2]
    ask = question(cell, think=True, stop=() if cell.api == "responses" else (word,))
    if cell.api in ("ollama", "generate"):
        failure = cell.failure(ask)
        assert failure.status == 400
        assert "does not support thinking" in failure.message
        return
    told = cell.told(ask)
    assert (told.text, told.thinking) == (whole if not ask.stop else whole[: whole.index(word)], "")


def choices(cell: Cell) -> None:
    ask = question(cell, choices=2)
    told, engine = cell.told(ask), cell.engine(question(cell))
    assert told.texts == (engine.text, engine.text)
    assert (told.prompt_tokens, told.tokens) == (engine.prompt_tokens, 2 * ask.limit)


def previous_response(cell: Cell) -> None:
    first = cell.told(Ask(turns=CONVERSATION[:1]))
    second = cell.told(Ask(turns=CONVERSATION[2:], previous=first.extra["id"]))
    assert second.extra["previous_response_id"] == first.extra["id"]
    turns = (CONVERSATION[0], assistant(first.text), CONVERSATION[2])
    assert second.text == cell.engine(Ask(turns=turns)).text
    assert second.prompt_tokens == cell.engine(Ask(turns=turns)).prompt_tokens


_HELPERS = {
    "openai": "chat.completions.stream",
    "responses": "responses.stream",
    "anthropic": "messages.stream",
}


def stream_helper(cell: Cell) -> None:
    """What the client's own helper makes of a stream is the whole answer."""
    api, engine = APIS[cell.api], cell.engine(ENDING)
    params = {name: value for name, value in api.params(ENDING, stream=True).items() if name != "stream"}
    reply = cell.call(_HELPERS[cell.api], "helper", **params)
    assert "error" not in reply, reply
    told = api.whole(reply["whole"])
    assert (told.text, told.finish) == (engine.text, "stop")
    assert (told.prompt_tokens, told.tokens) == (engine.prompt_tokens, engine.tokens)
    assert len(reply["pieces"]) > engine.tokens
