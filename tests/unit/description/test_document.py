"""The description and the routes tell of the same API."""

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from daemon.description.document import document

DOCUMENT = document("1.2.3")


def schemas(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if "schema" in value:
            yield value["schema"]
        for item in value.values():
            yield from schemas(item)


def test_every_schema_is_one() -> None:
    found = list(schemas(DOCUMENT["paths"]))
    assert len(found) > 100
    for schema in found:
        Draft202012Validator.check_schema(schema)


def test_every_post_says_what_it_takes_but_those_that_take_nothing() -> None:
    without = {
        path
        for path, operations in DOCUMENT["paths"].items()
        if "post" in operations and "requestBody" not in operations["post"]
    }
    assert without == {
        "/api/me",
        "/api/signout",
        "/api/experimental/web_search",
        "/api/experimental/web_fetch",
        "/v1/audio/transcriptions",
    }


@pytest.mark.parametrize(
    ("path", "key"),
    [("/api/chat", ["error"]), ("/v1/chat/completions", ["error"]), ("/v1/messages", ["type", "error"])],
)
def test_errors_are_in_the_envelope_of_their_api(path: str, key: list[str]) -> None:
    answer = DOCUMENT["paths"][path]["post"]["responses"]["400"]
    assert answer["content"]["application/json"]["schema"]["required"] == key


def test_a_streamed_answer_has_its_own_media_type() -> None:
    content = DOCUMENT["paths"]["/api/generate"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "application/x-ndjson"}
