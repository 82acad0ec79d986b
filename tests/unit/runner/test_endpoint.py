import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
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


def left_behind(base: Path, name: str = "mgr-run-abcdefgh") -> Path:
    """The folder of a daemon that was killed: no lock holds it."""
    folder = base / name
    folder.mkdir(0o700)
    (folder / "01234567.sock").touch()
    return folder


def test_what_a_dead_daemon_left_is_removed_by_the_next(temporary: Path) -> None:
    dead = left_behind(temporary)
    directory = RunDirectory.open(None)
    assert not dead.exists()
    assert [*temporary.iterdir()] == [directory.path]
    directory.close()


def test_what_a_living_daemon_uses_is_left_alone(temporary: Path) -> None:
    living = RunDirectory.open(None)
    living.endpoint().socket.touch()
    before = sorted(living.path.iterdir())
    RunDirectory.open(None).close()
    assert sorted(living.path.iterdir()) == before
    living.close()


@pytest.mark.parametrize(
    "name", ["mgr-abcdefgh", "mgr-run-abcdefghi", "mgr-run-ABCDEFGH", "mgr-run-x", "other"]
)
def test_a_folder_of_another_name_is_left_alone(temporary: Path, name: str) -> None:
    other = left_behind(temporary, name)
    RunDirectory.open(None).close()
    assert (other / "01234567.sock").exists()


def test_a_folder_that_others_can_enter_is_left_alone(temporary: Path) -> None:
    other = left_behind(temporary)
    other.chmod(0o750)
    RunDirectory.open(None).close()
    assert (other / "01234567.sock").exists()


def test_a_folder_of_another_user_is_left_alone(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = left_behind(temporary)
    monkeypatch.setattr(os, "geteuid", lambda: other.stat().st_uid + 1)
    with pytest.raises(Misconfigured):
        RunDirectory.open(None)
    assert (other / "01234567.sock").exists()


def test_a_link_is_neither_removed_nor_followed(temporary: Path) -> None:
    real = left_behind(temporary, "real")
    (temporary / "mgr-run-abcdefgh").symlink_to(real)
    RunDirectory.open(None).close()
    assert (temporary / "mgr-run-abcdefgh").is_symlink()
    assert (real / "01234567.sock").exists()


def test_where_nothing_can_be_locked_nothing_is_removed(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    dead = left_behind(temporary)
    monkeypatch.setattr(fcntl, "flock", refuse)
    RunDirectory.open(None).close()
    assert dead.exists()


def test_a_folder_that_was_removed_before_it_was_locked_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another daemon's start came between."""
    lock = fcntl.flock
    removed: list[Path] = []

    def late(fd: int, operation: int) -> None:
        if not removed:
            removed.extend(temporary.glob("mgr-run-*"))
            removed[0].rmdir()
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    directory = RunDirectory.open(None)
    assert directory.path.is_dir()
    RunDirectory.open(None).close()
    assert directory.path.is_dir()
    directory.close()


def test_a_folder_that_was_cleaned_away_is_locked_again(temporary: Path) -> None:
    directory = RunDirectory.open(None)
    directory.path.rmdir()
    directory.check()
    RunDirectory.open(None).close()
    assert directory.path.is_dir()
    directory.close()


def test_dead_sockets_in_a_folder_that_was_given_are_removed(base: Path) -> None:
    folder = left_behind(base, "run")
    others = [folder / name for name in ("file", "other.sock", "0123456.sock", "01234567.sock.txt")]
    for other in others:
        other.touch()
    first = RunDirectory.open(folder)
    assert sorted(folder.iterdir()) == sorted(others)
    used = first.endpoint().socket
    used.touch()
    second = RunDirectory.open(folder)
    assert used.exists()
    first.close()
    second.close()
    RunDirectory.open(folder).close()
    assert not used.exists()


def test_a_closed_directory_holds_no_descriptor(base: Path) -> None:
    before = psutil.Process().num_fds()
    directory = RunDirectory.open(base / "run")
    directory.check()
    directory.close()
    directory.close()
    assert psutil.Process().num_fds() == before
