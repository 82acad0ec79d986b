"""`mgr bench`: how fast a model answers through the daemon."""

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from queue import SimpleQueue
from time import perf_counter
from typing import Annotated, TypeVar

import typer

from cli import autostart, benchmark, output
from cli.benchmark import Answer, Result
from cli.client import Client, Json
from cli.commands.stop import is_loaded
from cli.errors import CliError, WrongUsage

# Words that are one token each in most vocabularies, and do not make a model end its answer.
_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "body information back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
)
_TRIES = 4
_MOST_AT_ONCE = 256
_LONGEST = 1_000_000
_T = TypeVar("_T")


def bench(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    concurrency: Annotated[str, typer.Option(help="How many requests at once.")] = "1,4",
    prompt: Annotated[str, typer.Option(help="Tokens in the prompt.")] = "128,512",
    tokens: Annotated[int, typer.Option(help="Tokens to write.", min=2, max=_LONGEST)] = 64,
    repeat: Annotated[int, typer.Option(help="How often each is measured.", min=1, max=1000)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Measure how fast a model reads prompts and writes answers, as llama-bench names it."""
    crowds = numbers("--concurrency", concurrency, _MOST_AT_ONCE)
    lengths = numbers("--prompt", prompt, _LONGEST)
    client = autostart.connect_or_start()
    client.call("POST", "/api/generate", {"model": model, "prompt": "", "stream": False}, timeout=None)
    loaded = _loaded(client, model)
    for crowd in crowds:
        if crowd > int(loaded.get("slots") or crowd):
            output.announce(f"of {crowd} requests at once, {loaded['slots']} are served and the others wait")
    found = [
        result for length in lengths for result in _measure(client, model, length, tokens, crowds, repeat)
    ]
    found.sort(key=lambda result: result.concurrency)
    if as_json:
        shown = {key: loaded.get(key) for key in ("name", "digest", "engine", "context_length", "slots")}
        output.dump({**shown, "repeat": repeat, "results": [result.to_json() for result in found]})
    else:
        output.table(benchmark.HEADERS, [result.row() for result in found])


def numbers(option: str, text: str, most: int) -> list[int]:
    """The numbers of a list like "1,4". Raises WrongUsage."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(1 <= number <= most for number in found):
        raise WrongUsage(f"{option}: '{text}' is not a list of numbers from 1 to {most}; write it like 1,4")
    return found


def _loaded(client: Client, model: str) -> Json:
    """What the server tells of the model, which it has just loaded."""
    models = client.call("GET", "/api/ps").get("models") or []
    return next((entry for entry in models if is_loaded(model, [str(entry.get("name", ""))])), {})


def _measure(
    client: Client, model: str, length: int, tokens: int, crowds: Sequence[int], repeat: int
) -> list[Result]:
    """All that is measured with one length of the prompt; finding the number of words warms the model up."""
    words = fit(length, lambda count: _ask(client, model, text(count), 1).prompt)
    found: list[Result] = []
    for crowd in crowds:
        rounds = []
        for turn in range(1, repeat + 1):
            output.note(f"prompt of {length} tokens, {crowd} at once: {turn} of {repeat}")
            rounds.append(at_once(crowd, lambda: _ask(client, model, text(words), tokens)))
        found += benchmark.results(length, tokens, rounds)
    return found


def fit(wanted: int, count_tokens: Callable[[int], int]) -> int:
    """How many words make a prompt of `wanted` tokens, or nearly so. `count_tokens` says what a number of them gives;
    whatever the model puts around them is in it."""
    words = wanted
    for _ in range(_TRIES):
        counted = count_tokens(words)
        if counted == wanted:
            break
        fitting = words + round((wanted - counted) * words / max(counted, 1))
        words = min(max(1, fitting), wanted)  # a word is a token at least
    return words


def text(words: int) -> str:
    """A prompt that was not asked before, so that no cache has read it already."""
    return " ".join(random.choices(_WORDS.split(), k=words))  # noqa: S311  no secret


def _ask(client: Client, model: str, prompt: str, tokens: int) -> Answer:
    body = {"model": model, "prompt": prompt, "raw": True, "options": {"num_predict": tokens}}
    begin, first, last = perf_counter(), None, {}
    with closing(client.stream("/api/generate", body)) as lines:
        for last in lines:
            if first is None and last.get("response"):
                first = perf_counter()
    end = perf_counter()
    try:
        return Answer(
            begin=begin,
            first=end if first is None else first,
            end=end,
            prompt=int(last["prompt_eval_count"]),
            reading=last["prompt_eval_duration"] / 1e9,
            written=int(last["eval_count"]),
            writing=last["eval_duration"] / 1e9,
        )
    except (KeyError, TypeError, ValueError):
        raise CliError(f"the server on {client.address} tells no counts and times of its answers") from None


def at_once(count: int, work: Callable[[], _T]) -> list[_T]:
    """The results of so many calls at the same time. What one of them raises is raised at once.

    The threads are daemons: Ctrl-C ends the program, and with it their requests.
    """
    done: SimpleQueue[_T | Exception] = SimpleQueue()

    def run() -> None:
        try:
            done.put(work())
        except Exception as error:
            done.put(error)

    for _ in range(count):
        threading.Thread(target=run, daemon=True).start()
    results: list[_T] = []
    while len(results) < count:
        result = done.get()
        if isinstance(result, Exception):
            raise result
        results.append(result)
    return results
