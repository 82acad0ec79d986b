"""Thinking that an engine left in the content: every tag, every way to cut, and what is not a tag."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import FinishReason, Piece, TextDelta, ThinkingDelta
from daemon.shaping.thinking import TAGS, ThinkTags
from tests.fakes.readings import plain, read, read_text

CUTS = st.lists(st.integers(0, 200), max_size=30)


@pytest.mark.parametrize(("opener", "closer"), TAGS.items())
def test_each_pair_of_tags_is_known(opener: str, closer: str) -> None:
    answer = read_text(ThinkTags, f"\n {opener}\n I think.\n {closer}\n\nHello. ")
    assert (answer.thinking, answer.text) == ("I think.", "Hello. ")


@pytest.mark.parametrize(
    ("text", "thinking", "content"),
    [
        ("Hello <think>no</think>", "", "Hello <think>no</think>"),
        ("  \n Hello", "", "  \n Hello"),
        ("<think>a < b </thin </think>c", "a < b </thin", "c"),
        ("<think></think>Hello", "", "Hello"),
        ("<think>\n\n</think>\n\n", "", ""),
        ("<think>a</thinking></think>b", "a</thinking>", "b"),
        ("<thin", "", "<thin"),
        ("<table>", "", "<table>"),
        ("<think>never closed", "never closed", ""),
        ("<think>cut in the tag </thi", "cut in the tag </thi", ""),
        ("<think>a</think>b</think>", "a", "b</think>"),
        ("", "", ""),
    ],
)
@given(cuts=CUTS)
def test_the_split_is_the_same_for_any_chunking(
    text: str, thinking: str, content: str, cuts: list[int]
) -> None:
    answer = read_text(ThinkTags, text, cuts)
    assert (answer.thinking, answer.text) == (thinking, content)
    assert answer.done.reason == FinishReason.STOP


@pytest.mark.parametrize(
    ("text", "thinking", "content"),
    [
        ("I think.\n</think>\n\nHello", "I think.", "Hello"),
        ("<think>\nI think.</think>Hello", "I think.", "Hello"),
        ("I think.[/THINK]Hello", "I think.", "Hello"),
        ("still thinking", "still thinking", ""),
        ("<thi", "<thi", ""),
    ],
)
@given(cuts=CUTS)
def test_an_answer_that_starts_inside(text: str, thinking: str, content: str, cuts: list[int]) -> None:
    answer = read_text(lambda: ThinkTags(inside=True), text, cuts)
    assert (answer.thinking, answer.text) == (thinking, content)


@given(text=st.text(alphabet="<>/think[THINK]| \nab", max_size=60), cuts=CUTS, inside=st.booleans())
def test_no_chunking_makes_a_difference(text: str, cuts: list[int], inside: bool) -> None:
    assert plain(read_text(lambda: ThinkTags(inside), text, cuts)) == plain(
        read_text(lambda: ThinkTags(inside), text)
    )


def test_an_engine_that_splits_itself_is_left_alone() -> None:
    pieces: list[Piece] = [ThinkingDelta("I think."), TextDelta("<think>is a tag</think>")]
    answer = read(ThinkTags(inside=True), pieces)
    assert (answer.thinking, answer.text) == ("I think.", "<think>is a tag</think>")


def test_content_is_passed_on_at_once() -> None:
    reader = ThinkTags()
    assert list(reader.feed(TextDelta("Hel"))) == [TextDelta("Hel")]
    assert list(reader.feed(TextDelta("lo"))) == [TextDelta("lo")]


def test_logprobs_stay_with_the_content() -> None:
    entry = {"token": "Hi", "logprob": -0.5}
    answer = read(ThinkTags(), [TextDelta("<", ({"token": "<"},)), TextDelta("Hi", (entry,))])
    assert (answer.text, answer.logprobs) == ("<Hi", ({"token": "<"}, entry))
