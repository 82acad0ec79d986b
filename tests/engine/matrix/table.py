"""The matrix as a table for people: a block for each engine and language, a row for each feature, a column for each
API; a cell says how it went whole and streamed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")
_WIDTH = 15
_MARKS = {"passed": "ok", "failed": "FAIL", "error": "FAIL", "skipped": "skip"}


@dataclass(frozen=True)
class Place:
    """Where a result stands; `number` gives the order."""

    engine: str
    language: str
    feature: str
    api: str
    stream: bool
    number: int


def lines(results: Mapping[Place, str]) -> Iterator[str]:
    """`results` are pytest's words for outcomes."""
    results = dict(sorted(results.items(), key=lambda item: item[0].number))
    apis = _unique(place.api for place in results)
    for engine, language in _unique((place.engine, place.language) for place in results):
        yield ""
        yield f"{engine}, clients of {language}; each cell: whole streamed"
        yield "".join(f"{title:<{_WIDTH}}" for title in ("", *apis)).rstrip()
        of_block = {
            (place.feature, place.api, place.stream): _MARKS[outcome]
            for place, outcome in results.items()
            if (place.engine, place.language) == (engine, language)
        }
        for feature in _unique(feature for feature, _, _ in of_block):
            cells = (_cell(of_block, feature, api) for api in apis)
            yield "".join(f"{text:<{_WIDTH}}" for text in (feature, *cells)).rstrip()


def _cell(marks: Mapping[tuple[str, str, bool], str], feature: str, api: str) -> str:
    both = [marks.get((feature, api, stream), "-") for stream in (False, True)]
    return "" if both == ["-", "-"] else " ".join(both)


def _unique(values: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(values))
