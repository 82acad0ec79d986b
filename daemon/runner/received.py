"""What an engine sent, of whatever shape it turned out to be. Pure; nothing is believed, and nothing raises but where
it says so."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from daemon.errors import EngineFailed, InvalidRequest, MgrError, PromptTooLong
from daemon.runner.output import without_paths


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object that the engine sent. Raises EngineFailed."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise EngineFailed("the engine sent something that is not a JSON object")
    return value


def objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def text(values: Mapping[str, Any], name: str) -> str:
    """A text that can be encoded: a lone surrogate, which JSON can write, becomes a question mark."""
    value = values.get(name)
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def count(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


# ---- errors

_TOO_LARGE = re.compile(r"(\d+) tokens\) is (?:too large|larger) .*?(?:size: |size \()(\d+)")

# What the engine calls its own failure, or says in its own words, and is the request's fault.
_SENTENCES: Mapping[str, str] = {
    "Infill is not supported": "the model does not support insert: it has no tokens for the text around a gap",
    "image input is not supported": "the model does not support images",
    "audio input is not supported": "the model does not support audio",
    "model does not support multimodal": "the model does not support images or audio",
    "Input content cannot be empty": "the text is empty; give at least one character",
    "Prompt contains invalid tokens": "the prompt has a token id that the model does not have",
    "Failed to load image or audio file": "an image or a sound of the request cannot be decoded",
    "Invalid base64 value": "an image or a sound of the request is not base64",
    "Failed to initialize samplers": "the format cannot be kept to: its schema is of no use to the engine, or the "
    "turn of the assistant that is to be continued does not fit it",
}
_TEMPLATE = "Jinja Exception: "


def error_from(error: object, status: int) -> MgrError:
    """The error that the engine's error object means. `status` is the HTTP status it came with."""
    fields = as_object(error)
    message = without_paths(text(fields, "message") or "no reason given")
    too_large = _TOO_LARGE.search(message)
    if fields.get("type") == "exceed_context_size_error" and count(fields, "n_ctx"):
        return PromptTooLong(count(fields, "n_prompt_tokens"), count(fields, "n_ctx"))
    if too_large is not None:  # only embeddings say it this way
        return PromptTooLong(int(too_large[1]), int(too_large[2]))
    for words, sentence in _SENTENCES.items():
        if words in message:
            return InvalidRequest(sentence)
    if _TEMPLATE in message:
        return InvalidRequest(
            f"the chat template refuses this conversation: {message.partition(_TEMPLATE)[2]}"
        )
    code = fields.get("code", status)
    if isinstance(code, int) and 400 <= code < 500 and code not in (401, 403, 404):
        return InvalidRequest(f"the engine refused the request: {message}")
    return EngineFailed(f"the engine failed: {message}")
