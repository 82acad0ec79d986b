"""Checks a JSON schema before it is used, and makes of it what the engine's grammar enforces in full."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from daemon.errors import InvalidRequest
from daemon.shaping.rewrite import Rewriter, Unenforceable
from daemon.shaping.validate import Checker, wrong

_MAX_IGNORED = 5


@dataclass(frozen=True, slots=True)
class Enforced:
    """`schema` goes to the engine; `checker` judges the answer by the one that was given. `notes` are sentences about
    what is not enforced."""

    schema: Mapping[str, Any]
    checker: Checker
    notes: tuple[str, ...]


def enforced(schema: Mapping[str, Any] | bool) -> Enforced:
    """Raises InvalidRequest for a schema that is wrong, or that has a part which no grammar enforces."""
    checker = checked(schema, "the schema of the answer is")
    rewriter = Rewriter()
    try:
        node = rewriter.rewrite(schema, checker.valid)
        whole = document(node, rewriter)
    except Unenforceable as error:
        raise InvalidRequest(
            f"the schema of the answer cannot be kept to: {error}; change it or leave it out"
        ) from error
    return Enforced(whole, checker, notes(rewriter))


def checked(schema: Mapping[str, Any] | bool, what: str) -> Checker:
    """Raises InvalidRequest when `schema` is not a JSON schema; `what` is its subject and verb."""
    if (problem := wrong(schema)) is not None:
        raise InvalidRequest(f"{what} not a valid JSON schema: {problem}")
    return Checker(schema)


def document(node: Mapping[str, Any], rewriter: Rewriter) -> dict[str, Any]:
    """The schema for the engine, which takes an empty one for "any object". Raises Unenforceable for definitions that
    lead back to themselves before anything is written: no grammar can begin with itself."""
    _refuse_circles(rewriter.definitions)
    root = dict(node) or {"anyOf": [{}]}
    return {**root, "$defs": rewriter.definitions} if rewriter.definitions else root


def notes(rewriter: Rewriter) -> tuple[str, ...]:
    """Sentences about what is not enforced, and how much more there was of it."""
    found = list(dict.fromkeys(rewriter.ignored))
    more = (
        [f"{len(found) - _MAX_IGNORED} more parts of the schema are not enforced"]
        if len(found) > _MAX_IGNORED
        else []
    )
    return (*found[:_MAX_IGNORED], *more)


def _refuse_circles(definitions: Mapping[str, Mapping[str, Any]]) -> None:
    beginnings = {name: set(_beginnings(node)) for name, node in definitions.items()}
    for name in definitions:
        reached, waiting = set[str](), [name]
        while waiting:
            new = beginnings[waiting.pop()] - reached
            if name in new:
                raise Unenforceable("$ref", "#", "leads back to itself before any value begins")
            reached |= new
            waiting.extend(new)


def _beginnings(node: Mapping[str, Any]) -> Iterator[str]:
    """The definitions that a value of `node` may begin with."""
    if "$ref" in node:
        yield node["$ref"].rpartition("/")[2]
    for option in node.get("anyOf", ()):
        yield from _beginnings(option)
