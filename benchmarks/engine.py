"""The real engine through mgr and by hand: tokens/s, cold start, swap."""

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.daemons import Daemon
from benchmarks.figures import Bar, Row, ratio_row
from benchmarks.load import Ask, Streams, Where, first_text_ms
from benchmarks.options import Options
from benchmarks.pairs import pairs
from benchmarks.real import MODEL, OTHER, ByHand, Started, load, make_store, through_mgr, unload

GROUP = "engine"

_STREAMS = (1, 4, 16)
_BARRED = 4  # streams, and less
_ROUNDS = 4
_SLOTS = 16
_WINDOW = 512
_TOKENS = 256
_TEXT = "Write a very long story about the number"


async def measure(options: Options) -> list[Row]:
    """See each row. The models lie in the page cache, and are two files with the same weights."""
    with tempfile.TemporaryDirectory(prefix="mgr-b-") as name:
        folder = Path(name) / "mgr"
        make_store(folder, options)
        settings = {"engine": options.engine, "context_length": _WINDOW, "num_parallel": _SLOTS}
        with Daemon(folder, socket=folder / "mgr.sock", **settings) as daemon:
            rows = [await _tokens(daemon, count, options) for count in _STREAMS]
        with Daemon(folder, engine=options.engine, max_loaded_models=1) as daemon:
            return [*rows, await _cold(daemon, options), await _swap(daemon, options)]


async def _tokens(daemon: Daemon, count: int, options: Options) -> Row:
    """Tokens/s of greedy answers through mgr, over those of the very same engine process when it is asked over its
    own socket with the body that mgr sends. All answers have the same length; prompts are cached for both.

    mgr is asked over a Unix socket, too: over TCP a token costs its sender and its reader some 65 us more, whoever
    sends it.

    What mgr takes is a fiftieth, and one answer differs from the next by twice that, as other work on the machine comes
    and goes. So each result is the fastest of several answers, taken in turns with those of the other."""
    load(daemon, MODEL)
    engine = Started.by(daemon)
    rounds = 1 if options.quick or count > _BARRED else _ROUNDS
    tokens = 32 if options.quick else _TOKENS
    texts = [f"{_TEXT} {number}." for number in range(count)]
    mgr = [through_mgr(MODEL, text, tokens) for text in texts]
    direct = [engine.direct(text, tokens) for text in texts]
    await _seconds(engine.socket, direct)
    through, by_hand = await pairs(
        partial(_seconds, daemon.where, mgr),
        partial(_seconds, engine.socket, direct),
        options.count(7),
        options,
        f"seconds for {tokens} tokens of {count}",
        rounds=rounds,
    )
    name = f"tokens/s through mgr over direct, {count} stream{'s' if count > 1 else ''}"
    bar = Bar(0.98, least=True) if count <= _BARRED else None
    ours, theirs = ([tokens * count / seconds for seconds in each] for each in (through, by_hand))
    return ratio_row(GROUP, name, ours, theirs, "tokens/s", bar)


async def _seconds(where: Where, requests: Sequence[Ask]) -> float:
    """From the first request to the end of the last answer."""
    start = time.monotonic()
    async with Streams(where, requests) as streams:
        end = await streams.ended()
    if streams.chunks != len(requests):
        raise RuntimeError("an answer ended before its limit of tokens, so the speeds cannot be compared")
    return end - start


async def _cold(daemon: Daemon, options: Options) -> Row:
    """Time from the request for a model that is not loaded to its first token, over starting the same engine by
    hand with the same arguments, polling its health, and asking it."""
    load(daemon, MODEL)
    started = Started.by(daemon)

    async def mgr() -> float:
        unload(daemon, MODEL)
        return await first_text_ms(daemon.port, through_mgr(MODEL, _TEXT, 8))

    async def by_hand() -> float:
        unload(daemon, MODEL)
        return await _start_and_ask(started)

    through, alone = await pairs(mgr, by_hand, options.count(15), options, "ms of a cold start")
    return ratio_row(GROUP, "cold start to first token over by hand", through, alone, "ms", Bar(1.10))


async def _start_and_ask(started: Started) -> float:
    """Milliseconds until the first token of an engine started by hand."""
    start = time.monotonic()
    with ByHand(started) as engine:
        engine.wait()
        asked = time.monotonic()
        return (asked - start) * 1000 + await first_text_ms(engine.socket, engine.started.direct(_TEXT, 8))


async def _swap(daemon: Daemon, options: Options) -> Row:
    """Time from the request for one model while another is loaded, and only one may be, to its first token; over
    stopping an engine by hand, starting the other, and asking it."""
    load(daemon, MODEL)
    first = Started.by(daemon)
    unload(daemon, MODEL)
    load(daemon, OTHER)
    second = Started.by(daemon)
    unload(daemon, OTHER)

    async def mgr() -> float:
        load(daemon, MODEL)
        took = await first_text_ms(daemon.port, through_mgr(OTHER, _TEXT, 8))
        unload(daemon, OTHER)
        return took

    async def by_hand() -> float:
        with ByHand(first) as engine:
            engine.wait()
            start = time.monotonic()
            engine.stop()
            return (time.monotonic() - start) * 1000 + await _start_and_ask(second)

    through, alone = await pairs(mgr, by_hand, options.count(7), options, "ms of a swap")
    return ratio_row(GROUP, "swap to first token over by hand", through, alone, "ms")
