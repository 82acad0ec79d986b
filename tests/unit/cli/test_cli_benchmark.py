from dataclasses import replace

import pytest

from cli.benchmark import HEADERS, Answer, Figure, results

# 100 tokens read in 0.5 s and 11 written in 1 s, of which the first came with the prompt.
ANSWER = Answer(begin=10.0, first=10.6, end=11.6, prompt=100, reading=0.5, written=11, writing=1.0)
LATER = replace(ANSWER, begin=10.1, first=11.0, end=12.6, reading=1.5, written=21, writing=4.0)


def test_a_figure_is_a_mean_with_the_deviation_of_a_sample() -> None:
    figure = Figure([2.0, 4.0, 9.0])
    assert figure.mean == 5.0
    assert figure.spread == pytest.approx(3.6056, abs=1e-4)
    assert str(figure) == "5.00 ± 3.61"


def test_one_sample_has_no_spread() -> None:
    assert str(Figure([7.0])) == "7.00"


def test_one_request_alone() -> None:
    reading, writing = results(100, 11, [[ANSWER]])
    assert (reading.test, writing.test) == ("pp100", "tg11 @ d100")
    assert (reading.tokens, writing.tokens) == (100, 11)
    assert reading.each.samples == [200.0]
    assert reading.total.samples == pytest.approx([100 / 0.6])
    assert writing.each.samples == [10.0]
    assert writing.total.samples == pytest.approx([10.0])
    assert reading.first_token is not None
    assert reading.first_token.samples == pytest.approx([600.0])
    assert writing.first_token is None


def test_requests_at_once_are_one_sample() -> None:
    reading, writing = results(100, 16, [[ANSWER, LATER]])
    assert reading.concurrency == writing.concurrency == 2
    assert (reading.tokens, writing.tokens) == (100, 16)
    assert reading.each.samples == [100.0]  # 200 tokens in 2 s of two slots
    assert reading.total.samples == pytest.approx([200.0])  # from 10.0 to 11.0
    assert writing.each.samples == [6.0]  # 30 in 5 s
    assert writing.total.samples == pytest.approx([15.5])  # 31 from 10.6 to 12.6
    assert reading.first_token is not None
    assert reading.first_token.samples == pytest.approx([750.0])


def test_each_repeat_is_a_sample() -> None:
    reading, _ = results(100, 11, [[ANSWER], [replace(ANSWER, reading=0.25)]])
    assert reading.each.samples == [200.0, 400.0]


def test_an_answer_that_ended_at_once_counts_nothing_written() -> None:
    _, writing = results(100, 11, [[replace(ANSWER, written=0, writing=0.0, end=ANSWER.first)]])
    assert (writing.tokens, writing.each.samples, writing.total.samples) == (0, [0.0], [0.0])


def test_rows_stand_under_their_headers() -> None:
    reading, writing = results(128, 64, [[ANSWER]])
    assert dict(zip(HEADERS, reading.row(), strict=True)) == {
        "CONCURRENCY": "1",
        "TEST": "pp128",
        "TOKENS": "100",
        "TOKENS/S": "200.00",
        "IN TOTAL": "166.67",
        "FIRST TOKEN": "600.00 ms",
    }
    assert writing.row() == ("1", "tg64 @ d128", "11", "10.00", "10.00", "-")


def test_json_has_the_keys_of_llama_bench() -> None:
    reading, writing = results(128, 64, [[ANSWER], [replace(ANSWER, reading=0.25)]])
    told = reading.to_json()
    assert (told["n_prompt"], told["n_gen"], told["n_depth"]) == (128, 0, 0)
    assert (told["avg_ts"], told["samples_ts"]) == (300.0, [200.0, 400.0])
    assert told["stddev_ts"] == pytest.approx(141.42, abs=0.01)
    assert told["first_token_avg_ms"] == pytest.approx(600.0)
    told = writing.to_json()
    assert (told["n_prompt"], told["n_gen"], told["n_depth"]) == (0, 64, 128)
    assert told["total_avg_ts"] == pytest.approx(10.0)
    assert "first_token_avg_ms" not in told
