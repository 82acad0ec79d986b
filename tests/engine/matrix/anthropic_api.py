"""Anthropic's Messages as its clients call them."""

import json
from collections.abc import Sequence
from typing import Any

from tests.engine.matrix.asks import Ask, Call, Told, Turn, given

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
# The least budget that the format takes, and a limit above it.
_BUDGET = 1024


class Messages:
    client, method = "anthropic", "messages.create"

    def params(self, ask: Ask, stream: bool) -> dict[str, Any]:
        return {**self.prompt(ask), "stream": stream, "temperature": ask.temperature, **_limits(ask)}

    def prompt(self, ask: Ask) -> dict[str, Any]:
        """The part that counts as input."""
        return {
            "model": ask.model,
            "messages": [_message(turn) for turn in ask.turns],
            **given(
                system=ask.system,
                tools=[
                    {
                        "name": tool.name,
                        "description": tool.description,
                        "input_schema": tool.parameters,
                    }
                    for tool in ask.tools
                ],
                tool_choice=_choice(ask.choice),
                output_config=_format(ask),
            ),
        }

    def whole(self, reply: Any) -> Told:
        assert (reply["type"], reply["role"]) == ("message", "assistant")
        content = reply["content"]
        return Told(
            texts=("".join(block["text"] for block in content if block["type"] == "text"),),
            thinking="".join(block["thinking"] for block in content if block["type"] == "thinking"),
            calls=tuple(
                Call(block["name"], block["input"], block["id"])
                for block in content
                if block["type"] == "tool_use"
            ),
            finish=_FINISH[reply["stop_reason"]],
            extra=reply,
            **_usage(reply["usage"]),
        )

    def streamed(self, pieces: Sequence[Any]) -> Told:
        """The message that the events make."""
        events = [piece for piece in pieces if piece["type"] != "ping"]
        assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
        [ended] = [event for event in events if event["type"] == "message_delta"]
        message = {**events[0]["message"], **ended["delta"], "content": _blocks(events)}
        # Counts that the last event leaves out are those of the first.
        told = {name: count for name, count in ended["usage"].items() if count is not None}
        message["usage"] = {**message["usage"], **told}
        return Told(**{**vars(self.whole(message)), "pieces": len(pieces)})


def _limits(ask: Ask) -> dict[str, Any]:
    limit = ask.limit + _BUDGET if ask.think else ask.limit
    thinking = {"type": "enabled", "budget_tokens": _BUDGET} if ask.think else {"type": "disabled"}
    return {
        "max_tokens": limit,
        **given(stop_sequences=list(ask.stop), thinking=None if ask.think is None else thinking),
    }


def _message(turn: Turn) -> dict[str, Any]:
    if turn.result_of is not None:
        result = {"type": "tool_result", "tool_use_id": turn.result_of.id, "content": turn.text}
        return {"role": "user", "content": [result]}
    if len(turn.texts) == 1 and turn.image is None and not turn.calls:
        return {"role": turn.role, "content": turn.text}
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text} for text in turn.texts]
    if turn.image is not None:
        source = {"type": "base64", "media_type": "image/png", "data": turn.image}
        blocks.append({"type": "image", "source": source})
    blocks.extend(
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in turn.calls
    )
    return {"role": turn.role, "content": blocks}


def _choice(choice: str | None) -> Any:
    if choice is None:
        return None
    plain = {"auto": {"type": "auto"}, "required": {"type": "any"}}
    return plain.get(choice, {"type": "tool", "name": choice})


def _format(ask: Ask) -> Any:
    assert ask.format != "json"
    return None if ask.format is None else {"format": {"type": "json_schema", "schema": ask.format}}


def _usage(usage: Any) -> dict[str, Any]:
    cached = (usage.get("cache_read_input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
    return {"prompt_tokens": usage["input_tokens"] + cached, "tokens": usage["output_tokens"]}


def _blocks(events: Sequence[Any]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            match delta["type"]:
                case "text_delta":
                    block["text"] += delta["text"]
                case "thinking_delta":
                    block["thinking"] += delta["thinking"]
                case "input_json_delta":
                    block["json"] += delta["partial_json"]
        elif event["type"] == "content_block_stop" and blocks[event["index"]]["type"] == "tool_use":
            block = blocks[event["index"]]
            block["input"] = json.loads(block["json"] or "{}")
    return blocks
