"""OpenAI's /v1/chat/completions.

Source: OpenAI's API reference and the types of its Python SDK. Beside its own options the route takes, as extra
fields, those of chat.Sampling, `keep_alive`, `truncate`, and the switches for thinking of other servers; fields it
does not know are ignored. The older `functions` are tools, and answered as tools.

Thinking is written twice, as `reasoning_content` and as `reasoning`: programs made for llama.cpp, DeepSeek and older
vLLM read the first, those made for Ollama, OpenRouter and newer vLLM the second, and OpenAI's own API has neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from daemon.chat import (
    Answer,
    Batch,
    ChatRequest,
    Done,
    JsonFormat,
    Request,
    Sampling,
    TextDelta,
    ThinkingDelta,
    TokenRequest,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
)
from daemon.framing import Template
from daemon.middleware import request as pieces
from daemon.middleware import tooling
from daemon.middleware.dialect import BatchEncoder, Reply, read_object
from daemon.middleware.encoding import StreamEncoder
from daemon.middleware.fields import BadField, FieldNotSupported, Fields, shown
from daemon.middleware.openai_common import (
    MAX_N,
    MAX_TOP_LOGPROBS,
    ChoiceEncoder,
    ManyEncoder,
    OpenAIDialect,
    head,
    include_usage,
    limit,
    logit_bias,
    several,
    whole,
)
from daemon.middleware.openai_messages import messages

# Fields that are not built, with the values that mean "off".
_UNBUILT: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "web_search_options": (),
    "moderation": (),
}


# ---- requests


def _chat(fields: Fields) -> ChatRequest | Batch:
    fields.refuse_unbuilt(_UNBUILT)
    if fields.data.get("modalities") not in (None, ["text"]):
        raise FieldNotSupported("modalities", 'other than ["text"] are not supported')
    stream = fields.boolean("stream") is True
    choice, tools = _choice(fields, _tools(fields))
    reasoning = fields.object("reasoning")
    request = ChatRequest(
        model=pieces.model(fields),
        keep_alive=pieces.keep_alive(fields),
        messages=messages(fields),
        sampling=_sampling(fields),
        stream=stream,
        include_usage=include_usage(fields, stream),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=fields.boolean("parallel_tool_calls"),
        format=_format(fields.object("response_format")),
        thinking=_thinking(fields, reasoning),
        thinking_budget=reasoning.integer("max_tokens", 0, pieces.MAX_INT),
        truncate=fields.boolean("truncate") is True,
    )
    return several([request], fields.integer("n", 1, MAX_N) or 1)


def _sampling(fields: Fields) -> Sampling:
    logprobs = fields.boolean("logprobs") or None
    top_logprobs = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or None
    if top_logprobs and not logprobs:
        raise BadField("top_logprobs", "needs logprobs to be true")
    return replace(
        pieces.sampling(fields, max_tokens=_max_tokens(fields)),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        logit_bias=logit_bias(fields),
    )


def _max_tokens(fields: Fields) -> int | None:
    """`max_tokens` is the older name; of two limits both hold."""
    limits = [given for key in ("max_completion_tokens", "max_tokens") if (given := limit(fields, key))]
    return min((given for given in limits if given > 0), default=-1 if limits else None)


def _thinking(fields: Fields, reasoning: Fields) -> bool | str | None:
    """One switch with many names; the first that is given counts."""
    switches = (
        pieces.thinking(reasoning, "effort"),
        pieces.thinking(fields, "reasoning_effort"),
        pieces.thinking(fields, "think"),
        fields.object("chat_template_kwargs").boolean("enable_thinking"),
    )
    return next((switch for switch in switches if switch is not None), None)


def _format(fields: Fields) -> JsonFormat | None:
    """Other servers take the schema beside the type, too."""
    match fields.string("type"):
        case None | "text":
            return None
        case "json_object":
            return JsonFormat(_schema(fields))
        case "json_schema":
            named = fields.object("json_schema")
            schema = _schema(named if "schema" in named.data else fields)
            if schema is None:
                raise BadField(named.name("schema"), "is required")
            return JsonFormat(schema)
        case kind:
            raise FieldNotSupported(fields.name("type"), f"{shown(kind)} is not supported")


def _schema(fields: Fields) -> Mapping[str, Any] | bool | None:
    schema = fields.data.get("schema")
    return schema if isinstance(schema, bool | None) else fields.object("schema").data


def _tools(fields: Fields) -> tuple[Tool, ...]:
    """The older `functions` are tools without their wrapping."""
    functions = [tooling.tool(item, "parameters") for item in fields.objects("functions")]
    return tooling.distinct(fields, [*tooling.tools(fields), *functions])


def _choice(fields: Fields, tools: tuple[Tool, ...]) -> tuple[ToolChoice, tuple[Tool, ...]]:
    """The choice, and the tools that it leaves."""
    given = fields.data.get("tool_choice")
    if given is None:
        return _function_choice(fields, tools), tools
    if isinstance(given, dict):
        choice = fields.object("tool_choice")
        kind = choice.string("type")
        if kind == "allowed_tools":
            return _allowed(choice.object("allowed_tools"), tools)
        if kind not in (None, "function"):
            raise FieldNotSupported(
                choice.name("type"), f"{shown(kind)} is not supported; only functions are"
            )
    return tooling.tool_choice(fields, tools), tools


def _function_choice(fields: Fields, tools: tuple[Tool, ...]) -> ToolChoice:
    """The older `function_call`: a word, or an object with the name."""
    match fields.data.get("function_call"):
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
    return tooling.named_choice(fields.object("function_call"), tools)


def _allowed(allowed: Fields, tools: tuple[Tool, ...]) -> tuple[ToolChoice, tuple[Tool, ...]]:
    """A choice among some of the tools only."""
    names = [tooling.tool_name(item.object("function")) for item in allowed.objects("tools")]
    left = tuple(tool for tool in tools if tool.name in names)
    match allowed.string("mode"):
        case None | "auto":
            return ToolChoice(), left
        case "required" if left:
            return ToolChoice("required"), left
        case "required":
            raise BadField(allowed.name("tools"), "names none of the tools")
        case mode:
            raise BadField(allowed.name("mode"), f'must be "auto" or "required", not {shown(mode)}')


# ---- answers


def _reasoning(text: str) -> dict[str, str]:
    return {"reasoning_content": text, "reasoning": text}


def _logprobs(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    return {"content": [*entries], "refusal": None} if entries else None


def _choice_object(index: int, request: TokenRequest, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.thinking:
        message |= _reasoning(answer.thinking)
    if answer.tool_calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [_call_object(call) for call in answer.tool_calls]
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(answer.logprobs),
        "finish_reason": answer.done.reason,
    }


def _call_object(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class _Encoder(ChoiceEncoder):
    """The role comes with the first chunk only."""

    def __init__(self, head: Mapping[str, Any], index: int, request: TokenRequest) -> None:
        super().__init__(head, index, request)
        self._role = {"role": "assistant"}
        self._template = Template(
            lambda text: self._chunk({"delta": {"content": text}, "finish_reason": None})
        )

    def _delta(self, delta: dict[str, Any], **more: Any) -> bytes:
        role, self._role = self._role, {}
        return self._chunk({"delta": role | delta, **more, "finish_reason": None})

    def first(self) -> bytes:
        return self._delta({"content": ""})

    def feed_quoted(self, text: bytes) -> bytes:
        if self._role:
            return Template(lambda text: self._delta({"content": text})).fill(text)
        return self._template.fill(text)

    def _scored(self, delta: TextDelta) -> bytes:
        return self._delta({"content": delta.text}, logprobs=_logprobs(delta.logprobs))

    def _thinking(self, delta: ThinkingDelta) -> bytes:
        return self._delta(_reasoning(delta.text))

    def _call(self, delta: ToolCallDelta) -> bytes:
        return self._delta({"tool_calls": [_call_delta(delta)]})

    def last(self, done: Done) -> bytes:
        role = {**self._role, "content": ""} if self._role else {}
        return self._ending({"delta": role, "finish_reason": done.reason}, done)


def _call_delta(delta: ToolCallDelta) -> dict[str, Any]:
    function = {"name": delta.name} if delta.name is not None else {}
    first = {"id": delta.id, "type": "function"} if delta.id is not None else {}
    return {"index": delta.index, **first, "function": function | {"arguments": delta.arguments}}


class _Chat(OpenAIDialect):
    def parse(self, body: bytes) -> Request:
        return _chat(Fields(read_object(body)))

    def encoder(self, request: TokenRequest, created: float) -> StreamEncoder:
        return _Encoder(_head(request.model, created, stream=True), 0, request)

    def batch_encoder(self, request: Batch, created: float) -> BatchEncoder:
        return ManyEncoder(request, _head(request.model, created, stream=True), _Encoder)

    def reply(self, request: TokenRequest, answer: Answer, created: float) -> Reply:
        return whole(_head(request.model, created), [request], [answer], _choice_object)

    def replies(self, request: Batch, answers: Sequence[Answer], created: float) -> Reply:
        return whole(_head(request.model, created), request.requests, answers, _choice_object)


def _head(model: str, created: float, *, stream: bool = False) -> dict[str, Any]:
    return head("chatcmpl", "chat.completion.chunk" if stream else "chat.completion", model, created)


CHAT = _Chat()
