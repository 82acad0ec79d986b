import io
import sys
from typing import Any

import pytest

from cli.answer import Answer, timings
from cli.errors import ApiError, CliError


def lines(*pieces: str, done: bool = True) -> list[dict[str, Any]]:
    text = [{"message": {"content": piece}, "done": False} for piece in pieces]
    return [*text, {"message": {"content": ""}, "done": True, "eval_count": 2}] if done else text


@pytest.mark.parametrize(
    ("pieces", "written"),
    [
        (["Hi", " there"], "Hi there\n"),
        (["Hi\n", "\n"], "Hi\n"),
        (["a\n", "\nb", "\n\n"], "a\n\nb\n"),
        ([], "\n"),
    ],
)
def test_output_ends_with_exactly_one_line_feed(pieces: list[str], written: str) -> None:
    out: list[str] = []
    answer = Answer(out.append)
    answer.receive(lines(*pieces))
    assert "".join(out) == written
    assert answer.text == "".join(pieces)
    assert answer.final["eval_count"] == 2


def test_text_is_written_as_it_arrives() -> None:
    out: list[str] = []
    seen: list[str] = []

    def arriving() -> Any:
        for line in lines("a", "b\n", "c"):
            seen.append("".join(out))
            yield line

    Answer(out.append).receive(arriving())
    assert seen == ["", "a", "ab", "ab\nc"]


def test_an_answer_without_its_last_line_is_an_error_after_the_text() -> None:
    out: list[str] = []
    with pytest.raises(CliError, match="ended early"):
        Answer(out.append).receive(lines("half", done=False))
    assert "".join(out) == "half\n"


def test_a_refusal_before_any_text_writes_nothing() -> None:
    def refused() -> Any:
        yield from ()
        raise ApiError(404, "model 'x' not found")

    out: list[str] = []
    with pytest.raises(ApiError):
        Answer(out.append).receive(refused())
    assert out == []


def test_thoughts_are_shown_to_a_person_and_are_no_part_of_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = [{"message": {"thinking": "hm"}}, *lines("42")]
    for errors, shown in ((io.StringIO(), ""), (Terminal(), "Thinking...\nhm\n...done thinking.\n\n")):
        monkeypatch.setattr(sys, "stderr", errors)
        out: list[str] = []
        Answer(out.append).receive(stream)
        assert "".join(out) == "42\n"
        assert errors.getvalue() == shown


def test_timings_skip_what_the_server_left_out() -> None:
    text = timings(
        {
            "total_duration": 2_000_000_000,
            "eval_count": 10,
            "eval_duration": 500_000_000,
            "prompt_eval_count": 3,
        }
    )
    assert text.splitlines() == [
        "total duration:       2.00s",
        "prompt eval count:    3 token(s)",
        "eval count:           10 token(s)",
        "eval duration:        500ms",
        "eval rate:            20.00 tokens/s",
    ]
