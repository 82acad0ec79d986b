"""What mgr promises about the output of a model, kept by changing the request and reading the answer. Pure.

- A tool call that is required is made (`forced.py`); one that the model wrote and the engine overlooked is a call
  (`tooltags.py`); arguments are valid JSON wherever it is plain what was meant (`repair.py`).
- A format is enforced in full, or the request is refused; the answer is checked (`schemas.py`, `validate.py`).
- Thinking never stands in the content (`thinking.py`).

What needs the library for schemas is imported when it is needed: it takes as long as a third of the daemon's start.
"""

from dataclasses import dataclass, replace

from daemon.chat import ChatRequest, JsonFormat, TokenRequest
from daemon.shaping.reader import Chain, Reader
from daemon.shaping.repair import RepairedCalls
from daemon.shaping.thinking import ThinkTags
from daemon.shaping.tooltags import ToolTags

_ANY_OBJECT = {"type": "object"}
_NO_CALLS = "no tool could be called, as the answer had to keep to the format"


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a model can do. `starts_in_thinking`: its prompt ends with the tag that opens the thinking."""

    thinking: bool
    tools: bool
    starts_in_thinking: bool = False


@dataclass(frozen=True, slots=True)
class Shaped:
    """The request for the engine, and what has to read the answer; None where the pieces are right as they are."""

    request: TokenRequest
    reader: Reader | None


def shape(request: TokenRequest, abilities: Abilities) -> Shaped:
    """Raises InvalidRequest for a schema that is wrong or cannot be kept to, and for a choice of no tool."""
    readers: list[Reader] = []
    if isinstance(request, ChatRequest):
        if abilities.thinking:
            readers.append(ThinkTags(abilities.starts_in_thinking))
        if request.tool_choice.mode == "required":
            from daemon.shaping.forced import forced  # noqa: PLC0415 - see the docstring

            request, calls = forced(request)
            return _shaped(request, [*readers, calls])
        if request.tools and abilities.tools and request.tool_choice.mode == "auto":
            readers += [ToolTags(tool.name for tool in request.tools), RepairedCalls()]
    if request.format is not None:
        request, reader = _formatted(request, request.format)
        readers.append(reader)
    return _shaped(request, readers)


def _formatted(request: TokenRequest, wanted: JsonFormat) -> tuple[TokenRequest, Reader]:
    from daemon.shaping.schemas import enforced  # noqa: PLC0415
    from daemon.shaping.validate import CheckedText, Checker  # noqa: PLC0415

    choosing = isinstance(request, ChatRequest) and request.tools and request.tool_choice.mode == "auto"
    notes = (_NO_CALLS,) if choosing else ()
    if wanted.schema is None:
        return request, CheckedText(Checker(_ANY_OBJECT), notes)
    made = enforced(wanted.schema)
    return replace(request, format=JsonFormat(made.schema)), CheckedText(made.checker, (*made.notes, *notes))


def _shaped(request: TokenRequest, readers: list[Reader]) -> Shaped:
    if len(readers) > 1:
        return Shaped(request, Chain(readers))
    return Shaped(request, readers[0] if readers else None)
