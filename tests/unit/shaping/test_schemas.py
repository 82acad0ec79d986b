"""Schemas: thirty ordinary ones, what the engine may write for them, and what is refused with its place."""

import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.errors import InvalidRequest
from daemon.shaping.rewrite import Rewriter
from daemon.shaping.schemas import document, enforced, notes
from daemon.shaping.validate import Checker
from tests.fakes.readings import strings
from tests.fakes.schemas import ENFORCED, REFUSED

# Every keyword that the engine's converter honours; it passes over any other in silence.
_HONOURED = {
    frozenset({"anyOf"}),
    frozenset({"enum"}),
    frozenset({"$ref"}),
    frozenset({"type"}),
    frozenset({"type", "additionalProperties"}),
    frozenset({"type", "properties", "required", "additionalProperties"}),
    frozenset({"type", "prefixItems"}),
    frozenset({"type", "pattern"}),
    *(frozenset({"type", *rest}) for rest in (("minimum",), ("maximum",), ("minimum", "maximum"))),
    *(frozenset({"type", *rest}) for rest in (("minLength",), ("maxLength",), ("minLength", "maxLength"))),
    *(
        frozenset({"type", "items", *rest})
        for rest in ((), ("minItems",), ("maxItems",), ("minItems", "maxItems"))
    ),
    frozenset({"type", "maxItems"}),
    frozenset(),
}


def values(node: Any, root: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """What the engine's grammar lets a model write for a rewritten schema."""
    if node in ({}, True):
        return st.none() | st.integers() | st.text(max_size=3)
    assert frozenset(node.keys() - {"$defs"}) in _HONOURED, node
    if "$ref" in node:
        name = node["$ref"].removeprefix("#/$defs/")
        return st.deferred(lambda: values(root["$defs"][name], root, depth + 1))
    if "anyOf" in node:
        options = node["anyOf"] if depth < 4 else node["anyOf"][-1:]
        return st.one_of([values(option, root, depth) for option in options])
    if "enum" in node:
        return st.sampled_from(node["enum"])
    return _typed(node, root, depth)


def _typed(node: Any, root: Any, depth: int) -> st.SearchStrategy[Any]:
    match node["type"]:
        case "object" if "properties" in node:
            members = {name: values(each, root, depth) for name, each in node["properties"].items()}
            required = {name: members[name] for name in node["required"]}
            return st.fixed_dictionaries(
                required, optional={k: v for k, v in members.items() if k not in required}
            )
        case "object":
            return st.dictionaries(
                st.text(max_size=3), values(node["additionalProperties"], root, depth), max_size=3
            )
        case "array" if "prefixItems" in node:
            return st.tuples(*(values(each, root, depth) for each in node["prefixItems"])).map(list)
        case "array":
            low, high = node.get("minItems", 0), node.get("maxItems")
            return st.lists(
                values(node.get("items", {}), root, depth),
                min_size=low,
                max_size=low + 2 if high is None else high,
            )
        case "string" if "pattern" in node:
            return strings(node["pattern"])
        case "string":
            return st.text(min_size=node.get("minLength", 0), max_size=node.get("maxLength"))
        case "integer":
            return st.integers(node.get("minimum"), node.get("maximum"))
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False) | st.integers()
        case "boolean":
            return st.booleans()
    return st.none()


@pytest.mark.parametrize("name", ENFORCED)
@settings(max_examples=15)
@given(data=st.data())
def test_whatever_the_engine_may_write_for_an_ordinary_schema_is_valid(
    name: str, data: st.DataObject
) -> None:
    made = enforced(ENFORCED[name])
    value = data.draw(values(made.schema, made.schema))
    jsonschema.validate(value, ENFORCED[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    assert made.checker.problem(value) is None
    assert made.notes == ()


def test_thirty_schemas_and_at_least_twenty_four_are_enforced() -> None:
    assert len(ENFORCED) + len(REFUSED) == 30
    assert len(ENFORCED) >= 24


@pytest.mark.parametrize("name", REFUSED)
def test_the_others_are_refused_with_the_keyword(name: str) -> None:
    schema, keyword = REFUSED[name]
    with pytest.raises(InvalidRequest, match=f"'{keyword}' at #/properties/"):
        enforced(schema)


STRING = {"type": "string"}
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "nonsense"}, "is not a valid JSON schema"),
        ({"type": "object", "properties": []}, "is not a valid JSON schema"),
        ({"type": "string", "minLength": -1}, "is not a valid JSON schema"),
        (False, "'false' at # allows no value"),
        ({"properties": {"a": {"items": {"not": STRING}}}}, "'not' at #/properties/a/items"),
        ({"if": STRING, "then": STRING}, "'if' at #"),
        ({"type": "object", "patternProperties": {"^a": STRING}}, "'patternProperties' at #"),
        ({"type": "object", "minProperties": 2}, "'minProperties' at #"),
        ({"properties": {"a": STRING, "b": STRING}, "minProperties": 1}, "'minProperties' at #"),
        ({"type": "array", "contains": STRING}, "'contains' at #"),
        ({"type": "number", "multipleOf": 0.5}, "'multipleOf' at #"),
        ({"type": "integer", "multipleOf": 7}, "'multipleOf' at #"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "'minimum' at # is above the maximum"),
        ({"type": "integer", "minimum": 10**16}, "'minimum' at # has more than 15 digits"),
        ({"type": "string", "pattern": r"\bword"}, "'pattern' at #"),
        (
            {"type": "string", "pattern": "^a", "format": "date"},
            "'format' at # cannot be enforced beside a pattern",
        ),
        ({"type": "string", "pattern": "^ab$", "maxLength": 1}, "'pattern' at #"),
        ({"type": "string", "minLength": 9000}, "'minLength' at #"),
        ({"type": "array", "minItems": 9000}, "'minItems' at #"),
        ({"enum": ["a", "b"], "type": "integer"}, "'enum' at # has no value"),
        ({"$ref": "https://example.com/schema"}, "'$ref' at #"),
        ({"$ref": "#/$defs/none"}, "'$ref' at # leads nowhere"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "circle"),
        ({"anyOf": [{"$ref": "#"}, STRING]}, "leads back to itself"),
        ({"$ref": "#"}, "circle"),
        (
            {"oneOf": [STRING, {"type": "string", "maxLength": 3}]},
            "'oneOf' at # cannot be enforced, as its parts overlap",
        ),
        (
            {"allOf": [{"type": "string"}, {"type": "integer"}]},
            "'allOf' at # cannot be enforced: its parts have no type",
        ),
        ({"allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]}, "differ in 'pattern'"),
        ({"allOf": [{**POINT, "additionalProperties": False}, {"properties": {"y": STRING}}]}, "'y'"),
        (
            {"type": "array", "prefixItems": [STRING], "items": False, "minItems": 2},
            "'false' at #/prefixItems/1",
        ),
    ],
)
def test_what_cannot_be_kept_to_is_refused_and_named(schema: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        enforced(schema)


@pytest.mark.parametrize(
    ("schema", "node"),
    [
        (True, {"anyOf": [{}]}),
        ({}, {"anyOf": [{}]}),
        ({"title": "Anything", "description": "x", "default": 1}, {"anyOf": [{}]}),
        ({"type": "object"}, {"type": "object", "additionalProperties": True}),
        (
            {"type": "object", "properties": {}},
            {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        ),
        (
            {"type": "object", "additionalProperties": STRING},
            {"type": "object", "additionalProperties": STRING},
        ),
        ({"const": 5}, {"enum": [5]}),
        ({"enum": ["a", 1, None], "type": ["string", "null"]}, {"enum": ["a", None]}),
        (
            {"type": "integer", "exclusiveMinimum": 1, "minimum": 0, "maximum": 4.5},
            {"type": "integer", "minimum": 2, "maximum": 4},
        ),
        ({"type": "integer", "maximum": 10**20}, {"type": "integer"}),
        ({"type": "integer", "minimum": 0, "maximum": 9, "multipleOf": 4}, {"enum": [0, 4, 8]}),
        ({"type": "string", "maxLength": 10**6}, {"type": "string", "maxLength": 2000}),
        (
            {"type": "array", "maxItems": 1, "uniqueItems": True},
            {"type": "array", "items": {}, "maxItems": 1},
        ),
        ({"type": "array", "items": [STRING], "minItems": 2}, {"type": "array", "prefixItems": [STRING, {}]}),
        ({"type": "array", "items": False}, {"type": "array", "maxItems": 0}),
        ({"type": ["string", "null"]}, {"anyOf": [STRING, {"type": "null"}]}),
        ({"minimum": 1, "type": "string"}, STRING),
        ({"$ref": "#/$defs/a", "maxLength": 4, "$defs": {"a": STRING}}, {"type": "string", "maxLength": 4}),
        (
            {"anyOf": [{"maxLength": 2}, {"pattern": "^x$"}], "type": "string"},
            {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "string", "pattern": "^[x]$"}]},
        ),
    ],
)
def test_schemas_are_rewritten_to_what_the_engine_honours(schema: Any, node: Any) -> None:
    assert enforced(schema).schema == node


def test_references_become_definitions_once_each() -> None:
    pair = {
        "$defs": {"p/q": POINT},
        "type": "array",
        "items": {"$ref": "#/$defs/p~1q"},
        "contains": True,
        "minContains": 0,
    }
    made = enforced(pair).schema
    assert made["items"] == {"$ref": "#/$defs/d0"}
    assert made["$defs"]["d0"]["properties"] == {"x": {"type": "integer"}}


def test_a_format_that_is_not_known_is_noted() -> None:
    made = enforced({"type": "object", "properties": {"p": {"type": "string", "format": "json-pointer"}}})
    assert made.notes == ("'format' at #/properties/p is not enforced for 'json-pointer'",)


def test_a_schema_that_explodes_is_refused() -> None:
    shared = {"anyOf": [{"properties": {f"k{i}": STRING}} for i in range(80)]}
    schema = {"$defs": {"s": shared}, "anyOf": [{"$ref": "#/$defs/s", "maxLength": i} for i in range(80)]}
    with pytest.raises(InvalidRequest, match="too large"):
        enforced(schema)


def test_lenient_rewriting_leaves_out_what_cannot_be_enforced_and_notes_it() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "number", "minimum": 0}, "s": {"pattern": r"\b"}, "f": False},
    }
    rewriter = Rewriter(lenient=True)
    made = document(rewriter.rewrite({**schema, "required": ["f"]}, Checker(schema).valid), rewriter)
    assert made["properties"] == {"n": {"type": "number"}, "s": {"type": "string"}, "f": {}}
    assert [note.split(" at ")[0] for note in notes(rewriter)] == ["'minimum'", "'pattern'", "'false'"]


def test_notes_are_bounded() -> None:
    rewriter = Rewriter(lenient=True)
    rewriter.ignored = [str(i) for i in range(20)]
    assert notes(rewriter) == ("0", "1", "2", "3", "4", "15 more parts of the schema are not enforced")
