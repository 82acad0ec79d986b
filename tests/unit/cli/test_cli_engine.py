"""What `mgr engine` shows; what it does is in tests/integration."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli import advice, output
from cli.commands import engine
from daemon.engines.places import CURRENT_BUILD, decide
from daemon.engines.versions import PROGRAM, Engines, Record
from daemon.runner.engine import Engine, Finding, Place

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    """a is the previous version, b the current one, c is broken."""
    engines = Engines(tmp_path / "engines")
    for number, name in enumerate("abc"):
        staged = tmp_path / name
        (staged / PROGRAM).parent.mkdir(parents=True)
        (staged / PROGRAM).touch(0o755)
        built = f"2026-03-04T{10 - number:02}:00:00+00:00"
        engines.add(staged, Record(name, number, "abc", "cuda", ("90",), False, "/src", ("cmake",), built))
    engines.use("a")
    engines.use("b")
    (engines.folder / "c/engine.json").write_text("{")
    return engines


CURRENT = Finding(
    Place("built", CURRENT_BUILD, ("/b",)), Engine("built", ("/b",), "b1 (abc)", frozenset(), ("CUDA0: x",))
)
WHEEL = Finding(
    Place("wheel", "the xllamacpp wheel", ("/w",)), Engine("wheel", ("/w",), "2026.10", frozenset())
)
NO_PATH = Finding(Place("path", "llama-server on PATH", None), None, "not there")
NOTHING = decide("auto", "", [NO_PATH])


def test_a_row_for_each_version(engines: Engines) -> None:
    assert engine.rows(engines, NOTHING, NOW) == [
        ("a", "previous", "b0 (abc)", "cuda", "2 hours ago"),
        ("b", "current", "b1 (abc)", "cuda", "3 hours ago"),
        ("c", "broken", "-", "-", "its engine.json is wrong: it is not JSON"),
    ]


def test_the_version_is_the_one_that_the_engine_tells(engines: Engines) -> None:
    """Its record only says what it was built to be."""
    command = (str(engines.get("b").program.resolve()),)
    other = Finding(Place("built", CURRENT_BUILD, command), Engine("built", command, "b9 (x)", frozenset()))
    told = engine.rows(engines, decide("auto", "b", [other]), NOW)
    assert [row[2] for row in told] == ["b0 (abc)", "b9 (x)", "-"]


def test_a_broken_version_in_use_is_both(engines: Engines) -> None:
    (engines.folder / "b/engine.json").write_text("{")
    told = {row[0]: row[1] for row in engine.rows(engines, NOTHING, NOW)}
    assert told == {"a": "previous", "b": "current, broken", "c": "broken"}
    listed = engine.as_object(engines, NOTHING)["broken"]
    assert [(it["name"], it["current"]) for it in listed] == [("b", True), ("c", False)]


def test_a_row_for_each_other_place() -> None:
    assert engine.elsewhere(decide("auto", "b", [CURRENT, NO_PATH, WHEEL])) == [
        ("llama-server on PATH", "not there"),
        ("the xllamacpp wheel", "2026.10"),
    ]


def test_which_is_used_and_why() -> None:
    assert engine.used(decide("auto", "b", [CURRENT, WHEEL])) == (
        "The next load uses the current build, b1 (abc): it is the one chosen last."
    )
    assert engine.used(decide("wheel", "b", [CURRENT, WHEEL])) == (
        "The next load uses the xllamacpp wheel, 2026.10: the setting ENGINE is 'wheel'."
    )
    assert engine.used(NOTHING) == "No engine was found; `mgr engine build` builds one."
    assert engine.used(decide("path", "b", [CURRENT, NO_PATH])) == (
        "The setting ENGINE is 'path', and llama-server on PATH is not there; correct it or set it to auto."
    )


def test_the_list_for_programs(engines: Engines) -> None:
    told = engine.as_object(engines, decide("auto", "b", [CURRENT, NO_PATH]))
    assert [(it["name"], it["current"], it["previous"]) for it in told["installed"]] == [
        ("a", False, True),
        ("b", True, False),
    ]
    assert told["installed"][1]["folder"] == str(engines.folder / "b")
    assert [it["name"] for it in told["broken"]] == ["c"]
    assert told["places"] == [
        {"kind": "built", "place": CURRENT_BUILD, "version": "b1 (abc)", "reason": "", "used": True},
        {
            "kind": "path",
            "place": "llama-server on PATH",
            "version": None,
            "reason": "not there",
            "used": False,
        },
    ]
    assert told["why"] == "it is the one chosen last"
    assert told["leftover_bytes"] == 0


def test_the_facts_for_a_person_are_those_that_there_are(engines: Engines) -> None:
    facts = {
        "name": "a",
        "number": None,
        "commit": "",
        "architectures": (),
        "portable": False,
        "configure": ("cmake", "-S", "/src"),
        "devices": (),
        "flags": ["--host", "--model"],
        "not taken": [],
    }
    assert engine.in_short(facts) == [
        ("name", "a"),
        ("number", "unknown"),
        ("portable", "no"),
        ("configure", "cmake -S /src"),
        ("devices", "the CPU only"),
        ("flags", "2"),
    ]
    gpus = {**facts, "devices": ("CUDA0: x", "CUDA1: y")}
    assert ("devices", "CUDA0: x, CUDA1: y") in engine.in_short(gpus)
    assert ("devices", "unknown") in engine.in_short({**facts, "devices": None})


# ---- the hint


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ({"version": "0.12", "mgr": {"engine": {"hint": "a GPU idles"}}}, "a GPU idles"),
        ({"version": "0.12", "mgr": {"engine": {"hint": ""}}}, ""),
        ({"version": "0.12", "mgr": {"engine": None}}, ""),
        ({"version": "0.12", "mgr": {"engine": {"hint": 7}}}, ""),
        ({"version": "0.12", "mgr": "x"}, ""),
        ({"version": "0.12"}, ""),
    ],
)
def test_the_hint_of_a_daemon(version: dict[str, Any], told: str) -> None:
    assert advice.hint(version) == told


class _Client:
    def __init__(self) -> None:
        self.asked = 0

    def version(self) -> dict[str, Any]:
        self.asked += 1
        return {"mgr": {"engine": {"hint": "a GPU idles"}}}


@pytest.mark.parametrize(("person", "written"), [(True, "Note: a GPU idles.\n"), (False, "")])
def test_a_hint_is_for_a_person(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], person: bool, written: str
) -> None:
    monkeypatch.setattr(output, "progress_wanted", lambda: person)
    client = _Client()
    advice.advise(client)  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", written)
    assert client.asked == person
