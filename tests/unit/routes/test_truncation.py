"""A conversation that is too long loses its oldest turns, and nothing else."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import ChatRequest, Message, Role, Text, ToolCall
from daemon.errors import PromptTooLong
from daemon.routes.truncation import cut, fitted

SYSTEM = Message("system", (Text("rules"),))


def turn(role: Role, text: str) -> Message:
    return Message(role, (Text(text),))


def chat(*messages: Message) -> ChatRequest:
    return ChatRequest(model="m", messages=messages)


async def words(request: ChatRequest) -> int:
    """As if each word were a token."""
    return sum(len(message.text.split()) for message in request.messages)


async def texts(request: ChatRequest, window: int) -> list[str]:
    return [message.text for message in (await fitted(request, window, words)).messages]


async def test_the_oldest_turns_go_first() -> None:
    request = chat(
        SYSTEM, turn("user", "a b"), turn("assistant", "c d"), turn("user", "e"), turn("user", "f")
    )
    assert await texts(request, 6) == ["rules", "c d", "e", "f"]
    assert await texts(request, 4) == ["rules", "e", "f"]
    assert await texts(request, 3) == ["rules", "f"]


async def test_the_window_keeps_room_for_a_token_of_the_answer() -> None:
    assert await texts(chat(turn("user", "a"), turn("user", "b c")), 3) == ["b c"]


async def test_a_system_prompt_in_the_middle_stays_where_it_is() -> None:
    request = chat(turn("user", "a b c"), SYSTEM, turn("user", "d"))
    assert await texts(request, 3) == ["rules", "d"]


async def test_a_call_goes_together_with_its_results() -> None:
    call = Message("assistant", (Text("call"),), tool_calls=(ToolCall("1", "f", "{}"),))
    result = Message("tool", (Text("result"),), tool_call_id="1")
    request = chat(turn("user", "a"), call, result, turn("assistant", "b"), turn("user", "c"))
    assert await texts(request, 4) == ["b", "c"]


async def test_what_follows_the_last_question_belongs_to_it() -> None:
    call = Message("assistant", (Text("call"),), tool_calls=(ToolCall("1", "f", "{}"),))
    result = Message("tool", (Text("result"),), tool_call_id="1")
    request = chat(turn("user", "old"), turn("user", "question"), call, result)
    assert await texts(request, 4) == ["question", "call", "result"]


async def test_a_last_turn_that_is_too_long_is_said_with_both_counts() -> None:
    with pytest.raises(PromptTooLong) as caught:
        await fitted(chat(SYSTEM, turn("user", "old"), turn("user", "a b c")), 4, words)
    assert (caught.value.needed, caught.value.available) == (4, 4)


@given(st.lists(st.sampled_from(["a", "b b", "c c c"]), min_size=1, max_size=12), st.integers(2, 20))
async def test_as_many_turns_stay_as_fit(sizes: Sequence[str], window: int) -> None:
    request = chat(SYSTEM, *(turn("user", text) for text in sizes))
    try:
        kept = (await fitted(request, window, words)).messages
    except PromptTooLong:
        assert 1 + len(sizes[-1].split()) >= window
        return
    assert kept[0] == SYSTEM
    assert kept[1:] == request.messages[len(request.messages) - len(kept) + 1 :]
    assert await words(chat(*kept)) < window


def test_text_keeps_its_beginning_and_its_end() -> None:
    assert cut(range(100), 20, 4) == (0, 1, 2, 3, *range(92, 100))
    assert cut(range(100), 20, 0) == tuple(range(90, 100))
