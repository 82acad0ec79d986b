"""The OpenAPI document: what each route takes and gives, from one table per API.

Written by hand, because the routes read their bodies themselves: the forms are those of three foreign APIs, whose
errors have to be in their own words.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from daemon.description import anthropic, ollama, openai
from daemon.description.schema import STRING, Operation, Schema, obj

_OWN: Mapping[tuple[str, str], Operation] = {
    ("GET", "/"): Operation("is somebody there?", STRING, media="text/plain", errors=(401, 403)),
    ("GET", "/health/live"): Operation(
        "is the process alive?", obj("status", status=STRING), errors=(401, 403)
    ),
    ("GET", "/health/ready"): Operation(
        "should work be sent here?", obj("status", status=STRING), errors=(401, 403, 503)
    ),
    ("GET", "/metrics"): Operation(
        "what the daemon does, in Prometheus's text format", STRING, media="text/plain", errors=(401, 403)
    ),
}

# Each API's operations with the envelope of its errors.
_APIS: tuple[tuple[Mapping[tuple[str, str], Operation], Schema], ...] = (
    (ollama.OPERATIONS, ollama.ERROR),
    (openai.OPERATIONS, openai.ERROR),
    (anthropic.OPERATIONS, anthropic.ERROR),
    (_OWN, ollama.ERROR),
)


def document(version: str) -> dict[str, Any]:
    """The whole document, as JSON. `version` is mgr's."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, described in _described():
        paths.setdefault(path, {})[method.lower()] = described
    return {
        "openapi": "3.2.0",
        "info": {
            "title": "mgr",
            "version": version,
            "description": "Local models, for clients of Ollama, OpenAI and Anthropic.",
        },
        "paths": paths,
    }


def _described() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for operations, envelope in _APIS:
        for (method, path), operation in operations.items():
            described = operation.openapi(envelope)
            if parameters := _parameters(path):
                described["parameters"] = parameters
            yield method, path, described


def _parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": STRING} for name in names]
