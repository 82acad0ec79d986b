"""Ollama's API as its clients call it: chat and generate."""

from collections.abc import Sequence
from typing import Any

from tests.engine.matrix.asks import Ask, Call, Logprob, Told, Tool, Turn, given


class Chat:
    client, method = "ollama", "chat"

    def params(self, ask: Ask, stream: bool) -> dict[str, Any]:
        system = [{"role": "system", "content": ask.system}] if ask.system else []
        return {
            **_common(ask, stream),
            "messages": [*system, *(_message(turn) for turn in ask.turns)],
            **given(tools=[_tool(tool) for tool in ask.tools], tool_choice=_choice(ask.choice)),
        }

    def whole(self, reply: Any) -> Told:
        return self.streamed([reply])

    def streamed(self, pieces: Sequence[Any]) -> Told:
        messages = [piece["message"] for piece in pieces]
        return _told(
            pieces,
            "".join(message.get("content") or "" for message in messages),
            "".join(message.get("thinking") or "" for message in messages),
            tuple(
                Call(call["function"]["name"], call["function"]["arguments"], call.get("id") or "")
                for message in messages
                for call in message.get("tool_calls") or []
            ),
        )


class Generate:
    """One turn of the user, and perhaps a system prompt."""

    client, method = "ollama", "generate"

    def params(self, ask: Ask, stream: bool) -> dict[str, Any]:
        [turn] = ask.turns
        images = [turn.image] if turn.image else []
        return {**_common(ask, stream), "prompt": turn.text, **given(system=ask.system, images=images)}

    def whole(self, reply: Any) -> Told:
        return self.streamed([reply])

    def streamed(self, pieces: Sequence[Any]) -> Told:
        return _told(
            pieces,
            "".join(piece.get("response") or "" for piece in pieces),
            "".join(piece.get("thinking") or "" for piece in pieces),
            (),
        )


def _common(ask: Ask, stream: bool) -> dict[str, Any]:
    return {
        "model": ask.model,
        "stream": stream,
        "options": given(
            temperature=ask.temperature, num_predict=ask.limit, stop=list(ask.stop), seed=ask.seed
        ),
        **given(
            format=ask.format,
            think=ask.think,
            logprobs=ask.top_logprobs is not None or None,
            top_logprobs=ask.top_logprobs,
        ),
    }


def _message(turn: Turn) -> dict[str, Any]:
    called = [{"function": {"name": call.name, "arguments": call.arguments}} for call in turn.calls]
    name = turn.result_of.name if turn.result_of else None
    images = [turn.image] if turn.image else []
    return {
        "role": turn.role,
        "content": turn.text,
        **given(images=images, tool_calls=called, tool_name=name),
    }


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _choice(choice: str | None) -> Any:
    """mgr's own field, in OpenAI's shape; Ollama has none."""
    if choice in (None, "auto", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _told(pieces: Sequence[Any], text: str, thinking: str, calls: tuple[Call, ...]) -> Told:
    last = pieces[-1]
    assert [piece["done"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    return Told(
        texts=(text,),
        thinking=thinking,
        calls=calls,
        finish=last["done_reason"],
        prompt_tokens=last["prompt_eval_count"],
        tokens=last["eval_count"],
        logprobs=tuple(_logprob(entry) for piece in pieces for entry in piece.get("logprobs") or []),
        pieces=len(pieces),
        extra=last,
    )


def _logprob(entry: Any) -> Logprob:
    best = entry.get("top_logprobs") or []
    return Logprob(
        entry["token"], entry["logprob"], tuple((other["token"], other["logprob"]) for other in best)
    )
