"""Whether a value, and whether an answer, is valid for a JSON schema. Judged by the jsonschema library.

Two things are changed: patterns are matched by `patterns.py`, as the `re` module takes exponential time for some of
them and a stranger wrote them; and nothing is ever fetched that a `$ref` names.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jsonschema
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from daemon.chat import Done, FinishReason, Piece, TextDelta, ToolCallDelta
from daemon.shaping import patterns

_MAX_SHOWN = 160


class Checker:
    """Judges values by `schema`, which has to be valid itself."""

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        self._validator = _validator(_dialect(schema))(
            schema, registry=Registry(), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )

    def problem(self, value: Any) -> str | None:
        """What is wrong with `value`, and where; None when it is valid."""
        try:
            error = jsonschema.exceptions.best_match(self._validator.iter_errors(value))
        except (Unresolvable, RecursionError):
            return "its schema is too entangled to check it"
        return None if error is None else f"{_brief(error.message)} at {pointer(error.absolute_path)}"

    def valid(self, value: Any, part: Mapping[str, Any]) -> bool:
        """Whether `value` is valid for `part` of the schema."""
        try:
            return bool(self._validator.evolve(schema=part).is_valid(value))
        except (Unresolvable, RecursionError):
            return False


class CheckedText:
    """A reader of one answer that says at its end when the text is not what was asked for. `notes` are said always.

    An answer that is tool calls is not checked.
    """

    def __init__(self, checker: Checker, notes: tuple[str, ...] = ()) -> None:
        self._checker = checker
        self._notes = notes
        self._texts: list[str] = []
        self._called = False

    def feed(self, piece: Piece) -> Sequence[Piece]:
        if isinstance(piece, TextDelta):
            self._texts.append(piece.text)
        elif isinstance(piece, ToolCallDelta):
            self._called = True
        return (piece,)

    def end(self, done: Done) -> tuple[Sequence[Piece], Done]:
        problem = None if self._called else self._problem("".join(self._texts), done.reason)
        warnings = (*done.warnings, *self._notes, *([problem] if problem else []))
        return (), replace(done, warnings=warnings)

    def _problem(self, text: str, reason: FinishReason) -> str | None:
        if reason == FinishReason.LENGTH:
            return "the answer was cut by the token limit, so that it need not be valid for the format"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return "the answer is not JSON"
        problem = self._checker.problem(value)
        return f"the answer is not valid for the format: {problem}" if problem else None


def wrong(schema: Mapping[str, Any] | bool) -> str | None:
    """Why `schema` is not a JSON schema; None when it is one."""
    try:
        _dialect(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"{_brief(error.message)} at {pointer(error.absolute_path)}"
    except RecursionError:
        return "it is nested too deep"
    return None


def pointer(path: Any) -> str:
    return "/".join(["#", *(str(step).replace("~", "~0").replace("/", "~1") for step in path)])


def _brief(message: str) -> str:
    return (
        message
        if len(message) <= _MAX_SHOWN
        else f"{message[: _MAX_SHOWN // 2]} ... {message[-_MAX_SHOWN // 2 :]}"
    )


def _dialect(schema: Mapping[str, Any] | bool) -> Any:
    """The draft that `$schema` names, else the newest that the schema is valid for: many are written for draft 7."""
    if isinstance(schema, Mapping) and isinstance(schema.get("$schema"), str):
        return validator_for(schema, default=jsonschema.Draft202012Validator)
    old = jsonschema.Draft7Validator
    newest = jsonschema.Draft202012Validator
    return old if not _fits(newest, schema) and _fits(old, schema) else newest


def _fits(dialect: Any, schema: Any) -> bool:
    return bool(dialect(dialect.META_SCHEMA).is_valid(schema))


@cache
def _validator(dialect: Any) -> Any:
    known = dialect.VALIDATORS
    changed = {name: _but_with_patterns(known[name]) for name in _READ_PATTERNS & known.keys()}
    changed |= {"pattern": _pattern, "patternProperties": _unchecked}
    return extend(dialect, changed)  # type: ignore[no-untyped-call]


_READ_PATTERNS = {"additionalProperties", "unevaluatedProperties"}


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "string"):
        return
    try:
        tree = patterns.parse(pattern)
    except patterns.PatternNotSupported:
        return
    if not patterns.matches(tree, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _unchecked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    yield from ()


def _but_with_patterns(check: Any) -> Any:
    """`check`, but not where it would have to match names of properties against patterns."""

    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if "patternProperties" not in schema:
            yield from check(validator, value, instance, schema)

    return checked
