"""Forced tool calls: a JSON schema over the tools constrains the answer, and the answer is turned into calls.

The engine's own "required" lets text come first, or instead. The tools stay in the request, so that the template shows
them; the engine keeps to a format that is given along with tools, whatever the tool choice (llama.cpp,
common/chat-auto-parser-generator.cpp and parsers/, where the response format comes first).

One call is asked for unless the request says that several are wanted: in an open list a small model repeats a call
until the limit.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from daemon.chat import (
    ChatRequest,
    Done,
    FinishReason,
    JsonFormat,
    Piece,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolChoice,
)
from daemon.errors import InvalidRequest
from daemon.shaping.jsontext import Tracker, parsed
from daemon.shaping.reader import call_id
from daemon.shaping.rewrite import Rewriter, Unenforceable
from daemon.shaping.schemas import checked, document, notes
from daemon.shaping.tooltags import calls_in
from daemon.shaping.validate import Checker

MAX_CALLS = 8

# From the end of a call's arguments, or from the start, to the arguments of the next call.
_HEAD = re.compile(r'\s*\}?\s*[\[,]?\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')


def forced(request: ChatRequest) -> "tuple[ChatRequest, ForcedCalls]":
    """The request for the engine, and what reads its answer.

    Raises InvalidRequest where there is no such tool, or the schema of one is wrong.
    """
    tools = _allowed(request)
    rewriter = Rewriter(lenient=True)
    checkers = {
        tool.name: checked(tool.parameters, f"the parameters of the tool '{tool.name}' are") for tool in tools
    }
    calls = [_call(tool, rewriter, checkers[tool.name]) for tool in tools]
    node = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if request.parallel_tool_calls and request.tool_choice.name is None:
        node = {"type": "array", "items": node, "minItems": 1, "maxItems": MAX_CALLS}
    try:
        schema = document(node, rewriter)
    except Unenforceable as error:
        raise InvalidRequest(f"the parameters of the tools cannot be kept to: {error}") from error
    engine = replace(
        request,
        format=JsonFormat(schema),
        tool_choice=ToolChoice(),
        sampling=replace(request.sampling, stop=()),  # text that ends an answer may stand in arguments
    )
    return engine, ForcedCalls(checkers, notes(rewriter))


def _allowed(request: ChatRequest) -> list[Tool]:
    name = request.tool_choice.name
    tools = [tool for tool in request.tools if name in (None, tool.name)]
    if not tools:
        what = "a tool" if name is None else f"the tool '{name}'"
        raise InvalidRequest(f"tool_choice asks for {what}, which is not among the tools of the request")
    return tools


def _call(tool: Tool, rewriter: Rewriter, checker: Checker) -> dict[str, Any]:
    arguments = rewriter.rewrite({**tool.parameters, "type": "object"}, checker.valid) or {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"enum": [tool.name]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class ForcedCalls:
    """A reader of one answer: its text is calls. Calls that the engine made itself are passed on."""

    def __init__(self, checkers: Mapping[str, Checker], notes: tuple[str, ...] = ()) -> None:
        self._checkers = checkers
        self._warnings = list(notes)
        self._held = ""
        self._listed = False
        self._arguments: Tracker | None = None  # of the call whose arguments are being read
        self._calls: dict[int, tuple[str, list[str]]] = {}

    def feed(self, piece: Piece) -> Sequence[Piece]:
        if isinstance(piece, ToolCallDelta):
            self._note(piece)
        if not isinstance(piece, TextDelta):
            return (piece,)
        self._held += piece.text
        pieces: list[Piece] = []
        while (new := self._read()) is not None:
            pieces.append(new)
        return pieces

    def end(self, done: Done) -> tuple[Sequence[Piece], Done]:
        pieces = [] if self._calls else self._otherwise()
        reason = self._reason(done.reason)
        for name, fragments in self._calls.values():
            self._check(name, "".join(fragments))
        return pieces, replace(done, reason=reason, warnings=(*done.warnings, *self._warnings))

    def _read(self) -> ToolCallDelta | None:
        """The next fragment of what is held, if there is one."""
        if self._arguments is not None:
            return self._fragment(self._arguments)
        if (head := _HEAD.match(self._held)) is None:
            return None
        self._listed = self._listed or "[" in head[0][: head.start(1)]
        self._held = self._held[head.end() :]
        self._arguments = Tracker()
        return self._note(ToolCallDelta(len(self._calls), "", call_id(), str(parsed(head[1]))))

    def _fragment(self, tracker: Tracker) -> ToolCallDelta | None:
        end = tracker.feed(self._held)
        fragment, self._held = self._held[:end], self._held[end:]
        if tracker.complete:
            self._arguments = None
        return self._note(ToolCallDelta(len(self._calls) - 1, fragment)) if fragment else None

    def _note(self, piece: ToolCallDelta) -> ToolCallDelta:
        _, fragments = self._calls.setdefault(piece.index, (piece.name or "", []))
        fragments.append(piece.arguments)
        return piece

    def _otherwise(self) -> list[Piece]:
        """What came where the schema was not kept to: calls that are written in another way, or text."""
        calls = calls_in(self._held, self._checkers)
        if not calls:
            return [TextDelta(self._held)] if self._held else []
        return [self._note(ToolCallDelta(i, text, call_id(), name)) for i, (name, text) in enumerate(calls)]

    def _reason(self, reason: FinishReason) -> FinishReason:
        if not self._calls:
            self._warnings.append("the model did not make the tool call that was asked for")
        elif self._arguments is not None:
            self._warnings.append("the answer was cut inside a tool call; its arguments are not complete")
        elif reason == FinishReason.LENGTH and self._listed and "]" not in self._held:
            self._warnings.append("the answer was cut after a tool call; there may have been more of them")
        else:
            return FinishReason.TOOL_CALLS
        return reason

    def _check(self, name: str, arguments: str) -> None:
        checker, value = self._checkers.get(name), parsed(arguments)
        if checker is not None and value is not None and (problem := checker.problem(value)):
            self._warnings.append(
                f"the arguments of the call of '{name}' are not valid for its schema: {problem}"
            )
