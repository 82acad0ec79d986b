import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.errors import Misconfigured
from daemon.runner.endpoint import MAX_SOCKET_PATH_BYTES, Endpoint, RunDirectory


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder with a short name: paths of sockets are bounded."""
    with tempfile.TemporaryDirectory(prefix="e-") as folder:
        yield Path(folder)


@pytest.fixture
def temporary(base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    return base


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_endpoints_are_fresh_and_private(base: Path) -> None:
    directory = RunDirectory.open(base / "run")
    endpoints = [directory.endpoint() for _ in range(50)]
    assert len({endpoint.socket for endpoint in endpoints}) == 50
    assert len({endpoint.key for endpoint in endpoints}) == 50
    assert all(len(endpoint.key) >= 43 for endpoint in endpoints)  # 256 bits
    assert {endpoint.socket.parent for endpoint in endpoints} == {base / "run"}
    assert not any(endpoint.socket.exists() for endpoint in endpoints)
    assert endpoints[0].key not in repr(endpoints[0])


def test_an_endpoint_removes_its_socket_file(base: Path) -> None:
    endpoint = Endpoint(base / "x.sock", "key")
    endpoint.socket.touch()
    endpoint.remove()
    assert not endpoint.socket.exists()
    endpoint.remove()


def test_a_folder_is_made_with_its_parents(base: Path) -> None:
    umask = os.umask(0)
    try:
        directory = RunDirectory.open(base / "a" / "b")
    finally:
        os.umask(umask)
    assert mode(directory.path) == 0o700
    directory.close()
    assert directory.path.is_dir()


def test_a_folder_of_ours_is_used_again(base: Path) -> None:
    (base / "run").mkdir(0o700)
    (base / "run" / "file").touch()
    RunDirectory.open(base / "run").close()
    assert (base / "run" / "file").exists()


@pytest.mark.parametrize("wrong", [0o755, 0o750, 0o710, 0o701, 0o777])
def test_a_folder_that_others_can_enter_is_refused(base: Path, wrong: int) -> None:
    (base / "run").mkdir()
    (base / "run").chmod(wrong)
    with pytest.raises(Misconfigured, match=rf"{base}/run must be a folder of this user with mode 0700"):
        RunDirectory.open(base / "run")
    assert mode(base / "run") == wrong


def test_a_folder_of_another_user_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: base.stat().st_uid + 1)
    with pytest.raises(Misconfigured, match="must be a folder of this user"):
        RunDirectory.open(base)


def test_a_link_is_refused(base: Path) -> None:
    (base / "real").mkdir(0o700)
    (base / "run").symlink_to(base / "real")
    with pytest.raises(Misconfigured, match="must be a folder of this user"):
        RunDirectory.open(base / "run")


def test_a_file_is_refused(base: Path) -> None:
    (base / "run").touch(0o700)
    with pytest.raises(Misconfigured, match=rf"{base}/run cannot be used: .*; set MGR_RUN_DIR"):
        RunDirectory.open(base / "run")
    with pytest.raises(Misconfigured, match="cannot be used"):
        RunDirectory.open(base / "run" / "below")


def test_the_longest_path_that_a_socket_can_have(base: Path) -> None:
    longest = MAX_SOCKET_PATH_BYTES - len("/01234567.sock")
    fits = base / ("r" * (longest - len(os.fsencode(base)) - 1))
    directory = RunDirectory.open(fits)
    assert len(os.fsencode(directory.endpoint().socket)) == MAX_SOCKET_PATH_BYTES
    too_long = fits.with_name(fits.name + "r")
    with pytest.raises(Misconfigured, match=r"\(104 bytes, 103 are possible\); set MGR_RUN_DIR"):
        RunDirectory.open(too_long)
    assert not too_long.exists()


def test_bytes_count_and_not_characters(base: Path) -> None:
    with pytest.raises(Misconfigured, match="too long"):
        RunDirectory.open(base / ("\N{LATIN SMALL LETTER E WITH ACUTE}" * 40))


def test_without_a_folder_one_is_made_and_removed_with_all_that_is_left(temporary: Path) -> None:
    directory = RunDirectory.open(None)
    assert directory.path.parent == temporary
    assert mode(directory.path) == 0o700
    (directory.path / "core.1").write_bytes(b"dumped by an engine")
    (directory.path / "folder").mkdir()
    directory.endpoint().socket.touch()
    directory.close()
    assert [*temporary.iterdir()] == []
    directory.close()


def test_what_cannot_be_removed_is_left_in_silence(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    directory = RunDirectory.open(None)
    monkeypatch.setattr(os, "rmdir", refuse)
    directory.close()
    assert directory.path.exists()


def test_a_temporary_folder_that_is_no_use_is_not_left(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = base / ("t" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(Misconfigured, match="set MGR_RUN_DIR to a shorter one"):
        RunDirectory.open(None)
    assert [*deep.iterdir()] == []


def test_no_place_for_a_temporary_folder(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(base / "none"))
    with pytest.raises(Misconfigured, match=r"no temporary folder .*: No such file .*; set MGR_RUN_DIR"):
        RunDirectory.open(None)
