"""OpenAI's Responses as its clients call them."""

import json
from collections.abc import Sequence
from typing import Any

from tests.engine.matrix.asks import Ask, Call, Logprob, Told, Turn, given

_ENDS = ("response.completed", "response.incomplete")


class Responses:
    client, method = "openai", "responses.create"

    def params(self, ask: Ask, stream: bool) -> dict[str, Any]:
        return {
            "model": ask.model,
            "input": [item for turn in ask.turns for item in _items(turn)],
            "stream": stream,
            "temperature": ask.temperature,
            "max_output_tokens": ask.limit,
            **given(
                instructions=ask.system,
                include=["message.output_text.logprobs"] if ask.top_logprobs is not None else None,
                top_logprobs=ask.top_logprobs,
                text=_format(ask),
                tools=[
                    {
                        "type": "function",
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                        "strict": False,
                    }
                    for tool in ask.tools
                ],
                tool_choice=_choice(ask.choice),
                reasoning=None if ask.think is None else {"effort": "medium" if ask.think else "none"},
                previous_response_id=ask.previous,
            ),
        }

    def whole(self, reply: Any) -> Told:
        assert reply["object"] == "response"
        output = reply["output"]
        parts = [part for item in output if item["type"] == "message" for part in item["content"]]
        calls = tuple(
            Call(item["name"], json.loads(item["arguments"]), item["call_id"])
            for item in output
            if item["type"] == "function_call"
        )
        usage = reply["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        return Told(
            texts=("".join(part["text"] for part in parts),),
            calls=calls,
            finish=_finish(reply, bool(calls)),
            prompt_tokens=usage["input_tokens"],
            tokens=usage["output_tokens"],
            logprobs=tuple(_logprob(entry) for part in parts for entry in part.get("logprobs") or []),
            extra=reply,
        )

    def streamed(self, pieces: Sequence[Any]) -> Told:
        """What the last event holds, checked to be what the deltas said."""
        assert [piece["sequence_number"] for piece in pieces] == list(range(len(pieces)))
        assert [piece["type"] for piece in pieces[:2]] == ["response.created", "response.in_progress"]
        last = pieces[-1]
        assert last["type"] in _ENDS
        told = self.whole(last["response"])
        assert _joined(pieces, "response.output_text.delta") == told.text
        arguments = _joined(pieces, "response.function_call_arguments.delta")
        items = [item for item in last["response"]["output"] if item["type"] == "function_call"]
        assert arguments == "".join(item["arguments"] for item in items)
        return Told(**{**vars(told), "pieces": len(pieces)})


def _joined(pieces: Sequence[Any], kind: str) -> str:
    return "".join(piece["delta"] for piece in pieces if piece["type"] == kind)


def _finish(reply: Any, called: bool) -> str:
    if reply["status"] == "incomplete":
        assert reply["incomplete_details"]["reason"] == "max_output_tokens"
        return "length"
    assert reply["status"] == "completed"
    return "tool_calls" if called else "stop"


def _items(turn: Turn) -> list[dict[str, Any]]:
    if turn.result_of is not None:
        return [{"type": "function_call_output", "call_id": turn.result_of.id, "output": turn.text}]
    calls = [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": json.dumps(call.arguments),
        }
        for call in turn.calls
    ]
    return [*([] if calls and not turn.text else [{"role": turn.role, "content": _content(turn)}]), *calls]


def _content(turn: Turn) -> Any:
    if len(turn.texts) == 1 and turn.image is None:
        return turn.text
    parts: list[dict[str, Any]] = [{"type": "input_text", "text": text} for text in turn.texts]
    if turn.image is not None:
        url = f"data:image/png;base64,{turn.image}"
        parts.append({"type": "input_image", "image_url": url, "detail": "auto"})
    return parts


def _format(ask: Ask) -> Any:
    if ask.format is None:
        return None
    if ask.format == "json":
        return {"format": {"type": "json_object"}}
    return {"format": {"type": "json_schema", "name": "answer", "schema": ask.format, "strict": True}}


def _choice(choice: str | None) -> Any:
    if choice in (None, "auto", "required"):
        return choice
    return {"type": "function", "name": choice}


def _logprob(entry: Any) -> Logprob:
    return Logprob(
        entry["token"],
        entry["logprob"],
        tuple((other["token"], other["logprob"]) for other in entry["top_logprobs"]),
    )
