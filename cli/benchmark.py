"""What `mgr bench` makes of its measurements; pure.

The names and the figures are those of llama-bench: pp512 reads a prompt of 512 tokens, tg128 @ d512 writes 128 tokens
after it. A figure is the mean over the repeats, its spread the standard deviation of a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

HEADERS = ("CONCURRENCY", "TEST", "TOKENS", "TOKENS/S", "IN TOTAL", "FIRST TOKEN")


@dataclass(frozen=True, slots=True)
class Answer:
    """One request. Times are seconds: `begin`, `first` and `end` on the client's clock, the others as the engine
    measured them, `reading` for the prompt and `writing` from the first token to the last."""

    begin: float
    first: float
    end: float
    prompt: int
    reading: float
    written: int
    writing: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One value for each repeat."""

    samples: Sequence[float]

    @property
    def mean(self) -> float:
        return fmean(self.samples)

    @property
    def spread(self) -> float:
        return stdev(self.samples) if len(self.samples) > 1 else 0.0

    def __str__(self) -> str:
        spread = f" ± {self.spread:.2f}" if len(self.samples) > 1 else ""  # of one there is none
        return f"{self.mean:.2f}{spread}"

    def to_json(self, prefix: str, unit: str) -> dict[str, Any]:
        return {
            f"{prefix}avg_{unit}": self.mean,
            f"{prefix}stddev_{unit}": self.spread,
            f"{prefix}samples_{unit}": list(self.samples),
        }


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table. `n_prompt` tokens are read, or `n_gen` written after `n_depth`; `tokens` is how many it
    were by the server's count, a mean. `each` are the tokens/s of one request, `total` of all at once; `first_token`
    is in milliseconds, and None where tokens are written."""

    concurrency: int
    n_prompt: int
    n_gen: int
    n_depth: int
    tokens: float
    each: Figure
    total: Figure
    first_token: Figure | None = None

    @property
    def test(self) -> str:
        return f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen} @ d{self.n_depth}"

    def row(self) -> tuple[str, ...]:
        """The cells under HEADERS."""
        first = "-" if self.first_token is None else f"{self.first_token} ms"
        return (
            str(self.concurrency),
            self.test,
            f"{self.tokens:.4g}",
            str(self.each),
            str(self.total),
            first,
        )

    def to_json(self) -> dict[str, Any]:
        """With llama-bench's keys; what it does not measure has a prefix."""
        first = {} if self.first_token is None else self.first_token.to_json("first_token_", "ms")
        return {
            "test": self.test,
            "concurrency": self.concurrency,
            "n_prompt": self.n_prompt,
            "n_gen": self.n_gen,
            "n_depth": self.n_depth,
            "tokens": self.tokens,
            **self.each.to_json("", "ts"),
            **self.total.to_json("total_", "ts"),
            **first,
        }


def results(prompt: int, tokens: int, rounds: Sequence[Sequence[Answer]]) -> tuple[Result, Result]:
    """How fast prompts of `prompt` tokens were read, and how fast `tokens` were written after them.

    A round is what was sent at the same time; all are of the same size.
    """
    answers = [answer for one in rounds for answer in one]
    reading = Result(
        concurrency=len(rounds[0]),
        n_prompt=prompt,
        n_gen=0,
        n_depth=0,
        tokens=fmean(answer.prompt for answer in answers),
        each=Figure([reading_speed(one) for one in rounds]),
        total=Figure([total_reading_speed(one) for one in rounds]),
        first_token=Figure([first_token(one) * 1e3 for one in rounds]),
    )
    writing = Result(
        concurrency=len(rounds[0]),
        n_prompt=0,
        n_gen=tokens,
        n_depth=prompt,
        tokens=fmean(answer.written for answer in answers),
        each=Figure([writing_speed(one) for one in rounds]),
        total=Figure([total_writing_speed(one) for one in rounds]),
    )
    return reading, writing


def reading_speed(answers: Sequence[Answer]) -> float:
    """Prompt tokens/s of one request, by the engine's clock."""
    return _ratio(sum(a.prompt for a in answers), sum(a.reading for a in answers))


def total_reading_speed(answers: Sequence[Answer]) -> float:
    """Prompt tokens/s of all requests together, by the client's clock, until the last of them has its first token."""
    return _ratio(
        sum(a.prompt for a in answers), max(a.first for a in answers) - min(a.begin for a in answers)
    )


def writing_speed(answers: Sequence[Answer]) -> float:
    """Generated tokens/s of one request, by the engine's clock. The first token comes from reading the prompt."""
    return _ratio(sum(max(a.written - 1, 0) for a in answers), sum(a.writing for a in answers))


def total_writing_speed(answers: Sequence[Answer]) -> float:
    """Generated tokens/s of all requests together, by the client's clock, from the first token of the first of them to
    the end of the last."""
    return _ratio(
        sum(a.written for a in answers) - 1, max(a.end for a in answers) - min(a.first for a in answers)
    )


def first_token(answers: Sequence[Answer]) -> float:
    """Seconds from the request to its first token, by the client's clock."""
    return fmean(a.first - a.begin for a in answers)


def _ratio(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
