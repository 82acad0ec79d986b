"""Versions of the engine side by side: the daemon's choice, the switch, the roll-back, the test before it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from daemon.engines.places import finder
from daemon.engines.smoke import SmokeFailed, smoke_test, smoke_test_of
from daemon.engines.versions import PROGRAM, Engines, Record
from tests.fakes.daemon import ENGINE, GUARD_SECONDS, ScriptedDaemon, eventually
from tests.integration.conftest import MakeDaemon

ROOT = Path(__file__).resolve().parents[2]
Completed = subprocess.CompletedProcess[str]


def install(engines: Engines, name: str, script: str) -> Path:
    """A version whose program is the shell script."""
    staged = engines.folder / "builds/staged"
    program = staged / PROGRAM
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    record = Record(
        name, int(name[1:]), "scripted", "cpu", (), False, "/src", ("cmake",), "2026-01-01T00:00:00+00:00"
    )
    return engines.add(staged, record).program


def scripted(daemon: ScriptedDaemon, version: int) -> str:
    """The scripted engine, which says that it is this version."""
    script = daemon.folder / "script.json"
    return (
        f'[ "$1" = --version ] && echo "version: {version} (scripted)" && exit\n'
        f'exec "{sys.executable}" "{ENGINE}" --script "{script}" "$@"'
    )


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> ScriptedDaemon:
    """Not started; it takes what is built, with the models x and y."""
    daemon = make_daemon(ENGINE="built")
    daemon.settings["ENGINES"] = daemon.folder / "engines"
    daemon.model("x", "y")
    return daemon


@pytest.fixture
def engines(daemon: ScriptedDaemon) -> Engines:
    """b1 and b2; b2 is the current one."""
    engines = Engines(daemon.folder / "engines")
    for number in (1, 2):
        install(engines, f"b{number}", scripted(daemon, number))
        engines.use(f"b{number}")
    return engines


def load(daemon: ScriptedDaemon, model: str) -> None:
    reply = httpx.post(
        f"{daemon.url}/api/generate",
        json={"model": model, "stream": False},
        timeout=GUARD_SECONDS,
        trust_env=False,
    )
    assert reply.status_code == 200, reply.text


def in_use(daemon: ScriptedDaemon) -> dict[str, str]:
    return {model["name"]: model["engine"] for model in daemon.loaded()}


def told(daemon: ScriptedDaemon) -> object:
    return httpx.get(f"{daemon.url}/api/version", timeout=GUARD_SECONDS, trust_env=False).json()["mgr"][
        "engine"
    ]


Mgr = Callable[..., Completed]


@pytest.fixture
def mgr(daemon: ScriptedDaemon) -> Mgr:
    """The command line with the daemon's settings."""

    def run(*arguments: str) -> Completed:
        host = {"MGR_HOST": daemon.url} if daemon.url else {"MGR_HOST": "127.0.0.1:1"}
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments],
            env={**daemon.environment(), **host, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GUARD_SECONDS,
            check=False,
        )

    return run


# ---- the daemon


async def test_a_switch_counts_from_the_next_load_on(daemon: ScriptedDaemon, engines: Engines) -> None:
    """Must hold: the daemon uses the built engine and says which one; what runs is left alone."""
    daemon.start()
    load(daemon, "x")
    assert in_use(daemon) == {"x:latest": "built b2 (scripted)"}
    engines.use("b1")
    load(daemon, "y")
    assert in_use(daemon) == {"x:latest": "built b2 (scripted)", "y:latest": "built b1 (scripted)"}
    assert told(daemon) == {"kind": "built", "version": "b1 (scripted)", "devices": None, "hint": ""}
    starts = daemon.events("start")
    assert len(starts) == 2
    engines.remove("b2")
    load(daemon, "x")  # still the process of the version that is gone
    assert len(daemon.events("start")) == 2


async def test_the_previous_version_is_used_when_the_current_one_cannot_be_read(
    daemon: ScriptedDaemon, engines: Engines
) -> None:
    """Must hold: automatic roll-back, and the log says so."""
    program = install(engines, "b3", "echo broken; exit 7")
    engines.use("b3")
    daemon.start()
    load(daemon, "x")
    assert in_use(daemon) == {"x:latest": "built b2 (scripted)"}
    said = f"the current build ({program}) cannot be used: its --help ended with status 7: broken; built"
    assert said in daemon.log_text()


async def test_the_first_load_need_not_look_for_the_engine(daemon: ScriptedDaemon, engines: Engines) -> None:
    daemon.start()
    await eventually(lambda: told(daemon) is not None, "the engine was found")
    assert told(daemon) == {"kind": "built", "version": "b2 (scripted)", "devices": None, "hint": ""}
    assert "the engine is built b2 (scripted)" in daemon.log_text()
    assert daemon.events("start") == []
    program = engines.get("b2").program
    program.write_text(program.read_text().replace("[", 'echo "$1" >> "$0.asked"; [', 1))
    await eventually(lambda: daemon.engines() == [], "nothing is asked any more")
    load(daemon, "x")
    again = Path(f"{program}.asked").read_text().split()
    assert again == ["--help", "--version", "--model"]  # another file, so it is asked again, once
    load(daemon, "y")
    assert Path(f"{program}.asked").read_text().split() == [*again, "--model"]


async def test_an_engine_that_hangs_when_it_is_asked_delays_neither_start_nor_stop(
    daemon: ScriptedDaemon, engines: Engines
) -> None:
    install(engines, "b3", 'echo "$$" > "$0.asked"; sleep 600')
    engines.use("b3")
    daemon.start()
    asked = Path(f"{engines.get('b3').program}.asked")
    await eventually(asked.exists, "it is being asked")
    assert told(daemon) is None
    assert daemon.engines() != []
    pid = int(asked.read_text())
    assert daemon.stop() == 0
    assert not psutil.pid_exists(pid)


async def test_without_any_engine_the_daemon_runs_and_says_so(daemon: ScriptedDaemon) -> None:
    daemon.start()
    await eventually(lambda: "no model can be loaded" in daemon.log_text(), "it is in the log")
    assert told(daemon) is None
    assert "Traceback" not in daemon.log_text()


# ---- the test before a switch


async def test_an_engine_that_works_passes(daemon: ScriptedDaemon, engines: Engines, tmp_path: Path) -> None:
    report = await smoke_test(engines.get("b1").program, tmp_path)
    assert (report.version, report.devices, report.tokens) == ("b1 (scripted)", None, 4)
    assert list(tmp_path.glob("*.gguf")) == []


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (
            {"say": ["illegal instruction: 7"], "exit_code": 3},
            r"ended with status 3 .*\n.*illegal instruction: 7",
        ),
        ({"die_after": 1}, "the engine stopped"),
        ({"refuse": {"code": 500, "message": "no kernel image", "type": "server_error"}}, "no kernel image"),
        ({"tokens": []}, "no token at all"),
    ],
)
async def test_an_engine_that_does_not_work_is_told_with_what_it_said(
    daemon: ScriptedDaemon, engines: Engines, tmp_path: Path, behaviour: dict[str, object], words: str
) -> None:
    daemon.script(behaviour)
    with pytest.raises(SmokeFailed, match=words):
        await smoke_test(engines.get("b1").program, tmp_path)
    assert list(tmp_path.glob("*.gguf")) == []


async def test_the_wheel_passes(tmp_path: Path) -> None:
    """The real engine loads the tiny model and answers."""
    engines = Engines(tmp_path / "engines")
    report = await smoke_test_of(finder("wheel", engines, tmp_path), tmp_path)
    assert report.tokens == 8
    assert report.version.startswith("20")
    assert report.devices is not None


# ---- the command line


def test_a_version_is_tested_and_then_used(mgr: Mgr, engines: Engines) -> None:
    done = mgr("engine", "use", "b1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert engines.chosen() == "b1"


def test_a_version_that_fails_its_test_is_not_used(mgr: Mgr, engines: Engines) -> None:
    """Must hold: the engine in use stays in use."""
    install(engines, "b3", 'echo "$0: its library is missing"; exit 127')
    done = mgr("engine", "use", "b3")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: the engine 'b3' did not pass its test, and nothing was changed: "
        "its --help ended with status 127: llama-server: its library is missing\n"
    )
    assert engines.chosen() == "b2"
    assert engines.previous() == engines.get("b1")


def test_the_wheel_can_be_chosen_and_a_setting_that_goes_before_is_told(mgr: Mgr, engines: Engines) -> None:
    done = mgr("engine", "use", "wheel")
    assert done.returncode == 0
    assert done.stderr == "the setting ENGINE is 'built', which goes before this choice; set it to auto\n"
    assert engines.chosen() == "wheel"


def test_the_list_and_the_info(mgr: Mgr, engines: Engines) -> None:
    (engines.folder / "half").mkdir()
    done = mgr("engine", "list")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:4] for line in lines[1:4]] == [
        ["b2", "current", "b2", "(scripted)"],
        ["b1", "previous", "b1", "(scripted)"],
        ["half", "broken", "-", "-"],
    ]
    assert done.stdout.splitlines()[-1] == (
        "The next load uses the current build, b2 (scripted): the setting ENGINE is 'built'."
    )
    listed = json.loads(mgr("engine", "list", "--json").stdout)
    assert [(it["name"], it["current"]) for it in listed["installed"]] == [("b2", True), ("b1", False)]
    info = json.loads(mgr("engine", "info", "b1", "--json").stdout)
    assert (info["name"], info["version"], info["devices"]) == ("b1", "b1 (scripted)", None)
    assert info["not taken"] == ["--ctx-checkpoints", "--load-mode", "--main-gpu"]
    assert mgr("engine", "info", "--flags").stdout.split() == info["flags"]
    assert "b2" in mgr("engine", "info").stdout.splitlines()[0]


def test_no_choice_can_be_chosen_and_what_builds_left_be_deleted(
    mgr: Mgr, daemon: ScriptedDaemon, engines: Engines
) -> None:
    daemon.settings["ENGINE"] = "auto"
    failed = engines.folder / "builds/failed/objects"
    failed.mkdir(parents=True)
    (failed / "x.o").write_bytes(b"x" * 3000)
    done = mgr("engine", "use", "auto")
    assert (done.returncode, done.stderr, engines.chosen()) == (0, "", "")
    told = mgr("engine", "list").stdout.splitlines()
    assert told[-1] == (
        "The next load uses the previous build, b2 (scripted): nothing that goes before it is there."
    )
    assert told[-3].startswith(
        "Builds that no engine here needs take 3 KB; `mgr engine remove builds` deletes"
    )
    assert mgr("engine", "remove", "builds").returncode == 0
    assert "Builds that" not in mgr("engine", "list").stdout


def test_a_setting_that_names_nothing_is_told_with_its_path(
    mgr: Mgr, daemon: ScriptedDaemon, engines: Engines
) -> None:
    daemon.settings["ENGINE"] = "/nope"
    why = "the setting ENGINE is '/nope', and the configured path is not there; correct it or set it to auto"
    assert mgr("engine", "info").stderr == f"Error: {why}\n"
    assert mgr("engine", "list").stdout.splitlines()[-1] == f"T{why[1:]}."
    assert why in mgr("doctor").stdout


def test_what_is_removed_and_what_is_not(mgr: Mgr, engines: Engines) -> None:
    refused = mgr("engine", "remove", "b2")
    assert (refused.returncode, refused.stderr.partition(";")[0]) == (1, "Error: the engine 'b2' is in use")
    assert mgr("engine", "remove", "b1").returncode == 0
    assert [it.name for it in engines.list()] == ["b2"]
    for name in ("../engines", "/etc", "b9"):
        wrong = mgr("engine", "remove", name)
        assert wrong.returncode == 1
        assert wrong.stderr.startswith("Error: ")
        assert "Traceback" not in wrong.stderr


# ---- the doctor


def test_the_doctor_without_a_daemon(mgr: Mgr, engines: Engines) -> None:
    done = mgr("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    told = {name: (state, text) for state, name, text in rows}
    assert told["daemon"][0] == "warn"
    assert told["engines"] == ("ok", f"2 built, in {engines.folder}")
    assert told["engine"] == (
        "ok",
        "the current build, b2 (scripted), is used: the setting ENGINE is 'built'",
    )
    assert told["store"][1].startswith("2 models in ")


async def test_the_doctor_with_a_daemon(mgr: Mgr, daemon: ScriptedDaemon, engines: Engines) -> None:
    daemon.start()
    load(daemon, "x")
    checks = {check["name"]: check for check in json.loads(mgr("doctor", "--json").stdout)["checks"]}
    assert checks["daemon"]["state"] == "ok"
    assert checks["daemon"]["told"].endswith("its engine: built b2 (scripted)")


def test_what_is_broken_is_an_error(mgr: Mgr, daemon: ScriptedDaemon) -> None:
    nothing = mgr("doctor")
    assert nothing.returncode == 1
    assert "no engine was found; `mgr engine build` builds one" in nothing.stdout
    daemon.settings["KEEP_ALIVE"] = "soon"
    wrong = mgr("doctor")
    assert wrong.returncode == 1
    assert "fail    settings    MGR_KEEP_ALIVE is 'soon'" in wrong.stdout
