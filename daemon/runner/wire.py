"""The engine's HTTP format, both ways. Pure.

A canonical request becomes the body of `/v1/chat/completions` or `/completion`; chunks of the answer become
canonical events. Source: llama.cpp's tools/server/README.md, and what its builds were seen to send.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from daemon.chat import (
    ChatRequest,
    CompletionRequest,
    Done,
    FinishReason,
    Message,
    Piece,
    Progress,
    Sampling,
    Text,
    TextDelta,
    ThinkingDelta,
    Timings,
    TokenRequest,
    ToolCallDelta,
    Usage,
)
from daemon.errors import EngineFailed, InvalidRequest, MgrError, NotSupported, PromptTooLong
from daemon.runner.output import without_paths

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/completion"

# Sampling fields and the engine's names for them; the same on both routes.
_NAMES: Mapping[str, str] = {
    "max_tokens": "n_predict",
    "stop": "stop",
    "seed": "seed",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_last_n": "repeat_last_n",
    "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "num_keep": "n_keep",
}


def path_for(request: TokenRequest) -> str:
    return CHAT_PATH if isinstance(request, ChatRequest) else COMPLETION_PATH


def body_for(request: TokenRequest) -> dict[str, Any]:
    """The JSON body. Always streamed and with progress: an engine notices a client that left a plain request only
    when nothing else runs, and one that left in prefill late."""
    body = {"stream": True, "return_progress": True, "cache_prompt": True, **_sampling(request.sampling)}
    if request.sampling.stop:
        body["verbose"] = True  # only then is it told which stop sequence hit
    if isinstance(request, CompletionRequest):
        if request.suffix is not None or request.format is not None:
            raise NotSupported("suffix and format are not supported yet on plain completions")
        return {**body, "prompt": request.prompt if isinstance(request.prompt, str) else [*request.prompt]}
    if request.tools or request.format is not None or request.thinking:
        raise NotSupported("tools, formats and thinking are not supported yet")
    return {
        **body,
        "messages": [_message(message) for message in request.messages],
        "stream_options": {"include_usage": True},
    }


def _sampling(sampling: Sampling) -> dict[str, Any]:
    given = {wire: getattr(sampling, name) for name, wire in _NAMES.items()}
    return {name: value for name, value in given.items() if value is not None}


def _message(message: Message) -> dict[str, Any]:
    if any(not isinstance(part, Text) for part in message.parts) or message.tool_calls:
        raise NotSupported("images, audio and tool calls are not supported yet")
    return {"role": message.role, "content": message.text}


# ---- the answer


# An event that holds a piece of text and nothing else, as nearly all do, the way llama-server writes it.
_PLAIN_TEXT = re.compile(
    rb'data: \{"choices":\[\{"finish_reason":null,"index":0,"delta":\{"content":"([^"\\\x00-\x1f]+)"\}\}\],'
    rb'"created":\d+,"id":"[^"\\]*","model":"[^"\\]*","system_fingerprint":"[^"\\]*","object":"chat\.completion\.chunk"\}\n\n'
)


def plain_texts(body: bytes) -> tuple[list[Piece], bytes]:
    """The pieces of text that a part of an event stream begins with, and the rest of it.

    A short way, several times as fast as decoding the event and its JSON. Where an event differs in anything, an
    escape in its text too, this stops, and the long way reads it.
    """
    pieces: list[Piece] = []
    end = 0
    try:
        while end < len(body) and (plain := _PLAIN_TEXT.match(body, end)):
            pieces.append(TextDelta(plain[1].decode()))
            end = plain.end()
    except UnicodeDecodeError:
        pass  # the long way says what is wrong
    return pieces, body[end:]


class AnswerReader:
    """Reads the chunks of one streamed answer, of either route."""

    def __init__(self) -> None:
        self._reason: FinishReason | None = None
        self._stop_sequence: str | None = None
        self._usage = Usage()
        self._timings = Timings()
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
        return Done(self._reason, self._usage, self._timings, self._stop_sequence)

    def _chat(self, chunk: Mapping[str, Any]) -> list[Piece]:
        pieces: list[Piece] = []
        if isinstance(progress := chunk.get("prompt_progress"), dict):
            pieces.append(_progress(progress))
        for choice in _objects(chunk.get("choices")):
            delta = _object(choice.get("delta"))
            if text := _text(delta, "reasoning_content"):
                pieces.append(ThinkingDelta(text))
            if text := _text(delta, "content"):
                pieces.append(TextDelta(text))
            pieces.extend(_tool_call(call) for call in _objects(delta.get("tool_calls")))
            if reason := choice.get("finish_reason"):
                self._reason = _finish_reason(str(reason))
        return pieces

    def _completion(self, chunk: Mapping[str, Any]) -> list[Piece]:
        pieces: list[Piece] = []
        if isinstance(progress := chunk.get("prompt_progress"), dict):
            pieces.append(_progress(progress))
        if text := _text(chunk, "content"):
            pieces.append(TextDelta(text))
        if chunk.get("stop") is True:
            limit = chunk.get("stop_type") == "limit"
            self._reason = FinishReason.LENGTH if limit else FinishReason.STOP
            self._stop_sequence = _text(chunk, "stopping_word") or None
            self.complete = True
        return pieces

    def _counts(self, chunk: Mapping[str, Any]) -> None:
        if isinstance(verbose := chunk.get("__verbose"), dict):
            self._stop_sequence = _text(verbose, "stopping_word") or None
        if isinstance(timings := chunk.get("timings"), dict):
            cached, prompt = _count(timings, "cache_n"), _count(timings, "prompt_n")
            self._usage = Usage(cached + prompt, cached, _count(timings, "predicted_n"))
            self._timings = Timings(
                prompt=_milliseconds(timings, "prompt_ms"), generation=_milliseconds(timings, "predicted_ms")
            )
        elif isinstance(usage := chunk.get("usage"), dict):
            details = _object(usage.get("prompt_tokens_details"))
            self._usage = Usage(
                _count(usage, "prompt_tokens"),
                _count(details, "cached_tokens"),
                _count(usage, "completion_tokens"),
            )


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object that the engine sent. Raises EngineFailed."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise EngineFailed("the engine sent something that is not a JSON object")
    return value


def error_from(error: object, status: int) -> MgrError:
    """The error that the engine's error object means. `status` is the HTTP status it came with."""
    fields = _object(error)
    message = without_paths(_text(fields, "message") or "no reason given")
    if fields.get("type") == "exceed_context_size_error":
        return PromptTooLong(_count(fields, "n_prompt_tokens"), _count(fields, "n_ctx"))
    code = fields.get("code", status)
    if isinstance(code, int) and 400 <= code < 500 and code not in (401, 403, 404):
        return InvalidRequest(f"the engine refused the request: {message}")
    return EngineFailed(f"the engine failed: {message}")


def _progress(progress: Mapping[str, Any]) -> Progress:
    return Progress(_count(progress, "processed"), _count(progress, "total"), _count(progress, "cache"))


def _tool_call(call: Mapping[str, Any]) -> ToolCallDelta:
    function = _object(call.get("function"))
    return ToolCallDelta(
        _count(call, "index"),
        _text(function, "arguments"),
        _text(call, "id") or None,
        _text(function, "name") or None,
    )


def _finish_reason(text: str) -> FinishReason:
    return FinishReason(text) if text in {*FinishReason} else FinishReason.STOP


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(values: Mapping[str, Any], name: str) -> str:
    """A text that can be encoded: a lone surrogate, which JSON can write, becomes a question mark."""
    value = values.get(name)
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _count(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _milliseconds(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    return value / 1000 if isinstance(value, int | float) and 0 < value < math.inf else 0.0
