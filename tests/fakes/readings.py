"""Reads an answer through a reader of `daemon/shaping`, in chunks of any size."""

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

from hypothesis import strategies as st

from daemon.chat import Answer, Assembly, Done, FinishReason, Piece, TextDelta
from daemon.shaping.reader import Reader


def chunks(text: str, cuts: Sequence[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges) if a < b]


def read(reader: Reader, pieces: Sequence[Piece], reason: FinishReason = FinishReason.STOP) -> Answer:
    assembly = Assembly()
    for piece in pieces:
        for out in reader.feed(piece):
            assembly.feed(out)
    last, done = reader.end(Done(reason))
    for out in last:
        assembly.feed(out)
    assembly.feed(done)
    return assembly.answer()


def read_text(
    reader: Callable[[], Reader],
    text: str,
    cuts: Sequence[int] = (),
    reason: FinishReason = FinishReason.STOP,
) -> Answer:
    return read(reader(), [TextDelta(chunk) for chunk in chunks(text, cuts)], reason)


def plain(answer: Answer) -> tuple[str, str, list[tuple[str, str]], str, tuple[str, ...]]:
    """All of an answer but the ids of its calls, which are random."""
    calls = [(call.name, call.arguments) for call in answer.tool_calls]
    return answer.text, answer.thinking, calls, answer.done.reason, answer.done.warnings


@cache
def strings(pattern: str) -> st.SearchStrategy[str]:
    """What an engine may write for a pattern of `patterns.written`, read as JSON. Of the characters beyond ASCII only
    "é": all of them would take long to go through."""
    few = re.sub(r"\\u0080-[^]]*\\U0010FFFF", "é", pattern)
    return st.from_regex(few, fullmatch=True).map(lambda raw: str(json.loads(f'"{raw}"')))
