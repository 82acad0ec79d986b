"""The few words that the descriptions of the API are written in. Source: OpenAPI 3.2, whose schemas are JSON Schema."""

from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
SOME_STRING: Schema = {"type": "string", "minLength": 1}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
ANYTHING: Schema = {}

# What a request to a model can end with, besides an answer.
MODEL_ERRORS = (400, 401, 403, 404, 413, 422, 500, 502, 503, 504, 507)

JSON = "application/json"
SSE = "text/event-stream"
NDJSON = "application/x-ndjson"


def obj(required: str = "", /, **properties: Schema) -> Schema:
    """An object, open to more fields. `required` are names with spaces between them; a trailing `_` of a property's
    name is only there because the name is a keyword of Python."""
    named = {name.removesuffix("_"): schema for name, schema in properties.items()}
    return {"type": "object", "properties": named} | ({"required": required.split()} if required else {})


def array(items: Schema, low: int = 0, high: int | None = None) -> Schema:
    """`low` and `high` are how many items there may be."""
    limits = {"minItems": low} if low else {}
    return {"type": "array", "items": items, **limits} | ({} if high is None else {"maxItems": high})


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": [*values]}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas]}


def within(schema: Schema, low: float, high: float) -> Schema:
    return schema | {"minimum": low, "maximum": high}


def nullable(schema: Schema) -> Schema:
    """null is the same as absent."""
    return either(schema, {"type": "null"})


def optional(schema: Schema) -> Schema:
    """The same object with null allowed for every property that is not required."""
    required = schema.get("required", [])
    properties = {
        name: value if name in required else nullable(value) for name, value in schema["properties"].items()
    }
    return schema | {"properties": properties}


def _sent(event: Schema) -> Schema:
    """What OpenAPI takes for the schema of one server-sent event; OpenAI's streams end with one that is no JSON."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": event}
    return obj("data", event=STRING, data=either({"type": "string", "const": "[DONE]"}, data))


@dataclass(frozen=True, slots=True)
class Operation:
    """What one route takes and gives. `stream` are the media type and the schema of one event of a streamed answer;
    `errors` the statuses that it can answer with, all of them in the envelope of its API."""

    summary: str
    answer: Schema | None
    request: Schema | None = None
    stream: tuple[str, Schema] | None = None
    errors: tuple[int, ...] = (400, 401, 403, 404, 413, 500)
    media: str = JSON
    binary: bool = False
    status: int = 200

    def openapi(self, envelope: Schema) -> dict[str, Any]:
        """The parts of an OpenAPI operation object that say this."""
        described: dict[str, Any] = {"summary": self.summary, "responses": self._responses(envelope)}
        if self.binary:
            described["requestBody"] = {
                "required": True,
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            }
        if self.request is not None:
            described["requestBody"] = {"required": True, "content": {JSON: {"schema": self.request}}}
        return described

    def _responses(self, envelope: Schema) -> dict[str, Any]:
        content: dict[str, Any] = {}
        if self.answer is not None:
            content[self.media] = {"schema": self.answer}
        if self.stream is not None:
            media, event = self.stream
            content[media] = {"itemSchema": _sent(event) if media == SSE else event}
        answered: dict[str, Any] = {"description": "the answer"} | ({"content": content} if content else {})
        failed = {"description": "an error", "content": {JSON: {"schema": envelope}}}
        return {str(self.status): answered} | {str(status): failed for status in self.errors}
