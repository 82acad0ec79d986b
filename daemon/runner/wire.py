"""Requests in the engine's HTTP format. Pure.

A canonical request becomes the body of `/v1/chat/completions`, `/completion` or `/infill`. Source: llama.cpp's
tools/server/README.md, server-common.cpp and server-schema.cpp, and what its builds were seen to take.
"""

import json
from collections.abc import Mapping
from typing import Any

from daemon.chat import (
    Audio,
    ChatRequest,
    CompletionRequest,
    Image,
    JsonFormat,
    Message,
    Part,
    Sampling,
    Text,
    TokenRequest,
    Tool,
    ToolCall,
)
from daemon.errors import InvalidRequest

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/completion"
INFILL_PATH = "/infill"

# Sampling fields and the engine's names for them; the same on every route.
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
    "logit_bias": "logit_bias",
}

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_ANY_VALUE: Mapping[str, Any] = {"type": ["object", "array", "string", "number", "boolean", "null"]}


def path_for(request: TokenRequest) -> str:
    if isinstance(request, ChatRequest):
        return CHAT_PATH
    return COMPLETION_PATH if request.suffix is None else INFILL_PATH


def body_for(request: TokenRequest, media_marker: str = "") -> dict[str, Any]:
    """The JSON body. Always streamed and with progress: an engine notices a client that left a plain request only
    when nothing else runs, and one that left in prefill late.

    `media_marker` is the engine's word for the place of an image in plain text. Raises InvalidRequest for what no
    engine takes.
    """
    body = {"stream": True, "return_progress": True, "cache_prompt": True, **_sampling(request.sampling)}
    if request.sampling.stop:
        body["verbose"] = True  # only then is it told which stop sequence hit
    if isinstance(request, CompletionRequest):
        return {**body, **_text_to_continue(request, media_marker)}
    return {**body, **conversation(request), "stream_options": {"include_usage": True}}


def conversation(request: ChatRequest) -> dict[str, Any]:
    """What of a chat's body makes its prompt."""
    body: dict[str, Any] = {"messages": [_message(message) for message in request.messages]}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        body["tool_choice"] = request.tool_choice.mode
        if request.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.format is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": _schema(request.format)}}
    if request.messages and request.messages[-1].role == "assistant":
        # An engine that only guesses that this turn is to be continued repeats it before its answer.
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body | _thinking(request)


def _sampling(sampling: Sampling) -> dict[str, Any]:
    given = {wire: getattr(sampling, name) for name, wire in _NAMES.items()}
    body = {name: value for name, value in given.items() if value is not None}
    if sampling.logprobs:
        # OpenAI's own fields are refused beside tools; and 0 others would give none at all.
        body["n_probs"] = max(sampling.top_logprobs or 0, 1)
    return body


def _thinking(request: ChatRequest) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if request.thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": bool(request.thinking)}
    if isinstance(request.thinking, str):
        body["chat_template_kwargs"]["reasoning_effort"] = request.thinking
    if request.thinking_budget is not None:
        body["thinking_budget_tokens"] = request.thinking_budget
    return body


def _text_to_continue(request: CompletionRequest, media_marker: str) -> dict[str, Any]:
    prompt: object = request.prompt if isinstance(request.prompt, str) else [*request.prompt]
    body: dict[str, Any] = {"prompt": prompt}
    if request.suffix is not None:
        if not isinstance(prompt, str) or request.images:
            raise InvalidRequest("with a suffix the prompt must be text, without images")
        body = {"input_prefix": prompt, "input_suffix": request.suffix}
    elif request.images:
        if not isinstance(prompt, str):
            raise InvalidRequest("with images the prompt must be text")
        media = [part.data for part in request.images]
        body["prompt"] = {"prompt_string": media_marker * len(media) + prompt, "multimodal_data": media}
    if request.format is not None:
        body["json_schema"] = _schema(request.format)
    return body


def _schema(wanted: JsonFormat) -> Mapping[str, Any] | bool:
    """The engine takes an empty schema for "any object", which it is not."""
    if wanted.schema is None:
        return _ANY_OBJECT
    return wanted.schema if wanted.schema not in (True, {}) else _ANY_VALUE


# ---- messages


def _message(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.thinking:
        body["reasoning_content"] = message.thinking
    if message.tool_calls:
        body["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        body["name"] = message.name
    return body


def _content(message: Message) -> str | list[dict[str, Any]]:
    """One text is only text, as many templates know nothing else; the engine puts several together for those."""
    if len(message.parts) <= 1 and all(isinstance(part, Text) for part in message.parts):
        return message.text
    return [_part(part) for part in message.parts]


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            return {"type": "image_url", "image_url": {"url": f"data:{part.mime};base64,{part.data}"}}
        case Audio():
            return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _arguments(call.arguments)}
    return {"type": "function", "id": call.id, "function": function}


def _arguments(text: str) -> str:
    """The text, if it is a JSON object. Some templates make the engine fail at anything else, on every later turn."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        value = None
    if value == {}:
        return "{}"
    return text if isinstance(value, dict) else json.dumps({"raw": text})
