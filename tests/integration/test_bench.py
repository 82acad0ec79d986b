"""`mgr bench` through a real daemon, with the scripted engine."""

import json
import subprocess
import sys
from pathlib import Path

from tests.fakes.daemon import GUARD_SECONDS, DaemonProcess, ScriptedDaemon
from tests.integration.conftest import MakeDaemon

ROOT = Path(__file__).parents[2]


def bench(daemon: DaemonProcess, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "bench", *arguments],
        env={**daemon.environment(), "MGR_HOST": daemon.url, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_table(daemon: ScriptedDaemon) -> None:
    """The scripted engine says that each prompt is 7 tokens in 1.5 ms and each answer 4 in 2.5 ms."""
    code, out, err = bench(daemon, "a", "--prompt", "7", "--concurrency", "1,2", "--tokens", "4")
    assert (code, err) == (0, "")
    header, *rows = [line.split("    ") for line in out.splitlines()]
    assert header[0] == "CONCURRENCY"
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [row[:4] for row in cells] == [
        ["1", "pp7", "7", "4666.67 ± 0.00"],
        ["1", "tg4 @ d7", "4", "1200.00 ± 0.00"],
        ["2", "pp7", "7", "4666.67 ± 0.00"],
        ["2", "tg4 @ d7", "4", "1200.00 ± 0.00"],
    ]


def test_json_and_what_the_engine_was_asked(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(NUM_PARALLEL=2)
    daemon.model("a")
    daemon.start()
    code, out, err = bench(
        daemon, "a", "--json", "--prompt", "7,9", "--concurrency", "3", "--tokens", "2", "--repeat", "2"
    )
    assert code == 0
    assert err == "of 3 requests at once, 2 are served and the others wait\n"
    told = json.loads(out)
    assert (told["name"], told["slots"], told["repeat"]) == ("a:latest", 2, 2)
    assert [(result["test"], result["concurrency"]) for result in told["results"]] == [
        ("pp7", 3),
        ("tg2 @ d7", 3),
        ("pp9", 3),
        ("tg2 @ d9", 3),
    ]
    assert [result["tokens"] for result in told["results"]] == [7, 2, 7, 2]
    assert all(len(result["samples_ts"]) == 2 for result in told["results"])
    assert all(result["total_avg_ts"] > 0 for result in told["results"])
    bodies = [event["body"] for event in daemon.events("request")]
    measured = [body for body in bodies if body["n_predict"] == 2]
    assert len(measured) == 2 * 3 * 2
    assert len({body["prompt"] for body in measured}) == len(measured)
    assert sorted({len(body["prompt"].split()) for body in measured}) == [7, 9]


def test_an_unknown_model_is_one_sentence(daemon: ScriptedDaemon) -> None:
    code, out, err = bench(daemon, "nobody")
    assert (code, out) == (1, "")
    assert err.startswith("Error: model 'nobody' not found")
    assert err.count("\n") == 1


def test_wrong_lists_are_wrong_usage(daemon: ScriptedDaemon) -> None:
    code, out, err = bench(daemon, "a", "--concurrency", "1,many")
    assert (code, out) == (2, "")
    assert err == "Error: --concurrency: '1,many' is not a list of numbers from 1 to 256; write it like 1,4\n"


def test_an_engine_that_dies_is_one_sentence(daemon: ScriptedDaemon) -> None:
    daemon.script({"die_after": 2, "hold_after": 9})
    code, out, err = bench(daemon, "a", "--prompt", "7", "--concurrency", "1")
    assert (code, out) == (1, "")
    assert "engine stopped" in err
    assert err.count("\n") == 1
