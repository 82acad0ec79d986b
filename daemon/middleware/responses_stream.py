"""The events of /v1/responses: what the engine says, as items that begin, grow and end.

Source: the types of OpenAI's Python SDK (openai.types.responses.ResponseStreamEvent). Every event has a number, from
0 on. Each item has its own `output_index`; one is open at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from daemon.chat import Done, FinishReason, TextDelta, ThinkingDelta, ToolCall, ToolCallDelta
from daemon.errors import MgrError
from daemon.framing import Template, quoted, sse_comment, to_json, unquoted
from daemon.middleware.encoding import StreamEncoder, notes
from daemon.middleware.openai_common import error_object
from daemon.middleware.responses_history import History
from daemon.middleware.responses_output import (
    IN_PROGRESS,
    call_item,
    encrypted_item,
    failure,
    message_item,
    new_id,
    remembered,
    response_object,
    score,
    summary_part,
    text_part,
    thinking_item,
    thinking_part,
    usage_object,
)
from daemon.middleware.responses_request import ResponsesRequest


class _Events:
    """Writes events, and numbers them."""

    def __init__(self) -> None:
        self._next = 0

    def write(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        return self.number(_unnumbered(kind, fields))

    def number(self, event: bytes) -> bytes:
        number, self._next = self._next, self._next + 1
        return b'%b,"sequence_number":%d}\n\n' % (event, number)


def _unnumbered(kind: str, fields: Mapping[str, Any]) -> bytes:
    """An event up to where its number belongs."""
    return b"event: " + kind.encode() + b"\ndata: " + to_json({"type": kind, **fields})[:-1]


# ---- items


class _Item(ABC):
    """An item of the output that is being written."""

    def __init__(self, events: _Events, prefix: str, index: int) -> None:
        self._events = events
        self._id = new_id(prefix)
        self._index = index
        self._where: dict[str, Any] = {"item_id": self._id, "output_index": index}

    @abstractmethod
    def body(self, status: str) -> dict[str, Any]:
        """The item as it is now."""

    def begin(self) -> bytes:
        item = self.body(IN_PROGRESS)
        return self._events.write("response.output_item.added", {"output_index": self._index, "item": item})

    def end(self, status: str) -> bytes:
        item = self.body(status)
        return self._events.write("response.output_item.done", {"output_index": self._index, "item": item})


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of item that holds text in one part: what its events, and their fields, are called."""

    prefix: str
    place: str
    text_events: str
    part_events: str
    part: Callable[[str, Sequence[Mapping[str, Any]]], dict[str, Any]]
    item: Callable[[str, str, Sequence[Mapping[str, Any]]], dict[str, Any]]
    scored: bool = False


_MESSAGE = _Kind(
    prefix="msg",
    place="content_index",
    text_events="response.output_text",
    part_events="response.content_part",
    part=text_part,
    item=message_item,
    scored=True,
)
_THINKING = _Kind(
    prefix="rs",
    place="content_index",
    text_events="response.reasoning_text",
    part_events="response.content_part",
    part=thinking_part,
    item=thinking_item,
)
_SUMMARY = _Kind(
    prefix="rs",
    place="summary_index",
    text_events="response.reasoning_summary_text",
    part_events="response.reasoning_summary_part",
    part=summary_part,
    item=thinking_item,
)


def _thinking_kind(request: ResponsesRequest) -> _Kind:
    kind = _SUMMARY if request.summary else _THINKING
    return replace(kind, item=encrypted_item) if request.encrypted else kind


class _TextItem(_Item):
    def __init__(self, events: _Events, kind: _Kind, index: int) -> None:
        super().__init__(events, kind.prefix, index)
        self.kind = kind
        self._pieces: list[bytes] = []  # quoted
        self._scores: list[dict[str, Any]] = []
        self._where[kind.place] = 0
        self._template = Template(lambda text: self._delta(text, []))

    def _delta(self, text: str, scores: list[dict[str, Any]]) -> bytes:
        fields = {**self._where, "delta": text, **self._logprobs(scores)}
        return _unnumbered(f"{self.kind.text_events}.delta", fields)

    def _logprobs(self, scores: list[dict[str, Any]]) -> dict[str, Any]:
        return {"logprobs": scores} if self.kind.scored else {}

    def _part(self) -> dict[str, Any]:
        return self.kind.part(unquoted(b"".join(self._pieces)), self._scores)

    def body(self, status: str) -> dict[str, Any]:
        """Its part is announced by an event of its own, after the item."""
        return self.kind.item(self._id, status, [] if status == IN_PROGRESS else [self._part()])

    def begin(self) -> bytes:
        part = {**self._where, "part": self.kind.part("", ())}
        return super().begin() + self._events.write(f"{self.kind.part_events}.added", part)

    def add(self, text: bytes) -> bytes:
        self._pieces.append(text)
        return self._events.number(self._template.fill(text))

    def add_scored(self, text: str, logprobs: Sequence[Mapping[str, Any]]) -> bytes:
        scores = [score(entry) for entry in logprobs]
        self._pieces.append(quoted(text))
        self._scores += scores
        return self._events.number(self._delta(text, scores))

    def end(self, status: str) -> bytes:
        part = self._part()
        whole = {**self._where, "text": part["text"], **self._logprobs(self._scores)}
        return (
            self._events.write(f"{self.kind.text_events}.done", whole)
            + self._events.write(f"{self.kind.part_events}.done", {**self._where, "part": part})
            + super().end(status)
        )


class _CallItem(_Item):
    def __init__(self, events: _Events, index: int, first: ToolCallDelta) -> None:
        super().__init__(events, "fc", index)
        self.number = first.index
        self._call_id = first.id or ""
        self._name = first.name or ""
        self._pieces: list[str] = []

    def body(self, status: str) -> dict[str, Any]:
        return call_item(self._id, status, ToolCall(self._call_id, self._name, "".join(self._pieces)))

    def add(self, arguments: str) -> bytes:
        if not arguments:
            return b""
        self._pieces.append(arguments)
        fields = {**self._where, "delta": arguments}
        return self._events.write("response.function_call_arguments.delta", fields)

    def end(self, status: str) -> bytes:
        fields = {**self._where, "name": self._name, "arguments": "".join(self._pieces)}
        return self._events.write("response.function_call_arguments.done", fields) + super().end(status)


# ---- the stream


class ResponsesEncoder(StreamEncoder):
    """`response` is the response object; its output is complete when the stream has ended."""

    def __init__(self, request: ResponsesRequest, created: float, history: History) -> None:
        super().__init__()
        self.response = response_object(request, created)
        self._request = request
        self._created = created
        self._history = history
        self._thinking_kind = _thinking_kind(request)
        self._events = _Events()
        self._begun = False
        self._open: _TextItem | _CallItem | None = None

    def feed_quoted(self, text: bytes) -> bytes:
        item = self._open
        if isinstance(item, _TextItem) and item.kind is _MESSAGE:  # nearly always
            return item.add(text)
        opened, item = self._opened_text(_MESSAGE)
        return opened + item.add(text)

    def _scored(self, delta: TextDelta) -> bytes:
        opened, item = self._opened_text(_MESSAGE)
        return opened + item.add_scored(delta.text, delta.logprobs)

    def _thinking(self, delta: ThinkingDelta) -> bytes:
        opened, item = self._opened_text(self._thinking_kind)
        return opened + item.add(quoted(delta.text))

    def _call(self, delta: ToolCallDelta) -> bytes:
        item, opened = self._open, b""
        if not isinstance(item, _CallItem) or item.number != delta.index:
            opened = self._close("completed")
            item = _CallItem(self._events, len(self.response["output"]), delta)
            opened += self._begin_item(item)
        return opened + item.add(delta.arguments)

    def _opened_text(self, kind: _Kind) -> tuple[bytes, _TextItem]:
        """An open item of this kind, and what opened it."""
        item = self._open
        if isinstance(item, _TextItem) and item.kind is kind:
            return b"", item
        closed = self._close("completed")
        item = _TextItem(self._events, kind, len(self.response["output"]))
        return closed + self._begin_item(item), item

    def _begin_item(self, item: _TextItem | _CallItem) -> bytes:
        self._open = item
        return item.begin()

    def _close(self, status: str) -> bytes:
        """Ends the open item; begins the stream where it has not begun."""
        item, self._open = self._open, None
        if item is None:
            return self._begin()
        ended = item.end(status)
        self.response["output"].append(item.body(status))
        return ended

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return self._lifecycle("response.created") + self._lifecycle("response.in_progress")

    def _lifecycle(self, kind: str) -> bytes:
        return self._events.write(kind, {"response": self.response})

    def _ping(self) -> bytes:
        return self._begin() + sse_comment("keep-alive")

    def _end(self, done: Done) -> bytes:
        cut = done.reason is FinishReason.LENGTH
        output = b"" if cut else self._answered()
        output += self._close("incomplete" if cut else "completed")
        self.response |= {"usage": usage_object(done.usage), **notes([done])}
        if cut:
            self.response |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        else:
            completed = int(self._created + done.timings.total)
            self.response |= {"status": "completed", "completed_at": completed}
        if self._request.store:
            messages = remembered(self._request.conversation, self.response["output"])
            self._history.save(self.response, messages)
        return output + self._lifecycle("response.incomplete" if cut else "response.completed")

    def _answered(self) -> bytes:
        """A whole answer ends with a message or a call, though it be an empty message: clients look for one."""
        if isinstance(self._open, _CallItem):
            return b""
        return self._opened_text(_MESSAGE)[0]

    def _error(self, error: MgrError) -> bytes:
        """OpenAI's SDKs raise at the `error` event, because of its `error` field; others read what follows it. What
        was being written is not announced as done: it is not."""
        begun = self._begin()
        if self._open is not None:
            self.response["output"].append(self._open.body("incomplete"))
        self.response |= {"status": "failed", "error": failure(error)}
        envelope = error_object(error)["error"]
        words = {key: envelope[key] for key in ("code", "message", "param")}
        return (
            begun
            + self._events.write("error", {**words, "error": envelope})
            + self._lifecycle("response.failed")
        )
