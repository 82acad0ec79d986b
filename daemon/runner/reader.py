"""The engine's answers: events of its streams become canonical pieces. Pure.

Source: llama.cpp's tools/server/server-task.cpp, and what its builds were seen to send.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from daemon.chat import (
    Done,
    FinishReason,
    Piece,
    Progress,
    TextDelta,
    ThinkingDelta,
    Timings,
    ToolCallDelta,
    Usage,
)
from daemon.errors import EngineFailed
from daemon.runner.received import as_object, count, error_from, number, objects, parse_object, text

# OpenAI's least one; the engine's is the least float there is.
_LEAST_LOGPROB = -9999.0


class AnswerReader:
    """Reads the chunks of one streamed answer, of any route. `top_logprobs`: so many others go with each token's."""

    def __init__(self, top_logprobs: int = 0) -> None:
        self._reason: FinishReason | None = None
        self._stop_sequence: str | None = None
        self._usage = Usage()
        self._timings = Timings()
        self._calls = _Calls()
        self._logprobs = _Logprobs(top_logprobs)
        self.complete = False  # the engine has said that nothing more comes

    def read(self, data: bytes) -> Sequence[Piece]:
        """What one `data:` value of the engine brings. Raises EngineFailed, InvalidRequest or PromptTooLong."""
        if data == b"[DONE]":
            self.complete = True
            return ()
        chunk = parse_object(data)
        if "error" in chunk:
            raise error_from(chunk["error"], 500)
        self._counts(chunk)
        if "choices" in chunk:
            return self._chat(chunk)
        return self._completion(chunk)

    def end(self) -> Done:
        """The end of the answer, when nothing more comes. Raises EngineFailed when it is not whole."""
        if self._reason is None:
            raise EngineFailed("the engine stopped in the middle of the answer")
        called = self._calls.any and self._reason is FinishReason.STOP
        reason = FinishReason.TOOL_CALLS if called else self._reason
        return Done(reason, self._usage, self._timings, self._stop_sequence)

    def _chat(self, chunk: Mapping[str, Any]) -> list[Piece]:
        pieces = _progress(chunk)
        for choice in objects(chunk.get("choices")):
            delta = as_object(choice.get("delta"))
            calls = self._calls.read(objects(delta.get("tool_calls")))
            thinking = text(delta, "reasoning_content")
            logprobs = objects(as_object(choice.get("logprobs")).get("content"))
            if thinking:
                pieces.append(ThinkingDelta(thinking))
            pieces.extend(self._logprobs.said(text(delta, "content"), logprobs, bool(calls or thinking)))
            pieces.extend(calls)
            if reason := choice.get("finish_reason"):
                self._reason = _finish_reason(str(reason))
        return pieces

    def _completion(self, chunk: Mapping[str, Any]) -> list[Piece]:
        pieces = _progress(chunk)
        pieces.extend(
            self._logprobs.said(text(chunk, "content"), objects(chunk.get("completion_probabilities")))
        )
        if chunk.get("stop") is True:
            limit = chunk.get("stop_type") == "limit"
            self._reason = FinishReason.LENGTH if limit else FinishReason.STOP
            self._stop_sequence = text(chunk, "stopping_word") or None
            self.complete = True
        return pieces

    def _counts(self, chunk: Mapping[str, Any]) -> None:
        if isinstance(verbose := chunk.get("__verbose"), dict):
            self._stop_sequence = text(verbose, "stopping_word") or None
        if isinstance(timings := chunk.get("timings"), dict):
            cached, prompt = count(timings, "cache_n"), count(timings, "prompt_n")
            self._usage = Usage(cached + prompt, cached, count(timings, "predicted_n"))
            self._timings = Timings(
                prompt=_milliseconds(timings, "prompt_ms"), generation=_milliseconds(timings, "predicted_ms")
            )
        elif isinstance(usage := chunk.get("usage"), dict):
            details = as_object(usage.get("prompt_tokens_details"))
            self._usage = Usage(
                count(usage, "prompt_tokens"),
                count(details, "cached_tokens"),
                count(usage, "completion_tokens"),
            )


class _Calls:
    """Fragments of tool calls: numbered from 0 in the order they begin, each call with an id.

    A call begins with an index that was not there before, or with another id at the same index.
    """

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}  # of the latest call at each of the engine's indices
        self._number = -1

    @property
    def any(self) -> bool:
        return self._number >= 0

    def read(self, fragments: Iterable[Mapping[str, Any]]) -> list[Piece]:
        return [self._fragment(fragment) for fragment in fragments]

    def _fragment(self, fragment: Mapping[str, Any]) -> ToolCallDelta:
        index, call_id = count(fragment, "index"), text(fragment, "id")
        function = as_object(fragment.get("function"))
        arguments = text(function, "arguments")
        if index in self._ids and call_id in ("", self._ids[index]):
            return ToolCallDelta(self._number, arguments)
        self._number += 1
        self._ids[index] = call_id or f"call_{secrets.token_hex(12)}"
        return ToolCallDelta(self._number, arguments, self._ids[index], text(function, "name") or None)


class _Logprobs:
    """Which tokens belong to which piece of text.

    An engine holds a token back until its characters are whole and no stop sequence can begin with it; its entry
    comes before the text then.
    """

    def __init__(self, top: int) -> None:
        self._top = top
        self._held: list[Mapping[str, Any]] = []

    def said(self, said: str, entries: Sequence[Mapping[str, Any]], elsewhere: bool = False) -> list[Piece]:
        """The piece of text, if there is one. `elsewhere`: the entries belong to something else of the same chunk."""
        if said:
            held, self._held = self._held, []
            return [TextDelta(said, (*held, *(self._entry(entry) for entry in entries)))]
        if not elsewhere:
            self._held.extend(self._entry(entry) for entry in entries)
        return []

    def _entry(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        others = objects(entry.get("top_logprobs"))[: self._top]
        return {**_token(entry), "top_logprobs": [_token(other) for other in others]}


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    found = entry.get("bytes")
    return {
        "token": text(entry, "token"),
        "logprob": max(number(entry.get("logprob")), _LEAST_LOGPROB),
        "bytes": found if isinstance(found, list) else [*text(entry, "token").encode()],
    }


def _progress(chunk: Mapping[str, Any]) -> list[Piece]:
    progress = chunk.get("prompt_progress")
    if not isinstance(progress, dict):
        return []
    return [Progress(count(progress, "processed"), count(progress, "total"), count(progress, "cache"))]


def _finish_reason(said: str) -> FinishReason:
    return FinishReason(said) if said in {*FinishReason} else FinishReason.STOP


def _milliseconds(values: Mapping[str, Any], name: str) -> float:
    return max(number(values.get(name)), 0.0) / 1000
