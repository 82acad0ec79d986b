"""Thirty JSON schemas as clients send them. `ENFORCED` are those that the engine is made to keep to; the others are
refused, and name the keyword that is the reason."""

from typing import Any

_POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
}


def _object(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties] if required is None else required,
    }


ENFORCED: dict[str, dict[str, Any]] = {
    "plain_object": _object(name={"type": "string", "maxLength": 20}, age={"type": "integer"}),
    "nested": _object(
        person=_object(
            name={"type": "string", "maxLength": 12}, home=_object(city={"type": "string", "maxLength": 12})
        )
    ),
    "array_bounds": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    "array_of_objects": {"type": "array", "items": _POINT, "minItems": 1, "maxItems": 2},
    "enum": _object(colour={"enum": ["red", "green", "blue"]}),
    "typed_enum": {"type": ["string", "null"], "enum": ["on", "off", 7, None]},
    "const": _object(kind={"const": "answer"}, ok={"const": True}),
    "any_of": {
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "string", "maxLength": 8}]
    },
    "one_of_types": _object(value={"oneOf": [{"type": "boolean"}, {"type": "string", "maxLength": 5}]}),
    "discriminated": {
        "oneOf": [
            _object(kind={"const": "circle"}, radius={"type": "integer", "minimum": 1}),
            _object(kind={"const": "square"}, side={"type": "integer", "minimum": 1}),
        ]
    },
    "integer_bounds": _object(
        age={"type": "integer", "minimum": 0, "maximum": 120},
        level={"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5},
    ),
    "integer_steps": _object(percent={"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 25}),
    "number": _object(weight={"type": "number"}),
    "string_lengths": _object(code={"type": "string", "minLength": 3, "maxLength": 6}),
    "pattern": _object(plate={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}),
    "pattern_classes": _object(phone={"type": "string", "pattern": r"^\+?\d{2,3}[\s-]\d{4,8}$"}),
    "pattern_open": _object(path={"type": "string", "pattern": "^/[a-z]", "maxLength": 12}),
    "date": _object(day={"type": "string", "format": "date"}),
    "time": _object(at={"type": "string", "format": "time"}, when={"type": "string", "format": "date-time"}),
    "uuid": _object(id={"type": "string", "format": "uuid"}),
    "email": _object(mail={"type": "string", "format": "email"}, host={"type": "string", "format": "ipv4"}),
    "closed": {**_object(a={"type": "boolean"}, b={"type": "null"}), "additionalProperties": False},
    "required_without_property": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "definitions": {
        "$defs": {"point": _POINT},
        **_object(start={"$ref": "#/$defs/point"}, end={"$ref": "#/$defs/point"}),
    },
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": _object(
                ["value", "next"],
                value={"type": "integer", "minimum": 0, "maximum": 9},
                next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            )
        },
    },
    "nullable": _object(note={"type": ["string", "null"], "maxLength": 10}),
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 6}, {"type": "integer"}, {"type": "boolean"}],
        "items": False,
        "minItems": 3,
    },
    "all_of": {
        "allOf": [{"$ref": "#/$defs/point"}, _object(label={"type": "string", "maxLength": 8})],
        "$defs": {"point": _POINT},
    },
}

# What is wrong with them is the keyword that is named.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "number_bounds": (_object(score={"type": "number", "minimum": 0, "maximum": 1}), "minimum"),
    "unique_items": (
        _object(tags={"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        "uniqueItems",
    ),
}
