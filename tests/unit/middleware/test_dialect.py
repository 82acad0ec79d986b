"""The surface: the status of every kind of error, and reading JSON that a stranger wrote."""

import contextlib
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.errors import Busy, InvalidRequest, Kind, LoadFailed, MgrError
from daemon.middleware.dialect import MAX_DEPTH, STATUS, read_object, retry_headers


def test_every_kind_has_a_status() -> None:
    assert set(STATUS) == set(Kind)
    assert all(400 <= status <= 599 for status in STATUS.values())


def test_headers_about_trying_again() -> None:
    assert retry_headers(Busy("full", retry_after=7)) == {"Retry-After": "7"}
    assert retry_headers(LoadFailed("damaged", permanent=True)) == {"x-should-retry": "false"}
    assert retry_headers(LoadFailed("no memory")) == {}
    assert retry_headers(InvalidRequest("no")) == {}


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"{}", {}),
        (b' \r\n{"a": [1, 2.5, -0, true, null, "x"]}\t', {"a": [1, 2.5, 0, True, None, "x"]}),
        (b"\xef\xbb\xbf" + b'{"bom": 1}', {"bom": 1}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"a": "\\ud83d\\ude00 \\u0000 \\\\ud800"}', {"a": "\U0001f600 \0 \\ud800"}),
        ('{"a": "é\u2028"}'.encode(), {"a": "é\u2028"}),
        (b'{"a": 1e308}', {"a": 1e308}),
        (b'{"a": 9223372036854775808}', {"a": 2**63}),
        (b'{"a": "%s"}' % (b"[{" * 1000), {"a": "[{" * 1000}),
    ],
)
def test_read_object(body: bytes, value: dict[str, Any]) -> None:
    assert read_object(body) == value


INVALID = "the request body is not valid JSON: "


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "missing request body"),
        (b" \n\t ", "missing request body"),
        (b"[]", "the request body must be a JSON object"),
        (b"null", "the request body must be a JSON object"),
        (b'"{}"', "the request body must be a JSON object"),
        (b"1", "the request body must be a JSON object"),
        (b'{"a": NaN}', INVALID + "NaN is not a JSON number"),
        (b'{"a": [Infinity]}', INVALID + "Infinity is not a JSON number"),
        (b'{"a": -Infinity}', INVALID + "-Infinity is not a JSON number"),
        (b'{"a": 1e400}', INVALID + "a number is out of range"),
        (b'{"a": -1e400}', INVALID + "a number is out of range"),
        (b'{"a": %s}' % (b"9" * 10_000), INVALID + "a number has too many digits"),
        (b'{"a": "\\ud800"}', INVALID + "a string holds a lone surrogate"),
        (b'{"\\uDFFF": 1}', INVALID + "a string holds a lone surrogate"),
        (b'{"a": "\\ude00\\ud83d"}', INVALID + "a string holds a lone surrogate"),
        (b'{"a": 1} x', INVALID + "Extra data at line 1 column 10"),
        (b'{"a": 1}{}', INVALID + "Extra data at line 1 column 9"),
        (b"{'a': 1}", INVALID + "Expecting property name enclosed in double quotes at line 1 column 2"),
        (b"model=m&prompt=x", INVALID + "Expecting value at line 1 column 1"),
        (b'{"a": "x\ny"}', INVALID + "Invalid control character at line 1 column 9"),
        (b"\xef\xbb\xbf" * 2 + b"{}", INVALID),
        (b'{"a": "\xff"}', "the request body is not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "the request body is not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "the request body is not UTF-8"),
        (b"\x1f\x8b\x08\x00", "the request body is not UTF-8"),
    ],
)
def test_read_object_refuses(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_object(body)
    assert caught.value.message.startswith(message)


def test_utf16_without_a_mark_is_refused() -> None:
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le"):
        with pytest.raises(InvalidRequest):
            read_object('{"a": 1}'.encode(encoding))


def test_depth_is_counted_exactly() -> None:
    deepest = MAX_DEPTH - 1
    assert read_object(b'{"a":' + b"[" * deepest + b"]" * deepest + b"}")
    with pytest.raises(InvalidRequest, match="nested deeper than 100 levels"):
        read_object(b'{"a":' + b"[" * (deepest + 1) + b"]" * (deepest + 1) + b"}")
    # Many brackets that do not nest are no depth, and neither are those in strings.
    assert read_object(b'{"a":[' + b"[]," * 1000 + b'"\\"' + b"[" * 1000 + b'"]}')


DEEP = [
    pytest.param(b"[" * 100_000, id="arrays"),
    pytest.param(b'{"a":' * 100_000, id="objects"),
    pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="closed"),
    pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, id="closed-objects"),
    pytest.param(b'[{"a":' * 100_000, id="both"),
]


@pytest.mark.parametrize("body", DEEP)
def test_depth_cannot_reach_the_parser(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="nested deeper than 100 levels"):
        read_object(body)


def test_depth_cannot_end_a_thread_with_a_small_stack() -> None:
    failures: list[MgrError] = []

    def work() -> None:
        try:
            read_object(b"[" * 100_000)
        except MgrError as error:
            failures.append(error)

    size = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=work)
        thread.start()
    finally:
        threading.stack_size(size)
    thread.join(60)
    assert [error.message for error in failures] == ["the request body is nested deeper than 100 levels"]


def test_a_string_without_end_is_scanned_once() -> None:
    # Quadratic work here would take hours.
    with pytest.raises(InvalidRequest):
        read_object(b"[" * 200 + b'"' + b'\\"' * 2_000_000)
    with pytest.raises(InvalidRequest):
        read_object(b'"' + b'\\"[' * 1_000_000)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON_VALUES), st.booleans())
def test_read_object_agrees_with_json(value: dict[str, Any], ascii_only: bool) -> None:
    assert read_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary() | st.text(st.sampled_from('{}[]",:\\ud8 \n1e9.-tn')).map(str.encode))
def test_read_object_raises_nothing_else(body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        assert isinstance(read_object(body), dict)
