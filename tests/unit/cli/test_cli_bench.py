import threading

import pytest

from cli.commands.bench import at_once, fit, numbers, text
from cli.errors import CliError, WrongUsage


def test_a_list_of_numbers() -> None:
    assert numbers("--prompt", "128, 512", 1000) == [128, 512]


@pytest.mark.parametrize("wrong", ["", "0", "1,0", "1,,4", "-1", "x", "1.5", "1001"])
def test_what_is_no_list_of_numbers(wrong: str) -> None:
    with pytest.raises(WrongUsage, match=f"^--prompt: '{wrong}' is not a list of numbers from 1 to 1000"):
        numbers("--prompt", wrong, 1000)


@pytest.mark.parametrize(
    ("around", "each", "wanted", "words"),
    [(0, 1, 512, 512), (3, 1, 512, 509), (1, 2, 129, 64), (20, 1, 4, 1)],
)
def test_words_are_fitted_to_tokens(around: int, each: int, wanted: int, words: int) -> None:
    assert fit(wanted, lambda count: around + each * count) == words


def test_fitting_ends_where_it_cannot_succeed() -> None:
    asked: list[int] = []

    def always_seven(words: int) -> int:
        asked.append(words)
        return 7

    assert fit(128, always_seven) == 128
    assert asked == [128] * 4


def test_a_prompt_is_never_the_same() -> None:
    assert len(text(50).split()) == 50
    assert text(50) != text(50)


def test_calls_at_once_wait_for_each_other() -> None:
    meeting = threading.Barrier(3, timeout=60)
    assert sorted(at_once(3, meeting.wait)) == [0, 1, 2]


def test_the_error_of_one_call_is_raised_and_waits_for_no_other() -> None:
    hung, turns = threading.Event(), iter([1, 2])

    def work() -> None:
        if next(turns) == 1:
            hung.wait(60)
        raise CliError("no")

    with pytest.raises(CliError, match="no"):
        at_once(2, work)
    assert not hung.is_set()
    hung.set()
