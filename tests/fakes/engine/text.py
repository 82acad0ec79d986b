"""What the scripted engine makes of texts: its tokens are words with the space before them, its vectors are made of
a text's words, and its chat template writes a turn a line."""

import base64
import hashlib
import json
import math
import re
import struct
from typing import Any


class Words:
    """The tokenizer: a token is a word with the space before it. Ids are given in the order of appearance."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def tokens(self, text: str) -> list[int]:
        words = re.findall(r"\s*\S+|\s+", text)
        return [self._ids.setdefault(word, len(self._ids)) for word in words]

    def text(self, tokens: list[int]) -> str:
        words = [*self._ids]
        return "".join(words[token] if token < len(words) else "\ufffd" for token in tokens)


def rendered(request: dict[str, Any]) -> str:
    """The chat template."""
    turns = [f"{message['role']}: {content_text(message.get('content'))}" for message in request["messages"]]
    if request["messages"] and request["messages"][-1]["role"] != "assistant":
        turns.append("assistant:")
    tools = [f"tool {json.dumps(tool)}" for tool in request.get("tools", [])]
    return "\n".join([*tools, *turns])


def content_text(content: str | list[dict[str, str]] | None) -> str:
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    return "".join(part.get("text", "<media>") for part in parts)


def vector(text: str, size: int = 8) -> list[float]:
    """One of length 1. Texts that share words have vectors that are near."""
    sums = [0.0] * size
    for word in text.split():
        digest = hashlib.sha256(word.lower().encode()).digest()
        sums = [total + byte / 127.5 - 1 for total, byte in zip(sums, digest, strict=False)]
    length = math.hypot(*sums) or 1.0
    return [total / length for total in sums]


def encoded(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
