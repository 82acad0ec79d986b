"""Which request is to blame for a crash, and what makes two requests the same one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import (
    Batch,
    ChatRequest,
    CompletionRequest,
    CountRequest,
    EmbedRequest,
    Image,
    JsonFormat,
    LoadOptions,
    Message,
    Request,
    RerankRequest,
    Sampling,
    Text,
    Tool,
    ToolCall,
)
from daemon.errors import InvalidRequest
from daemon.scheduler import poison
from daemon.scheduler.poison import Poison, fingerprint

POISON, OTHER, THIRD = b"poison", b"other", b"third"

CHAT = ChatRequest(
    model="smol",
    messages=(
        Message("user", (Text("look"), Image("AAAA", "image/png"))),
        Message("assistant", tool_calls=(ToolCall("call_1", "f", "{}"),)),
        Message("tool", (Text("42"),), tool_call_id="call_1"),
    ),
    sampling=Sampling(temperature=0.0, seed=1),
    tools=(Tool("f", "", {"type": "object", "properties": {"a": {}, "b": {}}}),),
)


# ---- fingerprints


def test_a_fingerprint_is_stable_across_processes() -> None:
    assert (
        fingerprint("m", EmbedRequest(model="x", inputs=("a", (1, 2)))).hex()
        == "9caa5ece05f0f7e909dc82ad07f67527"
    )


@pytest.mark.parametrize(
    "same",
    [
        replace(CHAT, model="SMOL:latest"),
        replace(CHAT, stream=True, include_usage=False, keep_alive=5.0),
        replace(CHAT, sampling=replace(CHAT.sampling, seed=None)),
        replace(
            CHAT,
            messages=(
                CHAT.messages[0],
                Message("assistant", tool_calls=(ToolCall("call_2", "f", "{}"),)),
                Message("tool", (Text("42"),), tool_call_id="call_2"),
            ),
        ),
        replace(CHAT, tools=(Tool("f", "", {"properties": {"b": {}, "a": {}}, "type": "object"}),)),
    ],
    ids=["name", "delivery", "seed", "ids", "order of keys"],
)
def test_what_is_random_or_the_clients_own_does_not_count(same: ChatRequest) -> None:
    assert fingerprint("m", same) == fingerprint("m", CHAT)


@pytest.mark.parametrize(
    "other",
    [
        replace(CHAT, messages=CHAT.messages[:2]),
        replace(CHAT, messages=(replace(CHAT.messages[0], parts=(Text("look"),)), *CHAT.messages[1:])),
        replace(CHAT, sampling=replace(CHAT.sampling, temperature=0.5)),
        replace(CHAT, load=LoadOptions(window=512)),
        replace(CHAT, format=JsonFormat()),
        replace(CHAT, format=JsonFormat({"pattern": "("})),
        replace(CHAT, tools=()),
        CountRequest(chat=CHAT),
        CompletionRequest(model="smol", prompt="look"),
        CompletionRequest(model="smol", prompt=(1, 2)),
        EmbedRequest(model="smol", inputs=("look",)),
        RerankRequest(model="smol", query="look", documents=()),
        Batch(
            (CompletionRequest(model="smol", prompt="look"), CompletionRequest(model="smol", prompt="look"))
        ),
    ],
)
def test_what_the_engine_is_asked_counts(other: Request) -> None:
    assert fingerprint("m", other) != fingerprint("m", CHAT)


def test_the_same_request_to_other_files_is_another_one() -> None:
    assert fingerprint("m", CHAT) != fingerprint("n", CHAT)


prompts = st.text() | st.lists(st.integers(), max_size=4).map(tuple)


@given(prompts, prompts)
def test_equal_prompts_and_only_they_have_equal_fingerprints(
    one: str | tuple[int, ...], two: str | tuple[int, ...]
) -> None:
    made = [fingerprint("m", CompletionRequest(model="x", prompt=prompt)) for prompt in (one, two)]
    assert (made[0] == made[1]) == (one == two)
    assert len(made[0]) == 16


# ---- the rule


def test_the_second_crash_is_proof_and_explains_the_first() -> None:
    rule = Poison()
    assert rule.crashed([POISON], 10.0) == ()
    assert rule.refusal(POISON, 11.0) is None
    assert rule.crashed([POISON], 20.0) == (10.0, 20.0)
    error = rule.refusal(POISON, 21.5)
    assert isinstance(error, InvalidRequest)
    assert error.message == (
        "this request is refused for another 599 s, as the engine crashed on it repeatedly; change the request, "
        "or use another model"
    )
    assert rule.refusal(OTHER, 21.5) is None


def test_after_ten_minutes_it_is_innocent_again() -> None:
    rule = Poison()
    rule.crashed([POISON], 10.0)
    rule.crashed([POISON], 20.0)
    assert rule.refusal(POISON, 619.9) is not None
    assert rule.refusal(POISON, 620.0) is None
    assert rule.crashed([POISON], 620.0) == ()


def test_a_mark_is_forgotten_after_ten_minutes() -> None:
    rule = Poison()
    rule.crashed([POISON], 0.0)
    assert rule.is_suspect(POISON, 599.0)
    assert not rule.is_suspect(POISON, 600.0)
    assert rule.crashed([POISON], 600.0) == ()


def test_a_newer_mark_of_one_does_not_keep_the_older_one_of_another() -> None:
    rule = Poison()
    rule.crashed([POISON], 1.0)
    rule.crashed([OTHER], 2.0)
    rule.crashed([POISON], 3.0)
    assert [rule.is_suspect(one, 602.0) for one in (POISON, OTHER)] == [True, False]


def test_a_crash_with_nobody_in_flight_is_the_models() -> None:
    rule = Poison()
    assert rule.crashed([], 1.0) == ()
    assert not rule


def test_an_answer_clears_a_suspect() -> None:
    rule = Poison()
    rule.crashed([POISON, OTHER], 1.0)
    rule.answered(OTHER)
    rule.answered(b"never seen")
    assert [rule.is_suspect(one, 2.0) for one in (POISON, OTHER)] == [True, False]


def test_who_was_in_an_earlier_crash_is_blamed_and_newcomers_are_not() -> None:
    rule = Poison()
    rule.crashed([POISON], 1.0)
    assert rule.crashed([POISON, OTHER], 2.0) == (1.0, 2.0)
    assert not rule.is_suspect(OTHER, 3.0)
    assert rule.refusal(OTHER, 3.0) is None


def test_who_was_alone_in_a_crash_is_blamed_before_who_was_not() -> None:
    rule = Poison()
    rule.crashed([OTHER, THIRD], 1.0)
    rule.crashed([POISON], 2.0)
    assert rule.crashed([OTHER, POISON], 3.0) == (2.0, 3.0)
    assert rule.refusal(OTHER, 4.0) is None
    assert rule.refusal(POISON, 4.0) is not None


def test_two_clients_with_the_same_request_are_alone() -> None:
    rule = Poison()
    rule.crashed([POISON, POISON], 1.0)
    rule.crashed([OTHER, THIRD], 1.0)
    assert rule.crashed([POISON, OTHER], 2.0) == (1.0, 2.0)
    assert rule.refusal(OTHER, 3.0) is None


def test_those_that_are_repeated_together_are_convicted_together() -> None:
    rule = Poison()
    rule.crashed([POISON, OTHER], 1.0)
    assert rule.crashed([POISON, OTHER], 2.0) == (1.0, 2.0)
    assert rule.refusal(POISON, 3.0) is not None
    assert rule.refusal(OTHER, 3.0) is not None


def test_suspects_that_are_kept_apart_show_who_it_is() -> None:
    rule = Poison()
    rule.crashed([POISON, OTHER], 1.0)
    rule.crashed([POISON, THIRD], 2.0)
    rule.answered(OTHER)
    assert rule.refusal(POISON, 3.0) is not None
    assert not rule.is_suspect(OTHER, 3.0)
    assert not rule.is_suspect(THIRD, 3.0)


def test_a_crash_of_a_convicted_request_that_was_in_flight_already_is_explained() -> None:
    rule = Poison()
    for at in (1.0, 2.0):
        rule.crashed([POISON], at)
    assert rule.crashed([POISON, OTHER], 3.0) == (2.0, 3.0)
    assert rule.refusal(POISON, 602.9) is not None


def test_a_reset_forgets_all() -> None:
    rule = Poison()
    rule.crashed([POISON], 1.0)
    rule.reset()
    assert not rule


def test_it_is_bounded_and_drops_the_oldest_mark() -> None:
    rule = Poison()
    for number in range(poison.MAX_SUSPECTS + 5):
        rule.crashed([b"%d" % number], 1.0)
    assert len(rule) == poison.MAX_SUSPECTS
    assert not rule.is_suspect(b"4", 2.0)
    assert rule.is_suspect(b"5", 2.0)


crashes = st.lists(
    st.tuples(
        st.floats(0, 300),
        st.sets(st.sampled_from([POISON, OTHER, THIRD])),
        st.sampled_from([None, POISON, OTHER]),
    ),
    max_size=30,
)


@given(crashes)
def test_nobody_is_refused_for_fewer_than_two_crashes_since_its_last_answer_or_longer_than_ten_minutes(
    history: list[tuple[float, set[bytes], bytes | None]],
) -> None:
    rule, now = Poison(), 0.0
    seen: dict[bytes, list[float]] = {POISON: [], OTHER: [], THIRD: []}
    for seconds, in_flight, answered in history:
        now += seconds
        if answered is not None:
            rule.answered(answered)
            seen[answered].clear()
        explained = rule.crashed(in_flight, now)
        for one in in_flight:
            seen[one].append(now)
        assert set(explained) <= {at for one in in_flight for at in seen[one]}
        assert bool(explained) == any(rule.refusal(one, now) for one in in_flight)
        for one, moments in seen.items():
            if rule.refusal(one, now):
                assert len(moments) >= poison.PROOF
            assert rule.refusal(one, now + poison.REMEMBERED_SECONDS) is None
