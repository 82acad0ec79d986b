import errno
import json
import logging
import os
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from daemon import server
from daemon.server import CannotListen, bind, serve
from daemon.settings import Address, Settings
from daemon.store.models import Store


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: paths of sockets are bounded."""
    with tempfile.TemporaryDirectory(prefix="s-") as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("mgr")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.fixture
def settings(folder: Path) -> Settings:
    return Settings(models=folder / "models", run_dir=folder / "run", host=Address("127.0.0.1", 0))


@pytest.fixture
def busy() -> Iterator[Address]:
    """An address on which this process listens."""
    with bind(Address("127.0.0.1", 0)) as listener:
        yield Address("127.0.0.1", listener.getsockname()[1])


# ---- TCP


def test_a_port_of_the_systems_choice() -> None:
    with bind(Address("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        assert port > 0
        assert not listener.getblocking()
        assert not listener.get_inheritable()
        socket.create_connection((host, port)).close()


def test_every_address() -> None:
    with bind(Address("", 0)) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_busy_port_names_who_holds_it(busy: Address, host: str) -> None:
    address = replace(busy, host=host)
    with pytest.raises(CannotListen) as caught:
        bind(address)
    holder = f"{psutil.Process().name()} (process {os.getpid()})"
    assert caught.value.message == (
        f"{address} is in use by {holder}; stop it, or set MGR_HOST to another address"
    )


def test_who_listens_elsewhere_on_the_port_holds_nothing(busy: Address) -> None:
    assert server._holder("127.0.0.2", busy.port) == "another program"


@pytest.mark.parametrize("error", [psutil.AccessDenied(1), psutil.NoSuchProcess(1), PermissionError()])
def test_a_holder_that_cannot_be_seen(
    busy: Address, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(kind: str) -> list[object]:
        raise error

    monkeypatch.setattr(psutil, "net_connections", refuse)
    with pytest.raises(CannotListen, match="is in use by another program; stop it"):
        bind(busy)


def test_a_holders_name_is_safe_on_a_terminal(busy: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "name", lambda self: "\x1b[31mevil\n")
    with pytest.raises(CannotListen) as caught:
        bind(busy)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("host", ["host.invalid", "x" * 64 + ".invalid", "a..b"])
def test_an_address_that_is_not_known(host: str) -> None:
    with pytest.raises(CannotListen, match=r"^the address .*:1 is not known; set MGR_HOST$"):
        bind(Address(host, 1))


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(CannotListen, match=r"^cannot listen on 192\.0\.2\.1:1: .*; set MGR_HOST$"):
        bind(Address("192.0.2.1", 1))  # of the network for documentation


# ---- Unix sockets


def leave_stale(path: Path) -> None:
    """The socket file of a process that was killed."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()


def test_a_socket_is_for_this_user_alone_whatever_the_umask(folder: Path) -> None:
    """Looked at between bind and listen too: the file has the mode when it appears."""
    path = folder / "mgr.sock"
    seen: list[int] = []

    class Watched(socket.socket):
        def listen(self, backlog: int = 0, /) -> None:
            seen.append(stat.S_IMODE(path.stat().st_mode))
            super().listen(backlog)

    umask = os.umask(0)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "socket", Watched)
            listener = bind(Address(socket=path))
        assert os.umask(0) == 0
    finally:
        os.umask(umask)
    with listener:
        assert seen == [0o600]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    path = folder / "mgr.sock"
    leave_stale(path)
    with bind(Address(socket=path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_that_answers_is_not_replaced(folder: Path) -> None:
    path = folder / "mgr.sock"
    with bind(Address(socket=path)):
        inode = path.stat().st_ino
        with pytest.raises(CannotListen, match=r"mgr\.sock: another program listens there; set MGR_HOST$"):
            bind(Address(socket=path))
        assert path.stat().st_ino == inode


def test_a_socket_whose_owner_is_too_busy_to_answer_is_not_replaced(folder: Path) -> None:
    path = folder / "mgr.sock"
    with socket.socket(socket.AF_UNIX) as owner:
        owner.bind(str(path))
        owner.listen(0)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(8)]
        for client in clients:
            client.setblocking(False)
        assert errno.EAGAIN in [client.connect_ex(str(path)) for client in clients]
        with pytest.raises(CannotListen, match="another program listens there"):
            bind(Address(socket=path))
        assert path.exists()
        for client in clients:
            client.close()


@pytest.mark.parametrize("kind", ["file", "folder", "link to nothing", "link to a stale socket"])
def test_what_is_no_socket_is_never_deleted(folder: Path, kind: str) -> None:
    path, other = folder / "mgr.sock", folder / "other.sock"
    match kind:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case "link to nothing":
            path.symlink_to(other)
        case _:
            leave_stale(other)
            path.symlink_to(other)
    before = path.lstat()
    with pytest.raises(CannotListen, match="there is a file of that name; set MGR_HOST"):
        bind(Address(socket=path))
    assert path.lstat().st_ino == before.st_ino
    assert kind != "link to a stale socket" or other.exists()


@pytest.mark.parametrize(
    ("name", "reason"), [("none/mgr.sock", "No such file or directory"), ("x" * 200 + ".sock", "too long")]
)
def test_a_socket_that_cannot_be_made(folder: Path, name: str, reason: str) -> None:
    umask = os.umask(0o022)
    try:
        with pytest.raises(CannotListen, match=reason):
            bind(Address(socket=folder / name))
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(umask)


# ---- exit codes


def is_released(settings: Settings) -> bool:
    store = Store(settings.models).open(lock=True)
    store.close()
    return True


def test_a_busy_port_is_1_and_nothing_is_left(
    settings: Settings, busy: Address, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(replace(settings, host=busy)) == 1
    assert "is in use by" in capsys.readouterr().err
    assert is_released(settings)


def test_a_store_in_use_is_75(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(settings.models).open(lock=True)
    try:
        assert serve(settings) == 75
    finally:
        store.close()
    error = capsys.readouterr().err
    assert f"in use by another daemon (pid {os.getpid()})" in error
    assert "set MGR_MODELS" in error


def test_an_open_address_without_a_key_is_78(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(replace(settings, host=Address("0.0.0.0", 0))) == 78
    assert capsys.readouterr().err.startswith("Error: 0.0.0.0:0 can be reached from other machines")


def test_signals_are_as_they_were_after_a_start_that_failed(settings: Settings, busy: Address) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    serve(replace(settings, host=busy))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_is_0_and_nothing_is_left(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def interrupted(address: Address) -> socket.socket:
        signal.raise_signal(number)
        raise AssertionError

    monkeypatch.setattr(server, "bind", interrupted)
    with pytest.raises(SystemExit) as caught:
        serve(settings)
    assert caught.value.code == 0
    assert is_released(settings)


# ---- the log


def formatted(settings: Settings, message: str, error: Exception | None = None) -> str:
    server._set_up_logging(settings)
    [handler] = logging.getLogger().handlers
    information = None
    if error is not None:
        try:
            raise error
        except type(error):
            information = sys.exc_info()
    record = logging.LogRecord("mgr.x", logging.WARNING, "x.py", 1, "%s", (message,), information)
    return handler.format(record)


HOSTILE = "a\r\n2026-01-01 00:00:00,000 ERROR mgr: forged\x1b[31m\u2028\u202eb\x00\x85c"


def test_a_text_record_is_one_line_and_what_belongs_to_it_is_indented(settings: Settings) -> None:
    first, *rest = formatted(settings, HOSTILE, ValueError(HOSTILE)).splitlines()
    assert first.endswith(" WARNING mgr.x: a")
    assert len(rest) > 3
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_a_json_record_is_one_line(settings: Settings) -> None:
    line = formatted(replace(settings, log_format="json"), HOSTILE, ValueError(HOSTILE))
    assert line.isascii()
    assert line.isprintable()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("warning", "mgr.x", HOSTILE)
    assert entry["time"].endswith("+00:00")
    assert "ValueError" in entry["error"]


@pytest.mark.parametrize(("level", "number"), [("debug", 10), ("info", 20), ("warning", 30), ("error", 40)])
def test_the_level_is_for_our_own_records(settings: Settings, level: str, number: int) -> None:
    server._set_up_logging(replace(settings, log_level=level))
    assert logging.getLogger("mgr.x").getEffectiveLevel() == number
    assert logging.getLogger("uvicorn.error").getEffectiveLevel() == logging.WARNING
