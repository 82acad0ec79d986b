"""Answers of OpenAI's /v1/responses that later requests can go on from. In memory only, and bounded.

What was not used for longest goes first. Not for several threads.
"""

import json
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daemon.chat import Message, Text
from daemon.framing import to_json

MAX_ENTRIES = 1000
MAX_BYTES = 64 * 1024 * 1024

# What a message costs beside its texts: the object, its fields and their places.
_MESSAGE_BYTES = 512


@dataclass(frozen=True, slots=True)
class Stored:
    """`body` is the response object in JSON; `messages` is the conversation up to and with its answer, without the
    instructions, which OpenAI's API does not carry over; `size` is about what it takes, in bytes."""

    body: bytes
    messages: tuple[Message, ...]
    items: tuple[str, ...]
    size: int


class History:
    """Responses by their id. A conversation counts in full for each of its responses, though they share messages.

    `max_bytes` bounds all together; a response that alone is larger is not kept.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._owners: dict[str, str] = {}
        self._bytes = 0

    def save(self, response: Mapping[str, Any], messages: tuple[Message, ...]) -> None:
        body = to_json(response)
        items = tuple(item["id"] for item in response["output"])
        size = sys.getsizeof(body) + sum(_size(message) for message in messages)
        self._stored[response["id"]] = Stored(body, messages, items, size)
        self._owners.update(dict.fromkeys(items, response["id"]))
        self._bytes += size
        while len(self._stored) > self._max_entries or self._bytes > self._max_bytes:
            self.remove(next(iter(self._stored)))

    def find(self, response_id: str) -> Stored | None:
        stored = self._stored.get(response_id)
        if stored is not None:
            self._stored.move_to_end(response_id)
        return stored

    def item(self, item_id: str) -> dict[str, Any] | None:
        """An item of the output of a stored response."""
        stored = self.find(self._owners.get(item_id, ""))
        if stored is None:
            return None
        output: list[dict[str, Any]] = json.loads(stored.body)["output"]
        return next(item for item in output if item["id"] == item_id)

    def remove(self, response_id: str) -> bool:
        """Whether it was there."""
        stored = self._stored.pop(response_id, None)
        if stored is None:
            return False
        self._bytes -= stored.size
        for item in stored.items:
            del self._owners[item]
        return True


def _size(message: Message) -> int:
    """About what a message takes in memory, in bytes."""
    texts = [part.text if isinstance(part, Text) else part.data for part in message.parts]
    texts += [call.arguments for call in message.tool_calls]
    return _MESSAGE_BYTES + sum(map(sys.getsizeof, [*texts, message.thinking or ""]))
