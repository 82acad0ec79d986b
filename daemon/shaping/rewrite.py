"""Writes a JSON schema anew, so that the engine's grammar enforces all of it.

The engine's converter (llama.cpp, common/json-schema.cpp and json-schema-to-grammar.cpp) honours few keywords, never
two kinds of them side by side, and passes over the others in silence: bounds of numbers, uniqueItems, what stands
beside $ref or anyOf, lengths beside a pattern, every format but dates and UUIDs, required names without a property.
So a schema becomes one that says the same, or less but never more, in what the converter does honour:

- what stands beside $ref, allOf, anyOf and oneOf is merged into the parts;
- an object with `properties` gets only these, as in OpenAI's strict mode, in their order;
- formats and patterns become anchored patterns of characters that JSON needs not escape (`patterns.py`);
- enum and const keep the values that the rest of the schema allows; a small range with multipleOf becomes an enum.

What cannot be said raises Unenforceable with the keyword and its place; with `lenient` it is left out and noted.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from daemon.shaping import patterns
from daemon.shaping.formats import PATTERNS
from daemon.shaping.merging import CannotMerge, merged, strictly

Schema: TypeAlias = Mapping[str, Any]
Node: TypeAlias = dict[str, Any]

_MAX_NODES = 5000
_MAX_DEPTH = 150
_MAX_VALUES = 256

# The engine stops to count beyond 2,000, and takes any number then.
_MAX_CHARACTERS = 2000
_MAX_ITEMS = 1000

# Integers have at most 16 digits in the engine's grammar.
_MAX_INTEGER = 10**15

_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")

# Keywords that constrain one type only, in the order in which a schema without a type is taken for one of these.
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset(
        (
            *("properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties"),
            *("minProperties", "maxProperties", "propertyNames"),
            *("dependentRequired", "dependentSchemas", "dependencies"),
        )
    ),
    "array": frozenset(
        (
            *("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems"),
            *("uniqueItems", "contains", "minContains", "maxContains"),
        )
    ),
    "string": frozenset(("pattern", "format", "minLength", "maxLength")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
}
_OF_ALL = ("type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else")
CONSTRAINTS: Final = frozenset((*_OF_ALL, "$dynamicRef", "$recursiveRef")).union(*_OF_TYPE.values())

_UNENFORCED_ANYWHERE = ("not", "if", "$dynamicRef", "$recursiveRef")
_UNENFORCED_OF_OBJECTS = (
    "patternProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
)
_UNENFORCED_OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class Unenforceable(ValueError):
    """No grammar enforces `keyword` at `place`, a JSON pointer like "#/properties/tags"."""

    def __init__(self, keyword: str, place: str, why: str = "cannot be enforced") -> None:
        super().__init__(f"'{keyword}' at {place} {why}")
        self.keyword = keyword
        self.place = place


class Rewriter:
    """Rewrites schemas of one request; they share `definitions`. `ignored` says what is not enforced, with places."""

    def __init__(self, *, lenient: bool = False) -> None:
        self._lenient = lenient
        self._valid: Callable[[Any, Schema], bool] = lambda value, schema: True
        self._root: Any = {}
        self._names: dict[str, str] = {}
        self._nodes = 0
        self._depth = 0
        self.definitions: dict[str, Node] = {}
        self.ignored: list[str] = []

    def rewrite(self, schema: Schema | bool, valid: Callable[[Any, Schema], bool]) -> Node:
        """The node for `schema`. `valid(value, part)` judges the values of enums. Raises Unenforceable."""
        self._root, self._valid, self._names = schema, valid, {}
        return self._node(schema, "#")

    # ---- what any schema may have

    def _node(self, schema: Any, place: str) -> Node:
        self._depth += 1
        try:
            return self._strict_node(schema, place)
        except Unenforceable as error:
            self._cannot(error)
            return {}
        finally:
            self._depth -= 1

    def _strict_node(self, schema: Any, place: str) -> Node:
        if schema is True:
            return {}
        if schema is False:
            raise Unenforceable("false", place, "allows no value at all")
        self._nodes += 1
        if self._nodes > _MAX_NODES or self._depth > _MAX_DEPTH:
            raise Unenforceable(
                "$ref" if self._depth > _MAX_DEPTH else "anyOf", place, "makes the schema too large"
            )
        return self._combined(self._enforced(schema, _UNENFORCED_ANYWHERE, place), place)

    def _combined(self, schema: Schema, place: str) -> Node:
        if "$ref" in schema:
            return self._ref(schema, place)
        if "allOf" in schema:
            return self._all_of(schema, place)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._alternatives(schema, keyword, place)
        if "enum" in schema or "const" in schema:
            return self._values(schema, place)
        types = _types(schema)
        if not types:
            return {}
        if len(types) > 1:
            return {"anyOf": [self._typed(schema, each, place) for each in types]}
        return self._typed(schema, types[0], place)

    def _typed(self, schema: Schema, kind: str, place: str) -> Node:
        match kind:
            case "object":
                return self._object(schema, place)
            case "array":
                return self._array(schema, place)
            case "string":
                return self._string(schema, place)
            case "integer":
                return self._integer(schema, place)
            case "number":
                self._enforced(schema, _UNENFORCED_OF_NUMBERS, place, "for numbers (it can for integers)")
        return {"type": kind}

    def _enforced(self, schema: Schema, keywords: Iterable[str], place: str, why: str = "") -> Schema:
        """The schema, without these keywords. They are what raises Unenforceable, or what is ignored."""
        found = [keyword for keyword in keywords if keyword in schema]
        for keyword in found:
            self._cannot(Unenforceable(keyword, place, f"cannot be enforced {why}".rstrip()))
        return {key: value for key, value in schema.items() if key not in found} if found else schema

    def _cannot(self, error: Unenforceable) -> None:
        if not self._lenient:
            raise error
        self.ignored.append(str(error))

    # ---- references and combinations

    def _ref(self, schema: Schema, place: str) -> Node:
        ref = schema["$ref"]
        beside = {key: value for key, value in schema.items() if key in CONSTRAINTS and key != "$ref"}
        if beside:
            return self._node(self._merge([self._target(ref, place), beside], "$ref", place), place)
        return {"$ref": f"#/$defs/{self._definition(ref, place)}"}

    def _definition(self, ref: str, place: str) -> str:
        if ref not in self._names:
            target = self._target(ref, place)
            self._names[ref] = name = f"d{len(self.definitions)}"
            self.definitions[name] = {}  # its place, before what it refers to
            self.definitions[name] = self._node(target, ref)
        return self._names[ref]

    def _target(self, ref: str, place: str) -> Any:
        """What a reference means, and what that refers to. Raises Unenforceable for one that leads nowhere or round."""
        seen = set()
        while True:
            if ref in seen:
                raise Unenforceable("$ref", place, f"goes round in a circle: {ref[:60]}")
            seen.add(ref)
            target = _found(self._root, ref, place)
            if not (
                isinstance(target, Mapping)
                and "$ref" in target
                and not (CONSTRAINTS & target.keys()) - {"$ref"}
            ):
                return target
            ref = target["$ref"]

    def _all_of(self, schema: Schema, place: str) -> Node:
        beside = {key: value for key, value in schema.items() if key != "allOf"}
        parts = [self._resolved(part, f"{place}/allOf/{i}") for i, part in enumerate(schema["allOf"])]
        return self._node(self._merge([*parts, beside], "allOf", place), place)

    def _resolved(self, part: Any, place: str) -> Any:
        if not (isinstance(part, Mapping) and "$ref" in part):
            return part
        beside = {key: value for key, value in part.items() if key in CONSTRAINTS and key != "$ref"}
        return self._merge([self._target(part["$ref"], place), beside], "$ref", place)

    def _merge(self, parts: list[Any], keyword: str, place: str) -> Any:
        try:
            return merged(parts)
        except CannotMerge as error:
            raise Unenforceable(keyword, place, f"cannot be enforced: {error}") from error

    def _alternatives(self, schema: Schema, keyword: str, place: str) -> Node:
        beside = {key: value for key, value in schema.items() if key in CONSTRAINTS and key != keyword}
        options = [
            self._resolved(option, f"{place}/{keyword}/{i}") for i, option in enumerate(schema[keyword])
        ]
        if beside:
            options = [self._merge([beside, option], keyword, place) for option in options]
            originals = options
        else:
            originals = list(schema[keyword])
        if keyword == "oneOf" and not _exclusive(options, self._valid):
            self._cannot(Unenforceable("oneOf", place, "cannot be enforced, as its parts overlap; use anyOf"))
        return {"anyOf": [self._node(each, f"{place}/{keyword}/{i}") for i, each in enumerate(originals)]}

    def _values(self, schema: Schema, place: str) -> Node:
        keyword = "enum" if "enum" in schema else "const"
        values = schema["enum"] if keyword == "enum" else [schema["const"]]
        allowed = [value for value in values if self._valid(value, schema)]
        if not allowed:
            raise Unenforceable(keyword, place, "has no value that the rest of the schema allows")
        return {"enum": allowed}

    # ---- one type

    def _object(self, schema: Schema, place: str) -> Node:
        schema = self._enforced(schema, _UNENFORCED_OF_OBJECTS, place)
        given = schema.get("properties") or {}
        required = list(dict.fromkeys(schema.get("required") or ()))
        more = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        wanted = {name: given.get(name, more) for name in (*given, *required)}
        named = "properties" in schema and "additionalProperties" not in schema
        if not wanted and more is not False and not named:
            self._enforced(schema, ("minProperties", "maxProperties"), place)
            return {"type": "object", "additionalProperties": self._map_value(more, place)}
        nodes = {
            name: self._node(each, f"{place}/properties/{name}")
            for name, each in wanted.items()
            if each is not False or name in required
        }
        if schema.get("minProperties", 0) > len(required):
            self._enforced(schema, ("minProperties",), place)
        if schema.get("maxProperties", math.inf) < len(nodes):
            self._enforced(schema, ("maxProperties",), place)
        return {"type": "object", "properties": nodes, "required": required, "additionalProperties": False}

    def _map_value(self, more: Any, place: str) -> Node | bool:
        return self._node(more, f"{place}/additionalProperties") or True

    def _array(self, schema: Schema, place: str) -> Node:
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        unsupported = ["contains"] if schema.get("minContains", 1) else []
        if schema.get("uniqueItems") and (high is None or high > 1):
            unsupported.append("uniqueItems")
        self._enforced(schema, (*unsupported, *(["maxContains"] if "contains" in schema else [])), place)
        first, rest = _items(schema)
        if first:
            return self._tuple(first, rest, low, high, place)
        if rest is False:
            high = 0
        if low > _MAX_ITEMS or (high is not None and high < low):
            raise Unenforceable("minItems", place, "asks for more items than can be")
        node: Node = {"type": "array"}
        if high != 0:
            node["items"] = self._node(rest, f"{place}/items")
        return node | ({"minItems": low} if low else {}) | _at_most("maxItems", high, _MAX_ITEMS)

    def _tuple(self, first: list[Any], rest: Any, low: int, high: int | None, place: str) -> Node:
        """The engine's tuples have one length: that of the items that are named, or the nearest that is allowed."""
        length = max(len(first), low) if high is None else min(max(len(first), low), high)
        if length < low or length > _MAX_ITEMS:
            raise Unenforceable("minItems", place, "asks for more items than can be")
        items = [*first, *[rest] * (length - len(first))][:length]
        if not items:
            return {"type": "array", "maxItems": 0}
        return {
            "type": "array",
            "prefixItems": [self._node(each, f"{place}/prefixItems/{i}") for i, each in enumerate(items)],
        }

    def _string(self, schema: Schema, place: str) -> Node:
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        if low > _MAX_CHARACTERS or (high is not None and high < low):
            raise Unenforceable("minLength", place, "asks for more characters than can be")
        pattern, kind = schema.get("pattern"), schema.get("format")
        keyword = "pattern" if pattern is not None else "format"
        if pattern is None and kind not in PATTERNS:
            if kind is not None:
                self.ignored.append(f"'format' at {place} is not enforced for {str(kind)[:40]!r}")
            return (
                {"type": "string"}
                | ({"minLength": low} if low else {})
                | _at_most("maxLength", high, _MAX_CHARACTERS)
            )
        if pattern is not None and kind in PATTERNS:
            self._enforced(schema, ("format",), place, "beside a pattern")
        try:
            tree = patterns.parse(pattern if pattern is not None else PATTERNS[str(kind)])
            return {"type": "string", "pattern": patterns.written(patterns.within(tree, low, high))}
        except patterns.PatternNotSupported as error:
            self._cannot(Unenforceable(keyword, place, f"cannot be enforced: it {error}"))
            return {"type": "string"}

    def _integer(self, schema: Schema, place: str) -> Node:
        low, high = _bounds(schema)
        step = schema.get("multipleOf", 1)
        if low > high:
            raise Unenforceable("minimum", place, "is above the maximum")
        if step != 1:
            return self._multiples(schema, low, high, step, place)
        if low > _MAX_INTEGER or high < -_MAX_INTEGER:
            raise Unenforceable("minimum" if low > 0 else "maximum", place, "has more than 15 digits")
        bounds = {"minimum": low, "maximum": high}
        return {"type": "integer"} | {
            name: each for name, each in bounds.items() if abs(each) <= _MAX_INTEGER
        }

    def _multiples(self, schema: Schema, low: float, high: float, step: float, place: str) -> Node:
        if high - low <= _MAX_INTEGER and step == int(step):
            values = range(math.ceil(low / step) * int(step), int(high) + 1, int(step))
            if 0 < len(values) <= _MAX_VALUES:
                return {"enum": list(values)}
        self._enforced(schema, ("multipleOf",), place, "(it can for integers with a small range)")
        return {"type": "integer"}


def _types(schema: Schema) -> list[str]:
    """The types that are named, or what the keywords speak of; none where anything goes."""
    named = schema.get("type")
    if named is not None:
        types = [named] if isinstance(named, str) else list(named)
        return [each for each in types if not (each == "integer" and "number" in types)]
    return next(([kind] for kind, keywords in _OF_TYPE.items() if keywords & schema.keys()), [])


def _items(schema: Schema) -> tuple[list[Any], Any]:
    """The schemas of the first items, and that of the others, in the old and the new way to write them."""
    items = schema.get("items", schema.get("unevaluatedItems", True))
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    return list(schema.get("prefixItems") or ()), items


def _bounds(schema: Schema) -> tuple[float, float]:
    """The least and the greatest integer; infinite where there is no bound. Draft 4's exclusive bounds are booleans."""
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    low = max(_rounded(math.ceil, low), _rounded(math.floor, above) + 1)
    return low, min(_rounded(math.floor, high), _rounded(math.ceil, below) - 1)


def _rounded(direction: Callable[[float], int], value: float) -> float:
    return direction(value) if math.isfinite(value) else value


def _at_most(keyword: str, high: int | None, limit: int) -> Node:
    return {} if high is None else {keyword: min(high, limit)}


def _found(root: Any, ref: Any, place: str) -> Any:
    """What a JSON pointer in a reference leads to."""
    if ref != "#" and not (isinstance(ref, str) and ref.startswith("#/")):
        raise Unenforceable(
            "$ref", place, f"is {str(ref)[:60]!r}; only references like '#/$defs/name' are followed"
        )
    target = root
    for step in ref.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            raise Unenforceable("$ref", place, f"leads nowhere: {ref[:60]!r}")
    if not isinstance(target, Mapping | bool):
        raise Unenforceable("$ref", place, f"does not lead to a schema: {ref[:60]!r}")
    return target


def _exclusive(options: list[Any], valid: Callable[[Any, Schema], bool]) -> bool:
    """Whether what is written for one part of a oneOf is never valid for another."""
    return all(
        strictly(first, second, _types, valid)
        for i, first in enumerate(options)
        for second in (*options[:i], *options[i + 1 :])
    )
