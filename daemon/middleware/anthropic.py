"""Anthropic's /v1/messages, /v1/messages/count_tokens and its form of /v1/models.

Source: Anthropic's API reference and the types of its Python SDK.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from daemon.chat import Answer, CountRequest, Request, TokenRequest
from daemon.errors import Kind, MgrError
from daemon.framing import to_json
from daemon.middleware import anthropic_request
from daemon.middleware.anthropic_answer import MessageEncoder, error_object, message_object
from daemon.middleware.dialect import SDK_STATUS, Dialect, Reply, read_object, retry_headers
from daemon.middleware.encoding import StreamEncoder
from daemon.middleware.fields import Fields

_OVERLOADED = 529  # Anthropic's own, which its SDKs know by name and repeat

_STATUS: Mapping[Kind, int] = {**SDK_STATUS, Kind.BUSY: _OVERLOADED}


class _Anthropic(Dialect):
    @property
    def stream_media_type(self) -> str:
        return "text/event-stream"

    def encoder(self, request: TokenRequest, created: float) -> StreamEncoder:
        return MessageEncoder(request.model)

    def reply(self, request: TokenRequest, answer: Answer, created: float) -> Reply:
        return Reply(200, to_json(message_object(request.model, answer)))

    def error(self, error: MgrError) -> Reply:
        return Reply(_STATUS[error.kind], to_json(error_object(error)), headers=retry_headers(error))


class _Messages(_Anthropic):
    def parse(self, body: bytes) -> Request:
        return anthropic_request.chat(Fields(read_object(body)))


class _CountTokens(_Anthropic):
    """The body of a message, without the need for `max_tokens`."""

    def parse(self, body: bytes) -> Request:
        return anthropic_request.count(Fields(read_object(body)))

    def counted(self, request: CountRequest, tokens: int) -> Reply:
        return Reply(200, to_json({"input_tokens": tokens}))


MESSAGES = _Messages()
COUNT_TOKENS = _CountTokens()


# ---- models


def models_list(entries: Sequence[tuple[str, datetime]]) -> dict[str, Any]:
    """All models at once, for /v1/models: their names, and when they were made or changed."""
    data = [model_one(entry) for entry in entries]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def model_one(entry: tuple[str, datetime]) -> dict[str, Any]:
    """One model. A time without a zone is taken to be UTC."""
    name, created = entry
    zoned = created if created.tzinfo else created.replace(tzinfo=UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": zoned.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
    }
