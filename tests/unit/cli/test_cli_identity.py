import os

import psutil
import pytest

from cli import identity
from cli.client import Client, Json
from cli.errors import CliError
from daemon.settings import Address


class Telling(Client):
    def __init__(self, told: object) -> None:
        super().__init__(Address())
        self._told = told

    def version(self) -> Json:
        return {"version": "0.12.0", "mgr": self._told}


@pytest.fixture
def told() -> Json:
    """What a daemon that is this test's parent process would say."""
    parent = psutil.Process(os.getppid())
    return {"pid": parent.pid, "started": parent.create_time(), "boot_id": identity.boot_id()}


def test_the_process_whose_facts_agree(told: Json) -> None:
    assert identity.daemon_process(Telling(told)).pid == os.getppid()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"started": 1.0}, "another program"),
        ({"pid": 2**22 - 1}, "another program"),
        ({"pid": 0}, "does not say which process"),
        ({"pid": -1}, "does not say which process"),
        ({"pid": True}, "does not say which process"),
        ({"pid": "7"}, "does not say which process"),
        ({"started": None}, "does not say which process"),
        ({"started": float("nan")}, "another program"),
    ],
)
def test_other_processes_are_refused(told: Json, change: Json, sentence: str) -> None:
    with pytest.raises(CliError, match=sentence):
        identity.daemon_process(Telling({**told, **change}))


def test_another_machine_is_refused(told: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "boot_id", lambda: "boot-of-this-machine")
    with pytest.raises(CliError, match="another machine"):
        identity.daemon_process(Telling({**told, "boot_id": "boot-of-another"}))


def test_a_system_without_boot_ids_goes_by_process_and_start(
    told: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "boot_id", lambda: None)
    assert identity.daemon_process(Telling({**told, "boot_id": None})).pid == os.getppid()


def test_another_server_is_refused() -> None:
    with pytest.raises(CliError, match="is not mgr"):
        identity.daemon_process(Telling(None))
