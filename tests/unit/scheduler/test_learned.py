"""What is measured is remembered, and corrects the next estimate."""

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.scheduler.learned import MAX_KEYS, MAX_MEASUREMENTS, Learned, Measurement, corrected
from daemon.scheduler.memory import MIB, Need

_WEIGHTS = 92 * MIB
_TOKEN = 23_040  # bytes of SmolLM2's cache for each


def guessed(window: int, slots: int) -> Need:
    return Need(weights=_WEIGHTS, kv=_TOKEN * window * slots, fixed=31 * MIB)


def really(window: int, slots: int, fixed: float = 16 * MIB, token: float = 1.3 * _TOKEN) -> Measurement:
    return Measurement(window, slots, round(_WEIGHTS + fixed + token * window * slots))


def test_without_measurements_the_estimate_stands() -> None:
    assert corrected(guessed, 4096, 2, []) == guessed(4096, 2)


def test_one_measurement_moves_all_windows_alike() -> None:
    measured = [Measurement(512, 1, guessed(512, 1).total - 9 * MIB)]
    for window, slots in ((512, 1), (8192, 4)):
        need = corrected(guessed, window, slots, measured)
        assert need.correction == -9 * MIB
        assert need.total == guessed(window, slots).total - 9 * MIB
        assert need.kv == guessed(window, slots).kv


@pytest.mark.parametrize(("window", "slots"), [(1024, 1), (3000, 2), (6000, 4), (16_384, 4)])
def test_a_window_that_was_not_measured_is_met_once_others_were(window: int, slots: int) -> None:
    measured = [really(512, 1), really(2048, 2), really(8192, 1)]
    assert corrected(guessed, window, slots, measured).total == pytest.approx(
        really(window, slots).used, rel=0.05
    )


def test_two_close_measurements_do_not_decide_on_a_window_far_away() -> None:
    """3 MiB of noise between windows of 512 and 600 tokens, which is 36 KiB for each of them."""
    measured = [
        Measurement(512, 1, guessed(512, 1).total),
        Measurement(600, 1, guessed(600, 1).total + 3 * MIB),
    ]
    far = corrected(guessed, 65_536, 1, measured)
    assert far.total == pytest.approx(guessed(65_536, 1).total, rel=0.05)


def test_not_all_is_believed() -> None:
    total, weights = guessed(4096, 1).total, _WEIGHTS
    assert corrected(guessed, 4096, 1, [Measurement(4096, 1, 1)]).total == weights + (total - weights) // 4
    assert corrected(guessed, 4096, 1, [Measurement(4096, 1, 2**50)]).total == 4 * total


_sizes = st.builds(Measurement, st.integers(1, 2**20), st.integers(1, 8), st.integers(1, 2**50))


@given(st.lists(_sizes, max_size=MAX_MEASUREMENTS), st.integers(1, 2**20), st.integers(1, 8))
def test_a_correction_stays_plausible_whatever_was_measured(
    measured: list[Measurement], window: int, slots: int
) -> None:
    estimated = guessed(window, slots)
    need = corrected(guessed, window, slots, measured)
    assert estimated.weights < need.total <= 4 * estimated.total


def test_a_model_without_a_cache_is_only_moved() -> None:
    measured = [Measurement(512, 1, 5 * MIB), Measurement(4096, 1, 7 * MIB)]
    need = corrected(lambda window, slots: Need(fixed=4 * MIB), 2048, 1, measured)
    assert need.total == 6 * MIB


# ---- the file


def test_measurements_outlive_the_daemon(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    first = Learned(folder)
    assert first.measurements("a") == ()
    first.remember("a", Measurement(512, 1, 100))
    first.remember("b", Measurement(512, 1, 200))
    first.remember("a", Measurement(1024, 2, 300))
    again = Learned(folder)
    assert again.measurements("a") == (Measurement(512, 1, 100), Measurement(1024, 2, 300))
    assert again.measurements("b") == (Measurement(512, 1, 200),)
    assert [file.name for file in folder.iterdir()] == ["memory.json"]


def test_the_newest_of_the_same_settings_counts(tmp_path: Path) -> None:
    learned = Learned(tmp_path)
    for used in (1, 2, 3):
        learned.remember("a", Measurement(512, 1, used))
    assert learned.measurements("a") == (Measurement(512, 1, 3),)


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Hundreds of waits for a disk would take seconds.
    monkeypatch.setattr("daemon.scheduler.learned.write_durably", lambda path, data: path.write_bytes(data))
    learned = Learned(tmp_path)
    for window in range(1, MAX_MEASUREMENTS + 3):
        learned.remember("a", Measurement(window, 1, 1))
    assert [one.window for one in learned.measurements("a")] == [*range(3, MAX_MEASUREMENTS + 3)]
    for key in range(MAX_KEYS - 1):
        learned.remember(str(key), Measurement(1, 1, 1))
    learned.remember("a", Measurement(1, 1, 1))
    learned.remember("one more", Measurement(1, 1, 1))
    assert learned.measurements("0") == ()  # the longest unused
    assert learned.measurements("a")
    assert Learned(tmp_path).measurements("a") == learned.measurements("a")


_DAMAGED: list[Any] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"format": 2, "measured": {}}',
    b'{"format": 1}',
    b'{"format": 1, "measured": []}',
    b'{"format": 1, "measured": {"a": 3}}',
    b'{"format": 1, "measured": {"a": [[1, 2]]}}',
    b'{"format": 1, "measured": {"a": [[1, 2, 0]]}}',
    b'{"format": 1, "measured": {"a": [[1, 2, -3]]}}',
    b'{"format": 1, "measured": {"a": [[1, true, 3]]}}',
    b'{"format": 1, "measured": {"a": [[1, 2, 3.5]]}}',
    b'{"format": 1, "measured": {"a": [[1, 2, NaN]]}}',
    b'{"format": 1, "measured": {"a": [[1, 2, 1e999]]}}',
    b'{"format": 1, "measured": {"a": [[1, 2, 9223372036854775808]]}}',
    b'{"format": 1, "measured": {"a": [' + b"[1, 2, 3]," * MAX_MEASUREMENTS + b"[1, 2, 3]]}}",
    b" " * (MIB + 1),
]


@pytest.mark.parametrize("content", _DAMAGED, ids=lambda content: repr(content[:60]))
def test_a_damaged_file_is_forgotten_with_a_word(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "memory.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        learned = Learned(tmp_path)
    assert learned.measurements("a") == ()
    assert "damaged" in caplog.text
    learned.remember("a", Measurement(512, 1, 100))
    assert Learned(tmp_path).measurements("a") == (Measurement(512, 1, 100),)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b'{"format": 1, "measured": {"a": [[1, 1, 1]]}}')
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "memory.json").symlink_to(elsewhere)
    assert Learned(folder).measurements("a") == ()


def test_a_folder_that_cannot_be_written_costs_only_the_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    learned = Learned(tmp_path / "file")
    learned.remember("a", Measurement(512, 1, 100))
    assert learned.measurements("a") == (Measurement(512, 1, 100),)
    assert "cannot be remembered" in caplog.text
