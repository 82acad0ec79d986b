import os
from pathlib import Path

import pytest

from cli import autostart
from daemon.settings import load

CODE = str(Path(autostart.__file__).parents[1])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def environment_of(**environ: str) -> dict[str, str]:
    return autostart.child_environment(environ, load(environ))


def test_paths_in_settings_become_absolute(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    environment = environment_of(
        MGR_CONFIG="config.toml", OLLAMA_MODELS="models", MGR_HOST="run/mgr.sock", MGR_ENGINE="./llama-server"
    )
    assert environment["MGR_CONFIG"] == str(tmp_path / "config.toml")
    assert environment["MGR_MODELS"] == str(tmp_path / "models")
    assert environment["MGR_HOST"] == str(tmp_path / "run/mgr.sock")
    assert environment["MGR_ENGINE"] == str(tmp_path / "llama-server")


def test_other_settings_are_passed_on_as_they_are() -> None:
    environment = environment_of(
        MGR_CONFIG=os.devnull,
        OLLAMA_HOST="localhost:1234",
        MGR_ENGINE="wheel",
        MGR_KEEP_ALIVE="1m",
    )
    assert environment["OLLAMA_HOST"] == "localhost:1234"
    assert environment["MGR_ENGINE"] == "wheel"
    assert environment["MGR_KEEP_ALIVE"] == "1m"
    assert "MGR_HOST" not in environment


def test_the_same_code_is_imported_from_another_directory(tmp_path: Path) -> None:
    config = os.devnull
    assert environment_of(MGR_CONFIG=config)["PYTHONPATH"] == CODE
    given = environment_of(MGR_CONFIG=config, PYTHONPATH=os.pathsep.join(["lib", CODE]))
    assert given["PYTHONPATH"] == os.pathsep.join([str(tmp_path / "lib"), CODE])
