import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.durations import parse_duration, parse_keep_alive


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("5m", 300),
        ("+5m", 300),
        ("-1m", -60),
        ("1h30m", 5400),
        ("1h1m1s1ms", 3661.001),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("5.s", 5),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("7us", 7e-6),
        ("7\u00b5s", 7e-6),
        ("7\u03bcs", 7e-6),
        ("7ns", 7e-9),
        ("1m1m", 120),
        (" 5m ", 300),
        ("876000h", 876_000 * 3600),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "5",
            "-5",
            "m",
            "5 m",
            "1h 30m",
            "5min",
            "5M",
            "1d",
            "--5m",
            "-+5m",
            "+-5m",
            "1e3s",
            "1,5s",
        ),
        *(".s", "s5", "0x5s", "inf", "nan", "\u221es", "\u0665m", "5m\x00", "5m5"),
        *("1" * 65, "0" * 65, "1s" * 50),
    ],
)
def test_what_is_not_a_duration_is_named(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert str(caught.value).startswith(f'"{text[:64]}" is not a duration')


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59))
def test_units_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@given(st.text())
def test_any_text_is_a_finite_duration_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert math.isfinite(parse_duration(text))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0),
        (0.0, 0),
        ("0", 0),
        ("0s", 0),
        (300, 300),
        (1.5, 1.5),
        ("5m", 300),
        (-1, math.inf),
        (-0.5, math.inf),
        ("-1s", math.inf),
        (math.inf, math.inf),
        (10**400, math.inf),
        (-(10**400), math.inf),
    ],
)
def test_keep_alive(value: object, seconds: float | None) -> None:
    assert parse_keep_alive(value) == seconds


@pytest.mark.parametrize("value", [True, False, [], {}, b"5m", math.nan, "5", "", "for ever"])
def test_wrong_keep_alive(value: object) -> None:
    with pytest.raises(ValueError):
        parse_keep_alive(value)
