"""Each check of `mgr doctor`, by what it was given; the whole command is in tests/integration."""

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli.commands import doctor
from cli.commands.doctor import Check
from daemon.engines.gpus import Gpu
from daemon.engines.places import CURRENT_BUILD, decide
from daemon.engines.versions import Engines
from daemon.runner.engine import Engine, Finding, Place
from daemon.runner.launch import not_taken

EVERY_FLAG = frozenset(not_taken(frozenset()))
WHEEL = Finding(
    Place("wheel", "the xllamacpp wheel", ("/w",)), Engine("wheel", ("/w",), "2026.10", EVERY_FLAG, ())
)
BROKEN = Finding(Place("built", CURRENT_BUILD, ("/b",)), None, "its --help ended with status 1")
NO_PATH = Finding(Place("path", "llama-server on PATH", None), None, "not there")
CUDA = Finding(
    Place("path", "llama-server on PATH", ("/p",)),
    Engine("path", ("/p",), "b1", EVERY_FLAG - {"--metrics"}, ("CUDA0: H200",)),
)
H200 = Gpu("NVIDIA H200", "nvidia", "9.0")


@pytest.mark.parametrize(
    ("version", "check"),
    [
        (
            {"mgr": {"version": "0.1", "engine": {"kind": "wheel", "version": "2026.10"}}},
            Check("daemon", "ok", "mgr 0.1 answers on H; its engine: wheel 2026.10"),
        ),
        (
            {"mgr": {"version": "0.1", "engine": None}},
            Check("daemon", "ok", "mgr 0.1 answers on H; its engine: none yet"),
        ),
        (
            {"version": "0.12"},
            Check("daemon", "fail", "another server than mgr answers on H; stop it, or set MGR_HOST"),
        ),
    ],
)
def test_the_daemon(version: dict[str, Any], check: Check) -> None:
    assert doctor.daemon_check("H", version) == check


def test_the_places_where_something_is() -> None:
    checks = [*doctor.place_checks(decide("auto", "", [BROKEN, NO_PATH, WHEEL]))]
    assert checks == [
        Check("found", "warn", "the current build cannot be used: its --help ended with status 1"),
        Check("found", "ok", "the xllamacpp wheel: 2026.10"),
    ]
    [check] = doctor.place_checks(decide("auto", "", [CUDA]))
    assert check == Check("found", "ok", "llama-server on PATH: b1; it does not take --metrics")


def test_the_engine_that_is_used() -> None:
    check = doctor.engine_check(decide("auto", "", [NO_PATH, WHEEL]))
    assert check == Check(
        "engine", "ok", "the xllamacpp wheel, 2026.10, is used: nothing that goes before it is there"
    )
    missing = decide("path", "", [NO_PATH, WHEEL])
    assert doctor.engine_check(missing) == Check("engine", "fail", missing.why)


def test_the_setting_that_names_nothing() -> None:
    gone = Finding(Place("configured", "the configured path", None), None, "not there")
    found = decide("/nope", "", [gone, NO_PATH, WHEEL])
    [first, _] = doctor.place_checks(found)
    assert first == Check("found", "warn", "the configured path is not there")
    told = "the setting ENGINE is '/nope', and the configured path is not there; correct it or set it to auto"
    assert doctor.engine_check(found) == Check("engine", "fail", told)


def test_gpus() -> None:
    assert doctor.gpu_check([], decide("auto", "", [WHEEL])) == Check("gpu", "ok", "none was found")
    idle = doctor.gpu_check([H200], decide("auto", "", [WHEEL]))
    assert idle.state == "warn"
    assert "mgr engine build" in idle.told
    used = doctor.gpu_check([H200], decide("auto", "", [CUDA]))
    assert used == Check("gpu", "ok", "NVIDIA H200; the engine sees CUDA0: H200")
    assert doctor.gpu_check([H200], decide("path", "", [NO_PATH])) == Check("gpu", "ok", "NVIDIA H200")


# ---- device files


def test_device_files_are_those_of_gpus(tmp_path: Path) -> None:
    for name in (
        "nvidia0",
        "nvidia12",
        "nvidiactl",
        "nvidia-uvm",
        "dri/renderD128",
        "dri/card0",
        "kfd",
        "sda",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {path.removeprefix(f"{tmp_path}/"): reason for path, reason in doctor.openable(tmp_path).items()}
    assert found == dict.fromkeys(
        ["nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "dri/renderD128", "kfd"], ""
    )
    assert doctor.openable(tmp_path / "none") == {}


def test_a_device_that_is_refused_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a service's DeviceAllow does, whatever the file's mode."""
    (tmp_path / "nvidia0").touch(0o666)

    def refused(path: Path, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refused)
    devices = doctor.openable(tmp_path)
    assert devices == {str(tmp_path / "nvidia0"): "Operation not permitted"}
    told = f"this user cannot open {tmp_path}/nvidia0: Operation not permitted"
    assert doctor.device_check(devices) == Check("devices", "warn", told)


def test_devices_that_can_be_opened() -> None:
    check = doctor.device_check({"/dev/kfd": "", "/dev/dri/renderD128": ""})
    assert check == Check("devices", "ok", "can be opened: /dev/kfd, /dev/dri/renderD128")
    assert doctor.device_check({}) == Check("devices", "ok", "no GPU device files")


# ---- folders


class _Usage(NamedTuple):
    free: int


@pytest.mark.parametrize(("free", "state"), [(5 * 10**9, "ok"), (5 * 10**9 - 1, "warn")])
def test_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(free))
    models = tmp_path / "deep/models"
    empty = doctor.store_check(models)
    assert (empty.state, empty.told.partition(",")[0]) == (state, f"0 models in {models}")
    assert not models.exists()
    for name in ("library/a/latest", "library/a/1b", "library/b/latest"):
        (models / "manifests/host" / name).parent.mkdir(parents=True, exist_ok=True)
        (models / "manifests/host" / name).touch()
    assert doctor.store_check(models).told.startswith("3 models in")


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "models").touch()
    check = doctor.store_check(tmp_path / "models")
    assert check.state == "fail"
    assert check.told.startswith(f"{tmp_path}/models cannot be written by this user")


def test_the_folder_of_engines(tmp_path: Path) -> None:
    engines = Engines(tmp_path)
    assert doctor.folder_check(engines) == Check("engines", "ok", f"0 built, in {tmp_path}")
    (tmp_path / "b1").mkdir()
    broken = doctor.folder_check(engines)
    assert broken.state == "warn"
    assert "b1: its engine.json cannot be read: No such file or directory" in broken.told
