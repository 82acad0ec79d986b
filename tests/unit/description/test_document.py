"""The description and the routes tell of the same API."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from daemon.description import openai, options
from daemon.description.document import document
from daemon.middleware import openai_common, openai_embeddings, request, responses_request

DOCUMENT = document("1.2.3")
GOLDEN = Path(__file__).parents[2] / "golden"
PATHS = {
    "ollama-chat": "/api/chat",
    "ollama-generate": "/api/generate",
    "ollama-embed": "/api/embed",
    "ollama-embeddings": "/api/embeddings",
    "openai": "/v1/chat/completions",
    "openai-completions": "/v1/completions",
    "openai-embeddings": "/v1/embeddings",
    "openai-rerank": "/v1/rerank",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
}


def golden(name: str) -> list[Path]:
    return [path for dialect in PATHS for path in sorted(GOLDEN.glob(f"{dialect}/*/{name}"))]


def case(path: Path) -> str:
    return f"{path.parts[-3]}/{path.parts[-2]}"


def described(path: Path) -> Any:
    return DOCUMENT["paths"][PATHS[path.parts[-3]]]["post"]


def events(text: str) -> Iterator[Any]:
    """The JSON events of a stream, of lines or server-sent."""
    for line in text.splitlines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            yield json.loads(data)


def schemas(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from (value[key] for key in ("schema", "itemSchema") if key in value)
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
        "/api/experimental/{rest}",
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


@pytest.mark.parametrize("path", golden("reply.json"), ids=case)
def test_every_answer_is_as_described(path: Path) -> None:
    answer = json.loads(path.read_text())
    schema = described(path)["responses"][str(answer["status"])]["content"]["application/json"]["schema"]
    Draft202012Validator(schema).validate(answer["body"])


@pytest.mark.parametrize("path", golden("stream.txt"), ids=case)
def test_every_event_of_a_stream_is_as_described(path: Path) -> None:
    content = described(path)["responses"]["200"]["content"]
    if "application/x-ndjson" in content:
        schema = content["application/x-ndjson"]["itemSchema"]
    else:
        data = content["text/event-stream"]["itemSchema"]["properties"]["data"]
        schema = data["anyOf"][1]["contentSchema"]
    found = list(events(path.read_text()))
    assert found
    for event in found:
        Draft202012Validator(schema).validate(event)


@pytest.mark.parametrize("path", golden("canonical.txt"), ids=case)
def test_every_request_that_is_understood_is_as_described(path: Path) -> None:
    schema = described(path)["requestBody"]["content"]["application/json"]["schema"]
    Draft202012Validator(schema).validate(json.loads(path.with_name("request.json").read_text()))


def test_the_bounds_are_those_that_the_readers_hold_to() -> None:
    readers = {
        name: value
        for module in (request, openai_common, openai_embeddings, responses_request)
        for name, value in vars(module).items()
    }
    bounds = {
        name: value for name, value in (vars(options) | vars(openai)).items() if name.startswith("MAX_")
    }
    assert len(bounds) == 11
    assert {name: readers[name] for name in bounds} == bounds
