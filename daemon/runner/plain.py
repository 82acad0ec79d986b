"""The short way for what nearly every event of an engine's stream is: a piece of text and nothing else. Pure.

Between two tokens an engine on the CPU drives everything else out of the processor's caches, so what counts here is
how little code is run, and how few different things are touched.
"""

import re

from daemon.chat import Piece, TextDelta, ThinkingDelta
from daemon.framing import requoted, unquoted

# An event that holds a piece of text or of thinking and nothing else, as nearly all do, the way llama-server writes it.
_PLAIN_TEXT = re.compile(
    rb'data: \{"choices":\[\{"finish_reason":null,"index":0,"delta":\{"(reasoning_)?content":"(?!")'
    rb'([^"\\\x00-\x1f]*+(?:\\["\\/bfnrt][^"\\\x00-\x1f]*+)*+)"\}\}\],'
    rb'"created":\d+,"id":"[^"\\]*","model":"[^"\\]*","system_fingerprint":"[^"\\]*","object":"chat\.completion\.chunk"\}\n\n'
)

_QUOTE, _BACKSLASH = b'"\\'


class PlainTexts:
    """Reads parts of one event stream that are one event with a piece of text and nothing else.

    What stands around the text is the same in all of them, and learned from the latest that had to be looked at whole.
    """

    def __init__(self) -> None:
        self._before = self._after = b""
        self._around = 0  # bytes; a text that is shorter leaves no place for a second event

    def text_of(self, body: bytes) -> bytes | None:
        """The text, as `framing.quoted` would give it; None for every other part."""
        text = body.removeprefix(self._before).removesuffix(self._after)
        around = len(body) - len(text)
        if (
            around == self._around > len(text) > 0
            and text.isascii()
            and not (_QUOTE in text or _BACKSLASH in text)
        ):
            return text
        return self._looked_at(body)

    def _looked_at(self, body: bytes) -> bytes | None:
        plain = _PLAIN_TEXT.fullmatch(body)
        if plain is None or plain[1] is not None:
            return None
        start, end = plain.span(2)
        self._before, self._after = body[:start], body[end:]
        self._around = len(body) - (end - start)
        said: bytes = plain[2]
        try:
            return said if said.isascii() else requoted(said)
        except UnicodeDecodeError:
            return None  # the long way says what is wrong


def plain_texts(body: bytes) -> tuple[list[Piece], bytes]:
    """The pieces of text and of thinking that a part of an event stream begins with, and the rest of it.

    A short way, several times as fast as decoding the event and its JSON. Where an event differs in anything, an
    escape of a character by its number too, this stops, and the long way reads it.
    """
    pieces: list[Piece] = []
    end = 0
    try:
        while end < len(body) and (plain := _PLAIN_TEXT.match(body, end)):
            thinking, quoted = plain.groups()
            said = quoted.decode() if b"\\" not in quoted else unquoted(quoted)
            pieces.append(TextDelta(said) if thinking is None else ThinkingDelta(said))
            end = plain.end()
    except UnicodeDecodeError:
        pass  # the long way says what is wrong
    return pieces, body[end:]
