"""A conversation that is too long, made to fit. Pure; what counts the tokens is handed in.

The system prompts, the tools and the last turn are kept; the oldest turns go first, each call of a tool together with
its results. Source: the `truncate` option of Ollama's API.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from daemon.chat import ChatRequest, Message
from daemon.errors import PromptTooLong

Count = Callable[[ChatRequest], Awaitable[int]]


async def fitted(request: ChatRequest, window: int, count: Count) -> ChatRequest:
    """The request with as many of its newest turns as fit into `window` tokens, and room for a token of the answer.

    Raises PromptTooLong when not even the last turn does.
    """
    turns = _turns(request.messages)
    droppable = [turn for turn in turns[:-1] if turn[0].role != "system"]
    low, high = 0, len(droppable)  # how many of the oldest go; with fewer than `low` it is too long
    best: ChatRequest | None = None
    while low <= high:
        dropped = (low + high) // 2
        shorter = _without(request, turns, droppable[:dropped])
        if await count(shorter) < window:
            best, high = shorter, dropped - 1
        else:
            low = dropped + 1
    if best is None:
        raise PromptTooLong(await count(_without(request, turns, droppable)), window)
    return best


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages that only make sense together: calls with their results, a question with an answer's beginning."""
    turns: list[list[Message]] = []
    for message in messages:
        belongs = message.role == "tool" and turns and turns[-1][0].role == "assistant"
        if belongs:
            turns[-1].append(message)
        else:
            turns.append([message])
    return _last_whole(turns)


def _last_whole(turns: list[list[Message]]) -> list[list[Message]]:
    """The last question of the user and all that follows it are one turn."""
    last = max((i for i, turn in enumerate(turns) if turn[0].role == "user"), default=len(turns) - 1)
    if last < 0:
        return turns
    return [*turns[:last], [message for turn in turns[last:] for message in turn]]


def _without(
    request: ChatRequest, turns: list[list[Message]], dropped: Sequence[list[Message]]
) -> ChatRequest:
    gone = {id(turn) for turn in dropped}
    return replace(request, messages=tuple(m for turn in turns if id(turn) not in gone for m in turn))


def cut(tokens: Sequence[int], window: int, keep: int) -> tuple[int, ...]:
    """Plain text that is too long: its first `keep` tokens and its end, as many as leave half of the rest free."""
    keep = max(0, min(keep, window // 2))
    room = window - max((window - keep) // 2, 1)
    return (*tokens[:keep], *tokens[len(tokens) - (room - keep) :])
