import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.engines.versions import BUILD_LOCK, PROGRAM, Engines, Installed, Record
from daemon.errors import Conflict, InvalidRequest, MgrError, NotFound, StorageFailed

Attempt = Callable[[], object]

RECORD = Record(
    name="b2-cpu",
    number=2,
    commit="0c1e570",
    backend="cuda",
    architectures=("86", "90"),
    portable=True,
    source="/src/llama.cpp",
    configure=("cmake", "-S", "/src/llama.cpp"),
    built="2026-03-04T12:00:00+00:00",
)


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    return Engines(tmp_path / "engines")


def staged(engines: Engines, text: str = "#!/bin/sh\n") -> Path:
    folder = engines.folder / "builds/key/staged"
    program = folder / PROGRAM
    program.parent.mkdir(parents=True)
    program.write_text(text)
    program.chmod(0o755)
    return folder


def add(engines: Engines, name: str, **changes: Any) -> Installed:
    return engines.add(staged(engines), replace(RECORD, name=name, **changes))


def names(engines: Engines) -> list[str]:
    return [entry.name for entry in engines.list()]


def state(engines: Engines) -> tuple[str | None, str | None]:
    current, previous = engines.current(), engines.previous()
    return current.name if current else None, previous.name if previous else None


def reason(engines: Engines, name: str) -> str:
    [broken] = engines.broken()
    assert broken.name == name
    return broken.reason


# ---- what there is


def test_a_folder_that_is_not_there_is_empty(engines: Engines) -> None:
    assert (names(engines), engines.broken(), engines.chosen(), state(engines)) == ([], [], "", (None, None))
    assert not engines.folder.exists()


def test_what_was_added_is_there_as_it_was(engines: Engines) -> None:
    added = add(engines, "b2-cuda")
    assert engines.list() == [added]
    assert engines.get("b2-cuda") == added
    assert added.record == replace(RECORD, name="b2-cuda")
    assert added.program == engines.folder / "b2-cuda/bin/llama-server"
    assert os.access(added.program, os.X_OK)
    assert not (engines.folder / "builds/key/staged").exists()
    assert state(engines) == (None, None)


def test_the_newest_build_is_listed_first(engines: Engines) -> None:
    add(engines, "a", built="2026-01-01T00:00:00+00:00")
    add(engines, "b", built="2026-03-01T00:00:00+00:00")
    add(engines, "c", built="2026-02-01T00:00:00+00:00")
    assert names(engines) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("number", "commit", "version"), [(7, "abc", "b7 (abc)"), (7, "", "b7"), (None, "abc", "unknown (abc)")]
)
def test_the_version_of_a_record(number: int | None, commit: str, version: str) -> None:
    assert replace(RECORD, number=number, commit=commit).version == version


def test_a_folder_that_was_renamed_goes_by_its_new_name(engines: Engines) -> None:
    add(engines, "a")
    (engines.folder / "a").rename(engines.folder / "mine")
    assert [entry.record.name for entry in engines.list()] == ["mine"]


def test_one_of_the_same_name_is_replaced(engines: Engines) -> None:
    add(engines, "a")
    engines.use("a")
    engines.add(staged(engines, "#!/bin/new\n"), replace(RECORD, name="a", commit="new"))
    assert engines.get("a").program.read_text() == "#!/bin/new\n"
    assert engines.get("a").record.commit == "new"
    assert state(engines) == ("a", None)
    assert {path.name for path in engines.folder.iterdir()} == {"a", "builds", "current", ".lock"}


def test_what_holds_no_program_is_not_added(engines: Engines) -> None:
    folder = staged(engines)
    (folder / PROGRAM).chmod(0o644)
    with pytest.raises(InvalidRequest, match="holds no program bin/llama-server"):
        engines.add(folder, RECORD)
    assert names(engines) == []


def test_an_installation_that_fails_leaves_the_old_one(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = add(engines, "a")
    folder, rename = staged(engines), Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path == folder:
            raise OSError(18, "Invalid cross-device link")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(StorageFailed, match=r"cannot install engines in .*: Invalid cross-device link"):
        engines.add(folder, replace(RECORD, name="a", commit="new"))
    assert engines.list() == [old]


# ---- names


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../x", "a/b", "/etc", "-x", ".hidden", "a b", "a\n", "x" * 81, "b\u00fc",
        "current", "previous", "builds", "wheel", "path", "auto", "built",
    ],
)  # fmt: skip
def test_no_name_leads_out_of_the_folder_or_has_a_meaning(engines: Engines, name: str) -> None:
    attempts: list[Attempt] = [lambda: engines.get(name), lambda: add(engines, name)]
    if name not in ("wheel", "path", "builds"):
        attempts.append(lambda: engines.remove(name))
    for attempt in attempts:
        with pytest.raises(InvalidRequest, match="cannot be the name of an engine"):
            attempt()


def test_an_unknown_name_is_told_with_those_that_there_are(engines: Engines) -> None:
    with pytest.raises(NotFound, match="there is no engine 'x'; there are: none is installed"):
        engines.use("x")
    add(engines, "a")
    for attempt in (engines.use, engines.get, engines.remove):
        with pytest.raises(NotFound, match="there is no engine 'x'; there are: a"):
            attempt("x")


@pytest.mark.parametrize("target", ["../a", "/tmp", "builds", "current", ".", "a/../a"])
def test_a_link_that_leads_elsewhere_names_nothing(engines: Engines, target: str) -> None:
    add(engines, "a")
    (engines.folder / "current").symlink_to(target)
    assert (engines.chosen(), engines.current()) == ("", None)


# ---- which one is used


def test_what_was_used_becomes_the_previous_one(engines: Engines) -> None:
    add(engines, "a")
    add(engines, "b")
    states = []
    for name in ("a", "b", "b", "a", "wheel", "b"):
        engines.use(name)
        states.append((engines.chosen(), *state(engines)))
    assert states == [
        ("a", "a", None),
        ("b", "b", "a"),
        ("b", "b", "a"),
        ("a", "a", "b"),
        ("wheel", None, "a"),
        ("b", "b", "a"),
    ]


def test_no_choice_is_a_choice_too(engines: Engines) -> None:
    """Then the build that was used last is tried first, as it is where another one was chosen."""
    engines.use("auto")
    add(engines, "a")
    engines.use("a")
    engines.use("auto")
    assert (engines.chosen(), *state(engines)) == ("", None, "a")
    engines.use("wheel")
    engines.use("auto")
    assert (engines.chosen(), *state(engines)) == ("", None, "a")
    engines.remove("a")
    assert names(engines) == []


def test_a_broken_version_in_use_can_be_given_up_and_removed(engines: Engines) -> None:
    add(engines, "a")
    engines.use("a")
    (engines.folder / "a/engine.json").write_text("{")
    with pytest.raises(Conflict, match="or none with `mgr engine use auto`"):
        engines.remove("a")
    engines.use("auto")
    engines.remove("a")
    assert (engines.chosen(), engines.broken()) == ("", [])


def test_what_is_broken_does_not_become_the_previous_one(engines: Engines) -> None:
    for name in ("good", "bad", "new"):
        add(engines, name)
    engines.use("good")
    engines.use("bad")
    (engines.folder / "bad/engine.json").unlink()
    engines.use("new")
    assert state(engines) == ("new", "good")
    engines.use("good")
    assert state(engines) == ("good", "new")


def test_the_links_are_relative_so_that_the_folder_can_move(engines: Engines, tmp_path: Path) -> None:
    add(engines, "a")
    add(engines, "b")
    engines.use("a")
    engines.use("b")
    moved = Engines(engines.folder.rename(tmp_path / "moved"))
    assert state(moved) == ("b", "a")
    assert [path.resolve() for path in moved.programs()] == [
        tmp_path.resolve() / "moved" / name / PROGRAM for name in ("b", "a")
    ]


def test_a_switch_is_one_replacement(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no moment is there no current version."""
    add(engines, "a")
    add(engines, "b")
    engines.use("a")
    seen = []
    replacing = Path.replace

    def replaced(path: Path, target: Path) -> Path:
        seen.append(engines.chosen())
        result = replacing(path, target)
        seen.append(engines.chosen())
        return result

    monkeypatch.setattr(Path, "replace", replaced)
    engines.use("b")
    assert seen == ["a", "a", "a", "b"]


def test_a_version_that_is_not_whole_cannot_be_used(engines: Engines) -> None:
    add(engines, "a")
    (engines.folder / "a" / PROGRAM).unlink()
    with pytest.raises(NotFound, match="the engine 'a' cannot be used: it has no program bin/llama-server"):
        engines.use("a")
    assert engines.chosen() == ""


# ---- removal


def test_a_removed_version_is_gone_and_no_longer_the_previous_one(engines: Engines) -> None:
    add(engines, "a")
    add(engines, "b")
    engines.use("a")
    engines.use("b")
    engines.remove("a")
    assert names(engines) == ["b"]
    assert {path.name for path in engines.folder.iterdir()} == {"b", "builds", "current", ".lock"}


def test_the_one_in_use_is_not_removed(engines: Engines) -> None:
    add(engines, "a")
    engines.use("a")
    with pytest.raises(Conflict, match="the engine 'a' is in use; choose another one first"):
        engines.remove("a")
    engines.use("wheel")
    engines.remove("a")
    assert names(engines) == []


def test_a_broken_version_can_be_removed(engines: Engines) -> None:
    add(engines, "a")
    (engines.folder / "a/engine.json").write_text("{")
    engines.remove("a")
    assert (names(engines), engines.broken()) == ([], [])


@pytest.mark.parametrize(("name", "words"), [("wheel", "pip uninstall xllamacpp"), ("path", "as it was")])
def test_an_engine_from_elsewhere_is_not_removed_here(engines: Engines, name: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        engines.remove(name)
    assert not engines.folder.exists()


def test_the_folder_it_was_compiled_in_goes_with_the_last_that_needs_it(engines: Engines) -> None:
    builds = engines.folder / "builds"
    shared, own = builds / "shared", builds / "own"
    for folder in (shared, own):
        (folder / "objects").mkdir(parents=True)
    outside = builds / ".." / ".." / "outside"
    outside.mkdir()
    line = ("cmake", "-B", str(shared), str(own), str(builds), f"{builds}/..", str(outside))
    add(engines, "a", configure=line)
    add(engines, "b", configure=("cmake", "-B", str(shared)))
    engines.remove("a")
    assert (shared.exists(), own.exists(), outside.exists()) == (True, False, True)
    engines.remove("b")
    assert (shared.exists(), builds.exists(), outside.exists()) == (False, True, True)


@pytest.mark.parametrize("removed", ["old", "builds"])
def test_what_no_version_needs_is_deleted_unless_it_is_being_built(engines: Engines, removed: str) -> None:
    """Builds that failed, were interrupted, or whose record cannot be read any more."""
    needed, failed, running = (engines.folder / "builds" / name for name in ("needed", "failed", "running"))
    for folder in (needed, failed, running):
        (folder / BUILD_LOCK).parent.mkdir(parents=True)
        (folder / BUILD_LOCK).touch()
        (folder / "objects").write_bytes(b"x" * 1000)
    add(engines, "new", configure=("cmake", "-B", str(needed)))
    add(engines, "old", configure=("cmake",))
    assert engines.leftover_bytes() == 2000
    with (running / BUILD_LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        engines.remove(removed)
    assert (needed.exists(), failed.exists(), running.exists()) == (True, False, True)
    assert engines.leftover_bytes() == 1000
    assert names(engines) == (["new"] if removed == "old" else ["old", "new"])


def test_a_removal_that_was_interrupted_is_no_version_and_is_finished_later(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(engines, "a")
    add(engines, "b")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        engines.remove("a")
    left = [path.name for path in engines.folder.iterdir() if path.name.startswith(".a-")]
    assert len(left) == 1
    assert (names(engines), engines.broken()) == (["b"], [])
    engines.remove("b")
    assert {path.name for path in engines.folder.iterdir()} == {"builds", ".lock"}


@pytest.mark.parametrize("change", ["add", "use", "remove"])
def test_a_replacement_that_was_killed_loses_no_version(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Between its two renames, the version in use is only at a hidden name."""
    add(engines, "other")
    old = add(engines, "a")
    engines.use("a")

    class Killed(BaseException):
        pass

    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if target == old.folder:
            raise Killed
        return rename(path, target)

    new = staged(engines)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(Killed):
            engines.add(new, replace(RECORD, name="a", commit="new"))
    shutil.rmtree(engines.folder / "builds/key")
    assert engines.current() is None
    if change == "add":
        add(engines, "more")
    elif change == "use":
        engines.use("wheel")
    else:
        engines.remove("other")
    assert engines.get("a") == old
    assert [path.name for path in engines.folder.iterdir() if path.name.startswith(".a")] == []


@pytest.mark.parametrize("change", ["add", "use", "remove"])
def test_one_process_at_a_time_changes_the_folder(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    add(engines, "a")
    add(engines, "b")
    changes: dict[str, Attempt] = {
        "add": lambda: add(engines, "a"),
        "use": lambda: engines.use("b"),
        "remove": lambda: engines.remove("a"),
    }
    held: list[bool] = []
    rename, symlink = Path.rename, Path.symlink_to

    def note() -> None:
        held.append(True)
        with (engines.folder / ".lock").open() as other, contextlib.suppress(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.append(False)

    def renamed(path: Path, target: Path) -> Path:
        note()
        return rename(path, target)

    def linked(path: Path, target: str) -> None:
        note()
        symlink(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(Path, "symlink_to", linked)
    changes[change]()
    assert held
    assert all(held)


def test_only_what_was_moved_aside_is_swept(engines: Engines) -> None:
    (engines.folder / ".keep").mkdir(parents=True)
    add(engines, "a")
    engines.remove("a")
    assert (engines.folder / ".keep").exists()


# ---- what is broken


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "its engine.json is wrong: it is not JSON"),
        ("\udcff", "its engine.json is wrong: it is not JSON"),
        ("[]", "its engine.json is wrong: it is not an object"),
        ("{}", "its engine.json is wrong: 'name' is missing or of a wrong kind"),
    ],
)
def test_a_record_that_is_none(engines: Engines, text: str, words: str) -> None:
    add(engines, "a")
    (engines.folder / "a/engine.json").write_text(text, "utf-8", "surrogateescape")
    assert reason(engines, "a") == words
    assert names(engines) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("number", "7"),
        ("number", True),
        ("portable", 1),
        ("architectures", "86"),
        ("configure", [1]),
        ("commit", None),
    ],
)
def test_a_record_with_a_wrong_value(engines: Engines, key: str, value: object) -> None:
    path = add(engines, "a").folder / "engine.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert reason(engines, "a") == f"its engine.json is wrong: {key!r} is missing or of a wrong kind"


def test_a_record_of_a_later_mgr_may_say_more(engines: Engines) -> None:
    path = add(engines, "a").folder / "engine.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "compiler": "gcc"}))
    assert names(engines) == ["a"]


def test_what_else_lies_in_the_folder_is_no_version(engines: Engines) -> None:
    add(engines, "a")
    (engines.folder / "notes.txt").write_text("x")
    (engines.folder / "link").symlink_to("a")
    (engines.folder / "ber lin").mkdir()
    (engines.folder / "empty").mkdir()
    assert names(engines) == ["a"]
    assert reason(engines, "empty") == "its engine.json cannot be read: No such file or directory"


def test_a_folder_that_is_a_file(engines: Engines) -> None:
    engines.folder.write_text("")
    for attempt in (engines.list, engines.broken):
        with pytest.raises(StorageFailed, match=r"cannot list engines in .*: Not a directory"):
            attempt()
    with pytest.raises(MgrError):
        engines.use("wheel")
