"""The short way gives what the long way would, or leaves it alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import Piece, TextDelta, ThinkingDelta
from daemon.framing import SseDecoder, quoted, sse
from daemon.runner import plain as plain_module
from daemon.runner.plain import PlainTexts, plain_texts
from daemon.runner.reader import AnswerReader

TEXT = (
    '{"choices":[{"finish_reason":null,"index":0,"delta":{"content":%s}}],"created":1796005290,"id":"chatcmpl-xhxw",'
    '"model":"smollm2","system_fingerprint":"b11311-0c1e570","object":"chat.completion.chunk"}'
)


def plain(text: str, *, thinking: bool = False) -> bytes:
    found = (TEXT % json.dumps(text, ensure_ascii=False)).encode()
    return found.replace(b'"content"', b'"reasoning_content"') if thinking else found


def taught() -> PlainTexts:
    """One that has seen an event of the same stream."""
    texts = PlainTexts()
    assert texts.text_of(sse(plain("Hi"))) == b"Hi"
    return texts


def long_way(stream: bytes) -> list[Piece]:
    decoder, reader = SseDecoder(), AnswerReader()
    return [piece for event in decoder.feed(stream) for piece in reader.read(event.data)]


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.booleans())))
def test_the_short_way_reads_what_the_long_way_reads(texts: list[tuple[str, bool]]) -> None:
    stream = b"".join(sse(plain(text, thinking=thinking)) for text, thinking in texts)
    pieces, rest = plain_texts(stream)
    said = [ThinkingDelta(text) if thinking else TextDelta(text) for text, thinking in texts if text]
    assert [*pieces, *long_way(rest)] == long_way(stream) == said


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_the_shortest_way_gives_what_was_written(text: str) -> None:
    by_number = any(each < " " and each not in "\b\f\n\r\t" for each in text)  # the long way reads those
    for texts in (PlainTexts(), taught()):
        assert texts.text_of(sse(plain(text))) == (None if by_number else quoted(text))


@given(
    st.lists(st.tuples(st.text('ab\\"\n\u2028', min_size=1), st.sampled_from([b"xhxw", b"x", b"xhxw-xhxw"])))
)
def test_what_was_seen_before_changes_nothing(said: list[tuple[str, bytes]]) -> None:
    texts = PlainTexts()
    for text, name in said:
        event = sse(plain(text).replace(b"xhxw", name))
        assert texts.text_of(event) == quoted(text)
        assert texts.text_of(event + event) is None


def test_what_stands_around_a_text_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = taught()
    monkeypatch.setattr(plain_module, "_PLAIN_TEXT", None)
    assert texts.text_of(sse(plain(" there"))) == b" there"


@pytest.mark.parametrize("text", ["a\nb", 'say "a"', "\\n", "\t\r\b\f", "\n", '"'])
def test_the_short_way_takes_escapes_and_thinking(text: str) -> None:
    stream = sse(plain(text)) + sse(plain(text, thinking=True))
    assert plain_texts(stream) == ([TextDelta(text), ThinkingDelta(text)], b"")


def test_the_short_way_takes_plain_texts_and_nothing_else() -> None:
    first = sse(plain("Hello")) + sse(plain(" w\u00f6rld"))
    pieces = [TextDelta("Hello"), TextDelta(" w\u00f6rld")]
    assert plain_texts(first) == (pieces, b"")
    no_json = sse(
        plain("a").replace(b'"a"', b'"\x01"')
    )  # no engine writes that, so it is not looked for each time
    others = [
        sse(plain("a\x1bb")),
        sse(plain("a").replace(b'"a"', b'"\\ud83d\\ude00"')),
        sse(plain("a").replace(b'"a"', b'"a\\"')),
        sse(plain("a").replace(b"null", b'"stop"')),
        sse(plain("a")[:-1] + b',"timings":{}}'),
        sse(plain("a").replace(b"content", b"refusal")),
        sse(plain("a").replace(b'"a"', b'"a","reasoning_content":"b"')),
        sse(plain("a").replace(b'"index":0', b'"index":1')),
        sse(plain("")),
        sse(plain("a"))[:-1],
        sse(plain("a").replace(b'"a"', b'"\xff"')),
        no_json,
        b": comment\n\n",
        b"data: [DONE]\n\n",
    ]
    two = sse(plain("a")) * 2
    for other in [*others, two, sse(plain("a")) + b":", sse(plain("a", thinking=True)), b""]:
        assert PlainTexts().text_of(other) is None
        assert taught().text_of(other) is None or other == no_json
    for other in others:
        assert plain_texts(first + other + first) == (pieces, other + first)
