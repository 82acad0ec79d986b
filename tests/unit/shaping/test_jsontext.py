"""JSON of models: where it ends, and what is mended in it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.shaping.jsontext import Tracker, mended, parsed
from tests.fakes.readings import chunks

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=st.dictionaries(st.text(), JSON, max_size=3), after=st.text(), cuts=st.lists(st.integers(0, 99)))
def test_the_end_of_an_object_is_found_in_any_chunking(value: Any, after: str, cuts: list[int]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    tracker, taken = Tracker(), ""
    for chunk in chunks(text + after, cuts):
        if tracker.complete:
            break
        taken += chunk[: tracker.feed(chunk)]
    assert taken == text
    assert tracker.complete


def test_a_bracket_that_does_not_fit_breaks_it() -> None:
    tracker = Tracker()
    assert tracker.feed('{"a": 1]}') == 7
    assert tracker.broken
    assert not tracker.complete


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": 1} and so on', '{"a": 1}'),
        ('{"a": 1}}', '{"a": 1}'),
        ('{"a": {"b": [1', '{"a": {"b": [1]}}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}\n'),
        ('```\n{"a": 1}', '{"a": 1}'),
        ('[{"a": 1}]', '{"a": 1}'),
        (r'"{\"a\": 1}"', '{"a": 1}'),
        ('{"a": [1, 2,], "b,]": 3,}', '{"a": [1, 2], "b,]": 3}'),
        ("", "{}"),
        ("  \n", "{}"),
    ],
)
def test_what_is_plain_is_mended(text: str, meant: str) -> None:
    assert mended(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "cut',
        "[1, 2]",
        '[{"a": 1}, {"b": 2}]',
        "Paris",
        "{'a': 1}",
        '{"a": 1]',
        '{"a":',
        "null",
        '{"a": NaN}',
    ],
)
def test_what_is_not_plain_is_left(text: str) -> None:
    assert mended(text) is None


@pytest.mark.parametrize("text", ["NaN", "1e999", "[", '"\\ud800"', "[" * 100_000, "1" * 5000])
def test_what_cannot_be_written_again_is_no_value(text: str) -> None:
    assert parsed(text) is None
