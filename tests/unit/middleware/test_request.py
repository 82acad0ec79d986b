import math
from typing import Any

import pytest

from daemon.chat import Sampling
from daemon.middleware import request as pieces
from daemon.middleware.fields import BadField, FieldNotSupported, Fields


def read(data: dict[str, Any]) -> Sampling:
    return pieces.sampling(Fields(data), max_tokens=None)


def test_every_option_of_sampling_is_read() -> None:
    options = {
        "stop": ["a", "b"],
        "seed": 7,
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "typical_p": 1,
        "repeat_last_n": 64,
        "repeat_penalty": 1.1,
        "presence_penalty": -0.5,
        "frequency_penalty": 2,
        "num_keep": 4,
    }
    expected = Sampling(max_tokens=5, **{**options, "stop": ("a", "b")})  # type: ignore[arg-type]
    assert pieces.sampling(Fields(options), max_tokens=5) == expected
    assert read({}) == Sampling()


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 2**31}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_p": 1.01}, "top_p"),
        ({"min_p": "0"}, "min_p"),
        ({"typical_p": -1}, "typical_p"),
        ({"repeat_last_n": 2**20 + 1}, "repeat_last_n"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": [1]}, "frequency_penalty"),
        ({"num_keep": {}}, "num_keep"),
        ({"seed": 2**63}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"stop": 7}, "stop"),
        ({"stop": ["x", None]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
    ],
)
def test_wrong_options_are_named(data: dict[str, Any], field: str) -> None:
    with pytest.raises(BadField) as caught:
        read(data)
    assert caught.value.field == field


def test_names_and_bounds_that_differ_between_dialects() -> None:
    fields = Fields({"stop_sequences": ["x"], "stop": 5, "temperature": 3}, "options.")
    read_ones = pieces.sampling(fields, max_tokens=None, stop="stop_sequences", max_temperature=100)
    assert (read_ones.stop, read_ones.temperature) == (("x",), 3.0)
    with pytest.raises(BadField, match=r"^options\.temperature must be a number from 0 to 2, not 3$"):
        pieces.sampling(fields, max_tokens=None, stop="stop_sequences")


def test_stop_sequences() -> None:
    assert read({"stop": "x"}).stop == ("x",)
    assert read({"stop": []}).stop == ()
    assert read({"stop": None}).stop is None
    assert read({"stop": ["x"] * 16}).stop == ("x",) * 16


@pytest.mark.parametrize(
    ("seed", "folded"),
    [
        (-1, -1),
        (0, 0),
        (42, 42),
        (2**32 - 2, 2**32 - 2),
        (2**32 - 1, 0),
        (2**63 - 1, (2**63 - 1) % (2**32 - 1)),
    ],
)
def test_seeds_fit_the_engine_and_never_become_random(seed: int, folded: int) -> None:
    assert read({"seed": seed}).seed == folded


def test_negative_seeds_are_stable() -> None:
    seed = read({"seed": -(2**63)}).seed
    assert seed is not None
    assert 0 <= seed < 2**32 - 1


@pytest.mark.parametrize(
    ("seed", "place", "later"),
    [(None, 1, -1), (-1, 3, -1), (0, 1, 1), (42, 15, 57), (2**32 - 2, 1, 0)],
)
def test_later_answers_have_other_seeds(seed: int | None, place: int, later: int) -> None:
    assert pieces.later_seed(seed, place) == later


@pytest.mark.parametrize(
    ("value", "switch"),
    [
        (None, None),
        (True, True),
        (False, False),
        ("none", False),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "high"),
        ("max", "high"),
        ("ultra", "high"),
    ],
)
def test_thinking(value: Any, switch: bool | str | None) -> None:
    read_one = pieces.thinking(Fields({"think": value}), "think")
    assert (read_one, type(read_one)) == (switch, type(switch))


@pytest.mark.parametrize("value", ["", "much", 1, 0, [], {}])
def test_wrong_thinking(value: Any) -> None:
    with pytest.raises(BadField, match=r"^o\.think must be true, false or one of none, minimal, low, medium"):
        pieces.thinking(Fields({"think": value}, "o."), "think")


@pytest.mark.parametrize(
    ("value", "seconds"), [(None, None), (0, 0), ("5m", 300), (1.5, 1.5), (-1, math.inf), ("-1s", math.inf)]
)
def test_keep_alive(value: Any, seconds: float | None) -> None:
    assert pieces.keep_alive(Fields({"keep_alive": value})) == seconds


@pytest.mark.parametrize("value", ["5", True, [], {}, "soon"])
def test_wrong_keep_alive(value: Any) -> None:
    with pytest.raises(BadField, match=r"^keep_alive must be a number of seconds or a duration like"):
        pieces.keep_alive(Fields({"keep_alive": value}))


@pytest.mark.parametrize("data", [{}, {"model": None}, {"model": ""}])
def test_model_is_required(data: dict[str, Any]) -> None:
    with pytest.raises(BadField, match=r"^model is required$"):
        pieces.model(Fields(data))


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("system", "system"),
        ("developer", "system"),
        ("User", "user"),
        ("ASSISTANT", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
def test_roles(text: str, role: str) -> None:
    assert pieces.role(Fields({"role": text})) == role


def test_wrong_roles_are_named_with_their_index() -> None:
    wrong = [{"role": "user"}, {"role": "robot"}, {}, {"role": 1}]
    items = pieces.messages(Fields({"messages": wrong}))
    with pytest.raises(BadField, match=r'^messages\[1\]\.role must be one of .* function, not "robot"$'):
        pieces.role(items[1])
    with pytest.raises(BadField, match=r"^messages\[2\]\.role is required$"):
        pieces.role(items[2])
    with pytest.raises(BadField, match=r"^messages\[3\]\.role must be a string"):
        pieces.role(items[3])


def test_a_kind_of_content_that_nothing_reads() -> None:
    error = pieces.unbuilt_kind(Fields({"type": "video"}, "messages[0].content[1]."))
    assert isinstance(error, FieldNotSupported)
    assert error.message == 'messages[0].content[1].type "video" is not supported'


def test_messages_are_bounded() -> None:
    assert len(pieces.messages(Fields({"messages": [{}] * 10_000}))) == 10_000
    with pytest.raises(BadField, match=r"^messages has 10001 entries; at most 10000 are allowed$"):
        pieces.messages(Fields({"messages": [{}] * 10_001}))
