"""Whether an answer is valid for the format it was asked for."""

from typing import Any

import pytest

from daemon.chat import FinishReason, Piece, TextDelta, ToolCallDelta
from daemon.shaping.validate import CheckedText, Checker, wrong
from tests.fakes.readings import plain, read, read_text

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def reader() -> CheckedText:
    return CheckedText(Checker(SCHEMA))


def test_a_valid_answer_is_passed_on_without_a_word() -> None:
    assert plain(read_text(reader, '{"a": 1}', [3])) == ('{"a": 1}', "", [], FinishReason.STOP, ())


@pytest.mark.parametrize(
    ("text", "reason", "warning"),
    [
        (
            '{"a": "x"}',
            FinishReason.STOP,
            "the answer is not valid for the format: 'x' is not of type 'integer' at #/a",
        ),
        (
            '{"b": 1}',
            FinishReason.STOP,
            "the answer is not valid for the format: 'a' is a required property at #",
        ),
        ('```json\n{"a": 1}', FinishReason.STOP, "the answer is not JSON"),
        ("", FinishReason.STOP, "the answer is not JSON"),
        ("[" * 100_000, FinishReason.STOP, "the answer is not JSON"),
        (
            '{"a": 1',
            FinishReason.LENGTH,
            "the answer was cut by the token limit, so that it need not be valid for the format",
        ),
    ],
)
def test_any_other_says_what_is_wrong(text: str, reason: FinishReason, warning: str) -> None:
    answer = read_text(reader, text, reason=reason)
    assert (answer.text, answer.done.reason, answer.done.warnings) == (text, reason, (warning,))


def test_tool_calls_are_not_checked() -> None:
    pieces: list[Piece] = [TextDelta("Let me see."), ToolCallDelta(0, "{}", "call_1", "time")]
    assert read(reader(), pieces).done.warnings == ()


def test_notes_are_always_said() -> None:
    assert read_text(lambda: CheckedText(Checker(True), ("note",)), "1").done.warnings == ("note",)


def test_a_long_value_is_not_repeated_in_full() -> None:
    answer = read_text(reader, f'{{"a": "{"x" * 5000}"}}')
    assert len(answer.done.warnings[0]) < 300


def test_patterns_and_formats_are_checked() -> None:
    assert Checker({"pattern": "^a+$"}).problem("ab") == "'ab' does not match '^a+$' at #"
    assert Checker({"pattern": "^a+$"}).problem("aa") is None
    assert Checker({"format": "date"}).problem("2024-02-30") == "'2024-02-30' is not a 'date' at #"


def test_a_pattern_that_takes_re_for_ever_is_checked() -> None:
    assert Checker({"pattern": "^(a|aa)+$"}).problem("a" * 300 + "b") is not None


def test_nothing_is_fetched() -> None:
    checker = Checker({"$ref": "http://127.0.0.1:9/schema"})
    assert checker.problem(1) == "its schema is too entangled to check it"
    assert not checker.valid(1, {"$ref": "http://127.0.0.1:9/schema"})


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (SCHEMA, None),
        (True, None),
        ({"items": [{"type": "string"}]}, None),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [True]}, None),
        ({"$schema": ["odd"]}, "['odd'] is not of type 'string' at #/$schema"),
        ({"type": "text"}, "'text' is not valid under any of the given schemas at #/type"),
        (
            {"properties": {"a/b": {"minLength": "1"}}},
            "'1' is not of type 'integer' at #/properties/a~1b/minLength",
        ),
    ],
)
def test_schemas_are_checked_themselves(schema: Any, problem: str | None) -> None:
    assert wrong(schema) == problem


def test_names_of_properties_are_not_matched_against_patterns() -> None:
    checker = Checker({"patternProperties": {"^(a+)+$": False}, "additionalProperties": False})
    assert checker.problem({"a" * 40 + "b": 1}) is None
