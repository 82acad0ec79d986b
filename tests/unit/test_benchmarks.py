"""The pure parts of the benchmarks: what a row says, how chunks are counted, and the paced engine's bytes."""

import io
import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from benchmarks import paced, report
from benchmarks.figures import Bar, Row, difference_row, ratio_row
from benchmarks.load import Ask, MarkerCount, ask
from benchmarks.options import Options
from benchmarks.pairs import pairs

# Two chunks of llama.cpp b11549 as it wrote them, each in one piece.
RECORDED_TOKEN = (
    b'f1\r\ndata: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" you"}}],"created":1796003598,'
    b'"id":"chatcmpl-inVn3HVZuvLzS6zWNwzK5sZsKufqf0IJ","model":"smollm2:135m","system_fingerprint":"b0-unknown",'
    b'"object":"chat.completion.chunk"}\n\n\r\n'
)
RECORDED_PROGRESS = (
    b'145\r\ndata: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],'
    b'"created":1796003597,"id":"chatcmpl-inVn3HVZuvLzS6zWNwzK5sZsKufqf0IJ","model":"smollm2:135m",'
    b'"system_fingerprint":"b0-unknown","object":"chat.completion.chunk",'
    b'"prompt_progress":{"total":32,"cache":0,"processed":0,"time_ms":0}}\n\n\r\n'
)


def row(*samples: float, bar: Bar | None = None) -> Row:
    return Row("group", "a row", "x", samples, bar, "said")


@pytest.mark.parametrize(
    ("bar", "figure", "holds"),
    [
        (Bar(2.0), 2.0, True),
        (Bar(2.0), 2.01, False),
        (Bar(0.98, least=True), 0.98, True),
        (Bar(0.98, least=True), 0.97, False),
    ],
)
def test_a_bar_is_a_limit_on_one_side(bar: Bar, figure: float, holds: bool) -> None:
    assert bar.holds(figure) is holds


def test_the_median_is_what_counts() -> None:
    assert row(1.0, 9.0, 2.0, bar=Bar(2.0)).holds is True
    assert row(1.0, 9.0, 3.0, bar=Bar(2.0)).holds is False
    assert row(1.0).holds is None


def test_a_ratio_is_taken_of_each_pair() -> None:
    made = ratio_row("group", "a ratio", [10.0, 30.0, 50.0], [10.0, 10.0, 100.0], "ms", Bar(1.0))
    assert made.samples == (1.0, 3.0, 0.5)
    assert (made.value, made.unit, made.detail) == (1.0, "x", "30 over 10 ms")


def test_a_difference_is_taken_of_each_pair() -> None:
    made = difference_row("group", "a difference", [10.0, 30.0], [4.0, 10.0], "ms").with_detail("more")
    assert made.samples == (6.0, 20.0)
    assert (made.unit, made.detail) == ("ms", "20 less 7 ms; more")


def test_a_reference_for_each_measurement_is_needed() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio_row("group", "a ratio", [1.0, 2.0], [1.0], "ms")


def test_the_json_has_every_sample() -> None:
    made = report.as_json([row(1.0, 3.0, 2.0, bar=Bar(2.5))], ["nothing is here"])
    assert json.loads(json.dumps(made)) == made
    assert made["problems"] == ["nothing is here"]
    assert made["rows"] == [
        {
            "group": "group",
            "name": "a row",
            "unit": "x",
            "median": 2.0,
            "min": 1.0,
            "max": 3.0,
            "samples": [1.0, 3.0, 2.0],
            "bar": "<= 2.5",
            "holds": True,
            "detail": "said",
        }
    ]


def test_the_table_says_what_was_missed() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(report.table([row(1.0, 3.0, 2.0, bar=Bar(1.5)), row(4.0)]))
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines[1] == ["group"]
    assert lines[2] == ["a", "row", "2.00", "x", "1.00", "3.00", "<=", "1.5", "MISSED", "said"]
    assert lines[3] == ["a", "row", "4.00", "x", "4.00", "4.00", "said"]


@pytest.mark.parametrize("size", range(1, 12))
def test_a_marker_counts_once_however_it_is_cut(size: int) -> None:
    data = b'x"delta"yy"delta""delta"z"delt'
    count = MarkerCount(b'"delta"')
    for start in range(0, len(data), size):
        count.feed(data[start : start + size])
    assert count.total == 3


def test_an_ask_is_a_whole_request() -> None:
    head, _, body = Ask("/path", {"a": 1}, b"m", {"Connection": "close"}).encoded().partition(b"\r\n\r\n")
    assert json.loads(body) == {"a": 1}
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /path HTTP/1.1"
    assert {f"Content-Length: {len(body)}", "Connection: close", "Host: localhost"} < set(lines)


@pytest.mark.parametrize("dialect", ["openai", "ollama-chat", "ollama-generate", "anthropic"])
def test_every_dialect_carries_the_text(dialect: str) -> None:
    assert b"pace=20" in ask(dialect, "pace=20").encoded()


async def test_pairs_change_their_order() -> None:
    order: list[str] = []

    async def measured() -> float:
        order.append("measured")
        return float(len(order))

    async def reference() -> float:
        order.append("reference")
        return float(len(order))

    ours, theirs = await pairs(measured, reference, 2, Options(), "a pair")
    assert order == ["measured", "reference", "reference", "measured"]
    assert (ours, theirs) == ([1.0, 4.0], [2.0, 3.0])

    order.clear()
    ours, theirs = await pairs(measured, reference, 2, Options(), "a pair of three", rounds=3)
    assert order == ["measured", "reference", "reference", "measured"] * 3
    assert (ours, theirs) == ([1.0, 8.0], [2.0, 7.0])


@pytest.mark.parametrize(
    ("options", "count"), [(Options(), 7), (Options(quick=True), 2), (Options(runs=3, quick=True), 3)]
)
def test_how_many_samples_are_taken(options: Options, count: int) -> None:
    assert options.count(7) == count


@pytest.fixture
def recorded_time(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(paced, "ID", "chatcmpl-inVn3HVZuvLzS6zWNwzK5sZsKufqf0IJ")
    return lambda second: monkeypatch.setattr(paced, "time", SimpleNamespace(time=lambda: second + 0.5))


def test_the_paced_engine_writes_the_bytes_of_the_real_one(recorded_time: Any) -> None:
    recorded_time(1796003598)
    assert paced.chunk(paced.event(paced.delta({"content": " you"}), "smollm2:135m")) == RECORDED_TOKEN
    recorded_time(1796003597)
    assert next(paced.opening("smollm2:135m")) == RECORDED_PROGRESS


def test_the_chunks_of_the_tokens_follow_the_clock(recorded_time: Any) -> None:
    words = paced.Words("smollm2:135m")
    recorded_time(1796003598)
    first = words[0]
    recorded_time(1796003599)
    assert words[0] == first.replace(b"1796003598", b"1796003599") != first


def test_streams_of_one_pace_are_spread_evenly_over_its_period() -> None:
    """64 streams of 20 chunks a second: one every 0.8 ms on average, and none further than 2 ms from the next."""
    due = sorted(paced.first_due(1000.0, 20, answer) for answer in range(300, 364))
    assert due[0] >= 1000.0
    assert due[-1] <= 1000.05
    assert max(later - sooner for sooner, later in pairwise(due)) < 0.002
    assert paced.first_due(1000.0, 0, 7) == 1000.0


def test_the_request_sets_the_pace() -> None:
    assert paced.Script.read(b'{"content":"pace=100 tokens=20"}') == paced.Script(100, 20)
    assert paced.Script.read(b'{"content":"pace=0"}') == paced.Script(0, None)
