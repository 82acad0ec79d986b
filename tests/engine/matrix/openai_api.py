"""OpenAI's chat completions and completions as its clients call them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.engine.matrix.asks import Ask, Call, Logprob, Told, Tool, Turn, given


class Chat:
    client, method = "openai", "chat.completions.create"

    def params(self, ask: Ask, stream: bool) -> dict[str, Any]:
        return {
            "model": ask.model,
            "messages": messages(ask),
            "stream": stream,
            "temperature": ask.temperature,
            "max_completion_tokens": ask.limit,
            **given(
                stream_options={"include_usage": True} if stream else None,
                stop=list(ask.stop),
                seed=ask.seed,
                logprobs=ask.top_logprobs is not None or None,
                top_logprobs=ask.top_logprobs,
                response_format=_format(ask),
                tools=[_tool(tool) for tool in ask.tools],
                tool_choice=_choice(ask.choice),
                reasoning_effort=None if ask.think is None else "medium" if ask.think else "none",
                n=ask.choices if ask.choices > 1 else None,
            ),
        }

    def whole(self, reply: Any) -> Told:
        assert reply["object"] == "chat.completion"
        choices = sorted(reply["choices"], key=lambda choice: choice["index"])
        message = choices[0]["message"]
        return Told(
            texts=tuple(choice["message"].get("content") or "" for choice in choices),
            thinking=message.get("reasoning_content") or "",
            calls=tuple(
                Call(call["function"]["name"], json.loads(call["function"]["arguments"]), call["id"])
                for call in message.get("tool_calls") or []
            ),
            finish=choices[0]["finish_reason"],
            logprobs=_logprobs(choices[0].get("logprobs")),
            extra=reply,
            **_usage(reply["usage"]),
        )

    def streamed(self, pieces: Sequence[Any]) -> Told:
        assert {piece["object"] for piece in pieces} == {"chat.completion.chunk"}
        assert len({piece["id"] for piece in pieces}) == 1
        choices = [choice for piece in pieces for choice in piece["choices"]]
        first = [choice for choice in choices if choice["index"] == 0]
        [finish] = [choice["finish_reason"] for choice in first if choice.get("finish_reason")]
        deltas = [choice["delta"] for choice in first]
        return Told(
            texts=_by_choice(choices, lambda choice: choice["delta"].get("content") or ""),
            thinking="".join(delta.get("reasoning_content") or "" for delta in deltas),
            calls=_calls([call for delta in deltas for call in delta.get("tool_calls") or []]),
            finish=finish,
            logprobs=tuple(entry for choice in first for entry in _logprobs(choice.get("logprobs"))),
            pieces=len(pieces),
            extra=pieces[-1],
            **_usage(pieces[-1]["usage"]),
        )


class Completions:
    """The text of one turn is continued as it stands."""

    client, method = "openai", "completions.create"

    def params(self, ask: Ask, stream: bool) -> dict[str, Any]:
        prompts = [turn.text for turn in ask.turns]
        return {
            "model": ask.model,
            "prompt": prompts if len(prompts) > 1 else prompts[0],
            "stream": stream,
            "temperature": ask.temperature,
            "max_tokens": ask.limit,
            **given(
                stream_options={"include_usage": True} if stream else None,
                stop=list(ask.stop),
                seed=ask.seed,
                logprobs=ask.top_logprobs,
                n=ask.choices if ask.choices > 1 else None,
            ),
        }

    def whole(self, reply: Any) -> Told:
        return self._told(reply["choices"], reply["usage"], 1, reply)

    def streamed(self, pieces: Sequence[Any]) -> Told:
        choices = [choice for piece in pieces for choice in piece["choices"]]
        return self._told(choices, pieces[-1]["usage"], len(pieces), pieces[-1])

    def _told(self, choices: Sequence[Any], usage: Any, pieces: int, extra: Any) -> Told:
        first = [choice for choice in choices if choice["index"] == 0]
        [finish] = [choice["finish_reason"] for choice in first if choice.get("finish_reason")]
        return Told(
            texts=_by_choice(choices, lambda choice: choice["text"]),
            finish=finish,
            logprobs=tuple(entry for choice in first for entry in _old_logprobs(choice.get("logprobs"))),
            pieces=pieces,
            extra=extra,
            **_usage(usage),
        )


def messages(ask: Ask) -> list[dict[str, Any]]:
    """The conversation in OpenAI's shape, which the engine understands too."""
    system = [{"role": "system", "content": ask.system}] if ask.system else []
    return [*system, *(_message(turn) for turn in ask.turns)]


def _message(turn: Turn) -> dict[str, Any]:
    if turn.result_of is not None:
        return {"role": "tool", "tool_call_id": turn.result_of.id, "content": turn.text}
    if turn.calls:
        return {
            "role": "assistant",
            "content": turn.text or None,
            "tool_calls": [_call(c) for c in turn.calls],
        }
    if len(turn.texts) == 1 and turn.image is None:
        return {"role": turn.role, "content": turn.text}
    parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in turn.texts]
    if turn.image is not None:
        parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{turn.image}"}})
    return {"role": turn.role, "content": parts}


def _call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _choice(choice: str | None) -> Any:
    if choice in (None, "auto", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _format(ask: Ask) -> Any:
    if ask.format is None:
        return None
    if ask.format == "json":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": ask.format, "strict": True}}


def _usage(usage: Any) -> dict[str, Any]:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return {"prompt_tokens": usage["prompt_tokens"], "tokens": usage["completion_tokens"]}


def _by_choice(choices: Sequence[Any], text: Any) -> tuple[str, ...]:
    texts: dict[int, list[str]] = {}
    for choice in choices:
        texts.setdefault(choice["index"], []).append(text(choice))
    return tuple("".join(texts[index]) for index in sorted(texts))


def _calls(fragments: Sequence[Any]) -> tuple[Call, ...]:
    """Fragments put together; the id and the name come with the first one only."""
    joined: dict[int, dict[str, str]] = {}
    for fragment in fragments:
        function = fragment.get("function") or {}
        call = joined.setdefault(fragment["index"], {"id": "", "name": "", "arguments": ""})
        call["id"] += fragment.get("id") or ""
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""
    assert sorted(joined) == list(range(len(joined)))
    return tuple(Call(c["name"], json.loads(c["arguments"]), c["id"]) for _, c in sorted(joined.items()))


def _logprobs(value: Any) -> tuple[Logprob, ...]:
    entries = (value or {}).get("content") or []
    return tuple(
        Logprob(
            entry["token"],
            entry["logprob"],
            tuple((other["token"], other["logprob"]) for other in entry["top_logprobs"]),
        )
        for entry in entries
    )


def _old_logprobs(value: Any) -> tuple[Logprob, ...]:
    if not value:
        return ()
    rows = zip(value["tokens"], value["token_logprobs"], value["top_logprobs"], strict=True)
    return tuple(Logprob(token, number, _likeliest_first(best)) for token, number, best in rows)


def _likeliest_first(best: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """An object has an order of its own in JavaScript."""
    return tuple(sorted(best.items(), key=lambda item: item[1], reverse=True))
