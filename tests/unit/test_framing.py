"""Framing: the examples of the WHATWG standard, every way to cut a stream into chunks, and the limits."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.framing import (
    FramingError,
    NdjsonDecoder,
    ServerSentEvent,
    SseDecoder,
    Template,
    ndjson,
    quoted,
    requoted,
    sse,
    sse_comment,
    to_json,
    unquoted,
)


def decode(stream: bytes, cuts: list[int] | None = None) -> list[ServerSentEvent]:
    decoder = SseDecoder()
    return feed(decoder, stream, cuts or []) + decoder.flush()


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def feed(decoder: SseDecoder | NdjsonDecoder, stream: bytes, cuts: list[int]) -> list[Any]:
    return [item for chunk in pieces(stream, cuts) for item in decoder.feed(chunk)]


def message(*data: str, event: str = "message") -> list[ServerSentEvent]:
    return [ServerSentEvent(item.encode(), event) for item in data]


# ---- server-sent events

STREAMS = [
    # The examples of the standard, section "Interpreting an event stream".
    pytest.param(b"data: YHOO\ndata: +2\ndata: 10\n\n", message("YHOO\n+2\n10"), id="lines-of-one-event"),
    pytest.param(
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        message("first event", "second event", " third event"),
        id="comment-id-and-spaces",
    ),
    pytest.param(b"data\n\ndata\ndata\n\ndata:", message("", "\n"), id="fields-without-a-value"),
    pytest.param(b"data:test\n\ndata: test\n\n", message("test", "test"), id="one-space-is-optional"),
    # The rest of its rules.
    pytest.param(b"event: add\ndata: 1\n\ndata: 2\n\n", message("1", event="add") + message("2"), id="named"),
    pytest.param(b"event: a\nevent: b\ndata: 1\n\n", message("1", event="b"), id="last-name-counts"),
    pytest.param(b"event:\ndata: 1\n\n", message("1"), id="empty-name-is-message"),
    pytest.param(b"event: add\n\ndata: 1\n\n", message("1"), id="name-without-data-is-forgotten"),
    pytest.param(b"retry: 9\nfoo: bar\ndata: 1\n\n", message("1"), id="other-fields"),
    pytest.param(b"Data: 1\n\n data: 2\n\n", [], id="names-are-exact"),
    pytest.param(b"\xef\xbb\xbfdata: 1\n\n", message("1"), id="one-bom-at-the-start"),
    pytest.param(b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\n", [], id="a-second-bom-is-text"),
    pytest.param(b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n", message("1"), id="no-bom-later"),
    pytest.param(b"data: 1\r\rdata: 2\r\n\r\ndata: 3\n\n", message("1", "2", "3"), id="three-line-ends"),
    pytest.param(b"data: 1\r\ndata: 2\rdata: 3\n\r\n", message("1\n2\n3"), id="mixed-line-ends"),
    pytest.param(b"data: 1\n\r", message("1"), id="cr-at-the-very-end"),
    pytest.param(b"data: 1\r", [], id="no-blank-line"),
    pytest.param(b"data: 1\n", [], id="incomplete-event"),
    pytest.param(b"data: 1\n\ndata: 2", message("1"), id="incomplete-line"),
    pytest.param(b"", [], id="nothing"),
    pytest.param(b"\n\r\n\r\r\n", [], id="only-blank-lines"),
    pytest.param(
        'data: {"t":"a\u2028b\u2029c\u0085d\u000be\u000cf"}\n\n'.encode(),
        message('{"t":"a\u2028b\u2029c\u0085d\u000be\u000cf"}'),
        id="unicode-line-ends-are-text",
    ),
]


@pytest.mark.parametrize(("stream", "events"), STREAMS)
def test_sse_stream_gives_its_events_however_it_is_cut(stream: bytes, events: list[ServerSentEvent]) -> None:
    assert decode(stream) == events
    assert decode(stream, list(range(len(stream)))) == events
    for cut in range(len(stream) + 1):
        assert decode(stream, [cut]) == events


@given(
    st.lists(st.tuples(st.lists(st.text(), min_size=1), st.sampled_from(["\n", "\r", "\r\n"]))),
    st.lists(st.integers(min_value=0)),
)
def test_sse_reads_what_any_server_wrote(events: list[tuple[list[str], str]], cuts: list[int]) -> None:
    stream, expected = "", []
    for texts, end in events:
        lines = [line.replace("\r", "").replace("\n", "") for line in texts]
        stream += "".join(f"data: {line}{end}" for line in lines) + end
        expected += message("\n".join(lines))
    assert decode(stream.encode(), cuts) == expected


@given(st.recursive(st.none() | st.text() | st.integers(), st.lists), st.text(), st.lists(st.integers(0)))
def test_sse_reads_what_sse_wrote(value: object, comment: str, cuts: list[int]) -> None:
    comment = comment.replace("\r", " ").replace("\n", " ")
    stream = sse_comment(comment) + sse(to_json(value), "delta") + sse(to_json(value))
    first, second = decode(stream, cuts)
    assert (first.event, second.event) == ("delta", "message")
    assert json.loads(first.data) == json.loads(second.data) == value


def test_sse_wire_form() -> None:
    assert sse(b"{}") == b"data: {}\n\n"
    assert sse(b"{}", "ping") == b"event: ping\ndata: {}\n\n"
    assert sse_comment("wait") == b": wait\n\n"


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(b"data: 23456\n\n", id="line"),
        pytest.param(b": 345678901\n\n", id="comment"),
        pytest.param(b"data:123456", id="line-without-end"),
        pytest.param(b"data:1\ndata:2\ndata:3\ndata:4\ndata:5\ndata:6\n\n", id="event"),
        pytest.param(b"data\n" * 11 + b"\n", id="empty-lines-of-data"),
    ],
)
def test_sse_limit_does_not_depend_on_the_cut(stream: bytes) -> None:
    for cuts in ([], list(range(len(stream)))):
        with pytest.raises(FramingError, match="longer than 10 bytes"):
            feed(SseDecoder(limit=10), stream, cuts)


def test_sse_at_the_limit_is_accepted() -> None:
    stream = b"data:12345\r\n\r\ndata:1\ndata:2\ndata:3\ndata:4\ndata:5\n\n"
    for cuts in ([], list(range(len(stream)))):
        assert feed(SseDecoder(limit=10), stream, cuts) == message("12345", "1\n2\n3\n4\n5")


def test_sse_limit_is_per_event() -> None:
    decoder = SseDecoder(limit=10)
    assert len([event for _ in range(100) for event in decoder.feed(b"data:1234\n\n")]) == 100


# ---- newline-delimited JSON


@given(st.lists(st.recursive(st.none() | st.text() | st.integers(), st.lists)), st.lists(st.integers(0)))
def test_ndjson_reads_what_ndjson_wrote(values: list[object], cuts: list[int]) -> None:
    decoder = NdjsonDecoder()
    stream = b"".join(ndjson(value) for value in values)
    assert feed(decoder, stream, cuts) == values
    assert decoder.flush() == []


def test_ndjson_skips_blank_lines_and_ends_without_a_line_end() -> None:
    decoder = NdjsonDecoder()
    assert decoder.feed(b'\n {"a":1}\r\n\r\n\n[2') == [{"a": 1}]
    assert decoder.feed(b"]") == []
    assert decoder.flush() == [[2]]
    assert decoder.flush() == []


def test_ndjson_keeps_unicode_line_ends_in_text() -> None:
    assert NdjsonDecoder().feed('"a\u2028b\u0085c"\n'.encode()) == ["a\u2028b\u0085c"]


@pytest.mark.parametrize("line", [b"{", b"nonsense", b"\xff", b"[" * 100_000])
def test_ndjson_refuses_what_is_not_json(line: bytes) -> None:
    with pytest.raises(FramingError, match="a line is not JSON"):
        NdjsonDecoder().feed(line + b"\n")
    decoder = NdjsonDecoder()
    decoder.feed(line)
    with pytest.raises(FramingError, match="a line is not JSON"):
        decoder.flush()


@pytest.mark.parametrize("stream", [b'"234567890"\n', b'1\n"234567890"\n2', b'"2345678901'])
def test_ndjson_limit_does_not_depend_on_the_cut(stream: bytes) -> None:
    for cuts in ([], list(range(len(stream)))):
        with pytest.raises(FramingError, match="longer than 10 bytes"):
            feed(NdjsonDecoder(limit=10), stream, cuts)
    assert NdjsonDecoder(limit=10).feed(b'"23456789"\n') == ["23456789"]


# ---- JSON


def test_json_is_compact_utf8() -> None:
    assert to_json({"a": [1, "é\n"], "b": None}) == '{"a":[1,"é\\n"],"b":null}'.encode()


@given(st.text() | st.text(st.sampled_from('\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029é\\"')))
def test_json_is_one_line_for_every_reader(text: str) -> None:
    encoded = to_json({text: text})
    assert len(encoded.decode().splitlines()) == 1
    assert json.loads(encoded) == {text: text}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {"\udfff": 1}])
def test_json_refuses_what_is_not_legal(value: object) -> None:
    with pytest.raises(ValueError):
        to_json(value)


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))),
    st.lists(st.integers(0)),
)
def test_events_in_whole_chunks_are_read_as_those_that_are_cut(texts: list[str], cuts: list[int]) -> None:
    """A chunk for each, one for all, and any other way to cut them."""
    each = [sse(text.encode()) for text in texts]
    decoder = SseDecoder()
    one_by_one = [event for chunk in each for event in decoder.feed(chunk)]
    assert one_by_one == decode(b"".join(each)) == decode(b"".join(each), cuts) == message(*texts)


@pytest.mark.parametrize("held", [b"d", b"data: a\n", b"event: x\n", b": comment", b"data: a\r"])
def test_between_events(held: bytes) -> None:
    decoder = SseDecoder()
    assert decoder.between_events
    decoder.feed(b"event: x\ndata: a\n\n")
    assert decoder.between_events
    decoder.feed(held)
    assert [decoder.between_events] == [False]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_template_gives_what_writing_it_anew_gives(text: str) -> None:
    def line(value: str) -> bytes:
        return ndjson({"model": "m", "message": {"content": value}, "done": False})

    assert Template(line).fill(quoted(text)) == line(text)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_quoting(text: str) -> None:
    assert b'"%b"' % quoted(text) == to_json(text)
    assert unquoted(quoted(text)) == text
    foreign = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    assert requoted(foreign) == quoted(text)
    assert len(requoted(foreign).decode().splitlines()) <= 1
