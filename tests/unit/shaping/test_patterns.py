"""Patterns: what is written for the engine holds in JSON and matches the original, and matching is quick."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.shaping.formats import PATTERNS
from daemon.shaping.patterns import PatternNotSupported, matches, parse, within, written
from tests.fakes.readings import strings

EXAMPLES = [
    r"^[A-Z]{3}-\d{4}$",
    r"^\+?[1-9]\d{1,14}$",
    r"^(a|bc)*d{2,}$",
    r"^[^,\s]+$",
    r"^/api/.*\.json$",
    r"b+",
    r"^x|y$",
    r'^"quoted\\"$',
    r"^a\nb$",
    r"^[\w.-]+@[\w-]+\.[a-z]{2,}$",
    "^é+ß?$",
    r"^\x41[\u0042-\u0044]$",
    r"^(?:[01]\d|2[0-3]):[0-5]\d$",
    r"^[\]a]$",
    r"^[a-z]+?$",
    *PATTERNS.values(),
]


@pytest.mark.parametrize("pattern", EXAMPLES)
@settings(max_examples=25)
@given(data=st.data())
def test_whatever_the_engine_may_write_is_json_and_matches_the_original(
    pattern: str, data: st.DataObject
) -> None:
    value = data.draw(strings(written(parse(pattern))))
    assert re.search(pattern, value)
    assert matches(parse(pattern), value)


@pytest.mark.parametrize("pattern", EXAMPLES)
@settings(max_examples=25)
@given(data=st.data())
def test_matching_agrees_with_the_standard_library(pattern: str, data: st.DataObject) -> None:
    text = data.draw(strings(written(parse(pattern))) | st.text("abcdxy12-_.,@é \n", max_size=12))
    expected = re.search(
        pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern, text, re.ASCII
    )
    # Negated categories keep to ASCII.
    assert matches(parse(pattern), text) == (bool(expected) and (text.isascii() or "[^" not in pattern))


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"^\bword$", "\\b"),
        (r"^(a)\1$", "\\1"),
        (r"^\p{L}+$", "\\p"),
        (r"^(?=a)a$", "group of a kind"),
        (r"^(?<name>a)$", "group of a kind"),
        (r"^(^a|b)$", "anchor"),
        (r"^(a$|b)$", "anchor"),
        (r"^(a*)*$", "without end"),
        (r"^a{2000}$", "more than 1000"),
        (r"^a{3,2}$", "wrong way round"),
        (r"^[z-a]$", "wrong way round"),
        (r"^[a$", "without its ']'"),
        (r"^(a$", "anchor"),
        (r"^(a", "without its ')'"),
        (r"^a)$", "')' too many"),
        (r"^*a$", "nothing to repeat"),
        (r"^{a}$", "nothing to repeat"),
        (r"^a{x}$", "not a repetition"),
        (r"^\x4$", "hexadecimal"),
        ("^a\\", "ends too early"),
        ("^" + "(" * 50 + "a" + ")" * 50 + "$", "deeper than"),
    ],
)
def test_what_no_grammar_has_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(PatternNotSupported) as error:
        parse(pattern)
    assert reason in str(error.value)


def test_a_character_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(PatternNotSupported, match="cannot be written"):
        written(parse("^\\x01$"))


def test_lengths_bound_the_one_repetition() -> None:
    assert written(within(parse("^[a-z]+$"), 3, 10)) == "^[a-z]{3,10}$"
    assert written(within(parse("^x[a-z]*$"), 0, 10)) == "^[x][a-z]{0,9}$"
    assert written(within(parse("^[a-z]{2,4}$"), 1, 9)) == "^[a-z]{2,4}$"


@pytest.mark.parametrize(("low", "high"), [(0, 3), (12, None), (0, 5)])
def test_lengths_that_do_not_fit_are_refused(low: int, high: int | None) -> None:
    with pytest.raises(PatternNotSupported, match="length"):
        within(parse("^(ab)+[a-z]+$") if high == 5 else parse("^[a-z]{4,9}$"), low, high)


def test_a_pattern_that_takes_re_for_ever_is_matched() -> None:
    assert not matches(parse("^(a|aa)+$"), "a" * 400 + "b")
    assert not matches(parse("^(a+)+$"), "a" * 400 + "b")
