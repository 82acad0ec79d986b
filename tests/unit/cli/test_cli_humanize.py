from datetime import UTC, datetime, timedelta

import pytest

from cli import humanize

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 KB"),
        (1_500, "1.5 KB"),
        (9_940_000, "9.9 MB"),
        (98_362_432, "98 MB"),
        (2_000_000_000, "2 GB"),
        (4_661_224_676, "4.7 GB"),
        (1_300_000_000_000, "1.3 TB"),
    ],
)
def test_size_is_decimal(count: int, text: str) -> None:
    assert humanize.size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (12, "12"),
        (22_000, "22K"),
        (134_515_008, "134.52M"),
        (7_000_000, "7M"),
        (8_000_000_000, "8B"),
        (8_030_261_248, "8.0B"),
    ],
)
def test_parameters(count: int, text: str) -> None:
    assert humanize.parameters(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "Less than a second"),
        (1, "1 second"),
        (59.9, "59 seconds"),
        (60, "About a minute"),
        (119, "About a minute"),
        (120, "2 minutes"),
        (3_600, "About an hour"),
        (7_200, "2 hours"),
        (47 * 3_600, "47 hours"),
        (48 * 3_600, "2 days"),
        (14 * 86_400, "2 weeks"),
        (59 * 86_400, "8 weeks"),
        (60 * 86_400, "2 months"),
        (729 * 86_400, "24 months"),
        (730 * 86_400, "2 years"),
    ],
)
def test_span(seconds: float, text: str) -> None:
    assert humanize.span(seconds) == text


def test_ago_reads_nanoseconds_and_any_zone() -> None:
    assert humanize.ago("2026-03-04T10:00:00.123456789Z", NOW) == "2 hours ago"
    assert humanize.ago("2026-03-04T13:58:00+02:00", NOW) == "2 minutes ago"


def test_ago_of_a_clock_that_is_ahead_and_of_no_timestamp() -> None:
    assert humanize.ago("2026-03-04T12:00:05Z", NOW) == "Less than a second ago"
    assert humanize.ago("yesterday", NOW) == "-"


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        ((NOW + timedelta(minutes=4, seconds=59)).isoformat(), "4 minutes from now"),
        ("2318-06-01T00:00:00Z", "Forever"),
        ((NOW - timedelta(seconds=1)).isoformat(), "Stopping..."),
        ("0001-01-01T00:00:00Z", "Never"),
        ("", "Never"),
    ],
)
def test_until(timestamp: str, text: str) -> None:
    assert humanize.until(timestamp, NOW) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (45_600_000, "45.6ms"),
        (999_990_000, "999.99ms"),
        (1_234_567_890, "1.23s"),
        (59_996_000_000, "60.00s"),
        (61_500_000_000, "1m1.5s"),
        (119_990_000_000, "1m59.9s"),
    ],
)
def test_duration(nanoseconds: int, text: str) -> None:
    assert humanize.duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("total", "on_gpu", "text"),
    [
        (100, 0, "100% CPU"),
        (100, 100, "100% GPU"),
        (100, 25, "75%/25% CPU/GPU"),
        (0, 0, "Unknown"),
        (100, 200, "Unknown"),
    ],
)
def test_processor(total: int, on_gpu: int, text: str) -> None:
    assert humanize.processor(total, on_gpu) == text
