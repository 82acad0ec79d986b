"""Several JSON schemas that hold at once, as one; and whether two exclude each other."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]


class CannotMerge(ValueError):
    """The message says what does not go together."""


def merged(parts: list[Any]) -> Any:
    """One schema that says what all `parts` say. Raises CannotMerge."""
    whole: Any = True
    for part in parts:
        whole = _both(whole, part)
    return whole


def _both(first: Any, second: Any) -> Any:
    if first is True or second is True or first == second:
        return second if first is True else first
    if first is False or second is False:
        return False
    _closed(first, second)
    _closed(second, first)
    whole = dict(first)
    for key, value in second.items():
        whole[key] = _RULES.get(key, _same)(key, whole[key], value) if key in whole else value
    return whole


def _closed(first: Schema, second: Schema) -> None:
    """A part that allows no further properties would speak of the other's too."""
    more = first.get("additionalProperties", True)
    if more is not True and more != second.get("additionalProperties"):
        others = (second.get("properties") or {}).keys() - (first.get("properties") or {}).keys()
        if others:
            raise CannotMerge(f"one part has '{min(others)}', and another has it as an additional property")


def _same(key: str, first: Any, second: Any) -> Any:
    if first != second and key in _CONSTRAINING:
        raise CannotMerge(f"its parts differ in '{key}'")
    return first


def _types(_: str, first: Any, second: Any) -> list[str]:
    firsts, seconds = ([each] if isinstance(each, str) else list(each) for each in (first, second))
    common = [each for each in firsts if each in seconds or (each == "integer" and "number" in seconds)]
    common += [each for each in seconds if each == "integer" and "number" in firsts and each not in common]
    if not common:
        raise CannotMerge("its parts have no type in common")
    return common


def _properties(_: str, first: Schema, second: Schema) -> dict[str, Any]:
    both = {name: _both(first[name], second[name]) for name in first if name in second}
    return {**first, **second, **both} if both else {**first, **second}


def _values(_: str, first: list[Any], second: list[Any]) -> list[Any]:
    common = [value for value in first if value in second]
    if not common:
        raise CannotMerge("its parts have no value in common")
    return common


def _schema(_: str, first: Any, second: Any) -> Any:
    return _both(first, second)


_RULES: Mapping[str, Callable[[str, Any, Any], Any]] = {
    "type": _types,
    "properties": _properties,
    "required": lambda _, first, second: list(dict.fromkeys([*first, *second])),
    "enum": _values,
    "items": lambda key, first, second: (
        _same(key, first, second)
        if isinstance(first, list) or isinstance(second, list)
        else _both(first, second)
    ),
    "additionalProperties": _schema,
    "allOf": lambda _, first, second: [*first, *second],
    **dict.fromkeys(
        ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), lambda _, a, b: max(a, b)
    ),
    **dict.fromkeys(
        ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), lambda _, a, b: min(a, b)
    ),
    "uniqueItems": lambda _, first, second: first or second,
}

# Where these differ, neither may be dropped; of titles and the like, the first will do.
_CONSTRAINING = frozenset(
    (
        *("const", "$ref", "anyOf", "oneOf", "not", "if", "then", "else", "pattern", "format", "multipleOf"),
        *(
            "prefixItems",
            "items",
            "additionalItems",
            "unevaluatedItems",
            "contains",
            "minContains",
            "maxContains",
        ),
        *(
            "patternProperties",
            "propertyNames",
            "dependentRequired",
            "dependentSchemas",
            "unevaluatedProperties",
        ),
    )
)


def strictly(
    first: Any,
    second: Any,
    types: Callable[[Schema], list[str]],
    valid: Callable[[Any, Schema], bool],
) -> bool:
    """Whether no value that is written for `first` is valid for `second`: it has another type, lacks a property that
    `second` requires, or has a value that `second` does not allow. An object has no properties but the named ones."""
    if not (isinstance(first, Mapping) and isinstance(second, Mapping)):
        return False
    values = [first["const"]] if "const" in first else first.get("enum")
    if values is not None:
        return not any(valid(value, second) for value in values)
    if "anyOf" in first or "oneOf" in first or "allOf" in first:
        return False
    firsts, seconds = types(first), types(second)
    if firsts and seconds and second.get("type") is not None and not _share(firsts, seconds):
        return True
    if firsts != ["object"] or seconds != ["object"]:
        return False
    mine, its = first.get("properties") or {}, second.get("properties") or {}
    known = {*mine, *(first.get("required") or ())}
    if known and not set(second.get("required") or ()) <= known:
        return True
    shared = [name for name in first.get("required") or () if name in mine and name in its]
    return any(strictly(mine[name], its[name], types, valid) for name in shared)


def _share(first: list[str], second: list[str]) -> bool:
    numbers = {"integer", "number"}
    return bool(set(first) & set(second)) or bool(numbers & set(first) and numbers & set(second))
