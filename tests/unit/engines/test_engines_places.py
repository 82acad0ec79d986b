"""Which engine is used, and why."""

import os
import shutil
from pathlib import Path

import pytest

from daemon.engines.places import (
    CURRENT_BUILD,
    PREVIOUS_BUILD,
    decide,
    describe,
    finder,
    finder_of,
    found,
    overruled,
)
from daemon.engines.versions import PROGRAM, Engines, Record
from daemon.errors import NotFound
from daemon.runner.engine import Engine, EngineFinder, Finding, Place


def finding(kind: str, shown: str, state: str) -> Finding:
    """`state` is "" for an engine, "not there", or what is wrong with it."""
    command = None if state == "not there" else (f"/{kind}",)
    engine = Engine(kind, (f"/{kind}",), "b1", frozenset()) if state == "" else None
    return Finding(Place(kind, shown, command), engine, state)


def survey_of(
    current: str = "not there", previous: str = "not there", path: str = "not there", wheel: str = ""
) -> list[Finding]:
    return [
        finding("built", CURRENT_BUILD, current),
        finding("built", PREVIOUS_BUILD, previous),
        finding("path", "llama-server on PATH", path),
        finding("wheel", "the xllamacpp wheel", wheel),
    ]


FIRST = "nothing that goes before it is there"
LAST = "it is the one chosen last"


@pytest.mark.parametrize(
    ("choice", "chosen", "findings", "used", "why"),
    [
        ("auto", "", survey_of(), "the xllamacpp wheel", FIRST),
        ("auto", "", survey_of(path=""), "llama-server on PATH", FIRST),
        (
            "auto",
            "b2",
            survey_of(current="", path=""),
            CURRENT_BUILD,
            LAST,
        ),
        ("auto", "b2", survey_of("bad", ""), PREVIOUS_BUILD, "the current build cannot be used: bad"),
        (
            "auto",
            "b2",
            survey_of("bad", "worse"),
            "the xllamacpp wheel",
            "the current build cannot be used: bad",
        ),
        (
            "auto",
            "wheel",
            survey_of()[::-1],
            "the xllamacpp wheel",
            LAST,
        ),
        ("wheel", "b2", survey_of(current=""), "the xllamacpp wheel", "the setting ENGINE is 'wheel'"),
        (
            "path",
            "b2",
            survey_of(current=""),
            None,
            "the setting ENGINE is 'path', and llama-server on PATH is not there; correct it or set it to auto",
        ),
        ("built", "", survey_of(), None, "no engine was found; `mgr engine build` builds one"),
        (
            "auto",
            "",
            survey_of(wheel="not there"),
            None,
            "no engine was found; `mgr engine build` builds one",
        ),
        (
            "built",
            "",
            survey_of("bad", "worse"),
            None,
            (
                "the current build cannot be used: bad; the previous build cannot be used: worse; "
                "`mgr engine build` builds one"
            ),
        ),
        (
            "/opt/x",
            "b2",
            [finding("configured", "the configured path", ""), *survey_of(current="")],
            "the configured path",
            "the setting ENGINE is '/opt/x'",
        ),
        (
            "/opt/x",
            "",
            [finding("configured", "the configured path", "not there"), *survey_of()],
            None,
            "the setting ENGINE is '/opt/x', and the configured path is not there; correct it or set it to auto",
        ),
        (
            "/opt/x",
            "",
            [finding("configured", "the configured path", "bad"), *survey_of()],
            None,
            (
                "the setting ENGINE is '/opt/x', and the configured path cannot be used: bad; "
                "correct it or set it to auto"
            ),
        ),
    ],
)
def test_the_engine_that_is_used(
    choice: str, chosen: str, findings: list[Finding], used: str | None, why: str
) -> None:
    survey = decide(choice, chosen, findings)
    assert (survey.used and survey.used.place.shown, survey.why) == (used, why)
    assert survey.findings == findings


# ---- the folder of versions


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    """With the versions a and b; a is used and then b."""
    engines = Engines(tmp_path / "engines")
    for name in ("a", "b"):
        staged = tmp_path / name
        (staged / PROGRAM).parent.mkdir(parents=True)
        shutil.copy("/bin/true", staged / PROGRAM)
        engines.add(
            staged, Record(name, 7, "abc", "cuda", ("90",), False, "/src", ("cmake", "-S"), "2026-01-01")
        )
        engines.use(name)
    return engines


def programs(engines: Engines, choice: str = "auto") -> list[str]:
    places = finder(choice, engines, engines.folder, search_path="").places()
    return [place.command[-1] for place in places if place.command and place.kind == "built"]


def test_the_current_version_is_tried_then_the_previous_one(engines: Engines) -> None:
    folder = engines.folder.resolve()
    assert programs(engines)[:2] == [str(folder / name / PROGRAM) for name in ("b", "a")]


def test_a_switch_counts_in_a_finder_that_is_running(engines: Engines) -> None:
    running = finder("auto", engines, engines.folder, search_path="")
    engines.use("wheel")
    assert running.places()[0].kind == "wheel"
    engines.use("a")
    assert running.places()[0].command == (str(engines.folder.resolve() / "a" / PROGRAM),)


def test_the_engine_of_a_name_is_that_one_alone(engines: Engines) -> None:
    [place] = finder_of("a", engines, engines.folder).places()
    assert (place.kind, place.shown) == ("built", "the engine 'a'")
    assert place.command == (str(engines.folder.resolve() / "a" / PROGRAM),)
    [place] = finder_of("wheel", engines, engines.folder).places()
    assert place.kind == "wheel"
    with pytest.raises(NotFound):
        finder_of("c", engines, engines.folder)


async def test_the_engine_that_is_missing_is_told_as_it_was_named(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(self: EngineFinder, place: Place) -> Finding:
        return Finding(place, None, "bad" if place.command else "not there")

    monkeypatch.setattr(EngineFinder, "_look", asked)
    with pytest.raises(NotFound, match=r"^the engine 'a' cannot be used: bad$"):
        await found("a", "auto", engines, engines.folder)
    with pytest.raises(
        NotFound, match=r"^the setting ENGINE is '/nope', and the configured path is not there; "
    ):
        await found(None, "/nope", engines, engines.folder)


def test_path_is_this_processs_own_where_none_is_given(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama-server").touch(0o755)
    monkeypatch.setenv("PATH", f"/no{os.pathsep}{tmp_path}")
    [place] = finder("path", engines, engines.folder).places()
    assert place.command == (str(tmp_path / "llama-server"),)


def test_what_is_known_of_a_built_engine(engines: Engines) -> None:
    program = str(engines.get("a").program.resolve())
    engine = Engine("built", (program,), "b7 (abc)", frozenset({"--model", "--host"}), ("CUDA0: x",))
    told = describe(engine, engines)
    assert told["name"] == "a"
    assert (told["commit"], told["backend"], told["architectures"]) == ("abc", "cuda", ("90",))
    assert (told["program"], told["devices"], told["flags"]) == (
        program,
        ("CUDA0: x",),
        ["--host", "--model"],
    )
    assert "--ctx-size" in told["not taken"]
    assert "--model" not in told["not taken"]


def test_what_is_known_of_an_engine_from_elsewhere(engines: Engines) -> None:
    told = describe(Engine("wheel", ("/python", "/embedded.py"), "2026", frozenset(), None), engines)
    assert (told["name"], told["version"], told["devices"]) == ("wheel", "2026", None)
    assert "backend" not in told


@pytest.mark.parametrize(
    ("setting", "name", "told"),
    [
        ("auto", "b", False),
        ("built", "b", False),
        ("wheel", "wheel", False),
        ("auto", "auto", False),
        ("built", "auto", True),
        ("wheel", "b", True),
        ("built", "path", True),
        ("/opt/x", "b", True),
    ],
)
def test_a_setting_that_leaves_no_choice_is_told(setting: str, name: str, told: bool) -> None:
    remark = overruled(setting, name)
    assert bool(remark) is told
    assert not told or remark.startswith(f"the setting ENGINE is {setting!r}, which goes before this choice")
