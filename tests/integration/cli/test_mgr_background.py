"""The daemon that a command starts in the background."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.gguf_files import gguf
from tests.integration.cli.command import GUARD, MGR, Mgr, free_port, outcome


@pytest.fixture
def background(environment: dict[str, str], mgr: Mgr) -> Iterator[dict[str, str]]:
    """An address where nothing listens yet; what was started there is ended after the test."""
    environment["MGR_HOST"] = f"127.0.0.1:{free_port()}"
    yield environment
    mgr("stop", "--daemon")


def test_a_daemon_in_the_background_keeps_nothing_of_its_caller(
    background: dict[str, str], tmp_path: Path
) -> None:
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        [*MGR, "pull", "file:///missing.gguf"],
        env=background,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[write_end],
    ) as caller:
        os.close(write_end)
        out, err = caller.communicate(timeout=GUARD)  # ends only once nobody holds the pipes
    assert (caller.returncode, out) == (1, b"")
    first, second = err.decode().splitlines()
    assert first.startswith(f"starting mgr on {background['MGR_HOST']} in the background; its log is ")
    assert second.startswith("Error: ")
    assert os.read(read_end, 1) == b""
    os.close(read_end)
    log = Path(first.rpartition(" ")[2])
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == 0o700


def test_the_daemon_stays_until_it_is_stopped(background: dict[str, str], mgr: Mgr) -> None:
    mgr("pull", "file:///missing.gguf")
    assert outcome(mgr("list", "--json")) == (0, "[]\n", "")
    assert outcome(mgr("stop", "--daemon")) == (0, "", "")
    assert "is not running" in mgr("list").stderr.decode()


def test_a_name_that_another_model_has_is_answered_with_the_flags(
    background: dict[str, str], mgr: Mgr, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.gguf").write_bytes(gguf({"general.name": name}))
    assert outcome(mgr("pull", "one.gguf", "--name", "m"))[:2] == (0, "m:latest\n")
    code, out, err = outcome(mgr("pull", "two.gguf", "--name", "m"))
    assert (code, out) == (1, "")
    assert err.endswith("; replace it with --force, or use another name with --name NAME\n")
    assert outcome(mgr("pull", "two.gguf", "--name", "m", "--force"))[:2] == (0, "m:latest\n")


def test_a_daemon_that_does_not_start_says_why(background: dict[str, str], mgr: Mgr) -> None:
    code, out, err = outcome(mgr("run", "m", "hi", MGR_API_KEYS_FILE="/no/such/file"))
    assert (code, out) == (1, "")
    assert "Error: mgr did not start:\n" in err
    assert "/no/such/file" in err.partition("did not start")[2]


def test_nothing_is_started_for_an_address_of_the_network(mgr: Mgr) -> None:
    address = f"0.0.0.0:{free_port()}"
    sentence = f"Error: mgr is not running on {address}; start it with `mgr serve`\n"
    assert outcome(mgr("run", "m", "hi", MGR_HOST=address)) == (1, "", sentence)
