"""How the daemon starts, refuses to start, and ends: exit codes, addresses, signals."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fakes.daemon import GUARD_SECONDS, DaemonProcess, eventually
from tests.fakes.dialects import STREAMS
from tests.integration.conftest import MakeDaemon

ROOT = Path(__file__).parents[2]
DAEMON = ("-m", "daemon")
SERVE = ("-m", "cli.main", "serve")


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: paths of sockets are bounded."""
    with tempfile.TemporaryDirectory(prefix="d-") as path:
        yield Path(path)


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    """A daemon's, with a home, a store and a place for temporary folders of its own."""
    (folder / "t").mkdir()
    environment = DaemonProcess(folder).environment()
    return {**environment, "TMPDIR": str(folder / "t"), "PYTHONPATH": str(ROOT)}


def ended(environment: dict[str, str], *command: str) -> tuple[int, str]:
    """Exit code and stderr of a start that fails, which leaves no temporary folder and no traceback."""
    result = subprocess.run(
        [sys.executable, *(command or DAEMON)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=GUARD_SECONDS,
        check=False,
    )
    assert result.stdout == b""
    assert [*Path(environment["TMPDIR"]).iterdir()] == []
    error = result.stderr.decode()
    assert error.startswith("Error: ")
    assert error.endswith("\n")
    assert error.count("\n") == 1, error
    return result.returncode, error


@contextmanager
def running(environment: dict[str, str], *, umask: int = 0o022) -> Iterator["subprocess.Popen[bytes]"]:
    """A daemon that listens; where, its log tells."""
    process = subprocess.Popen(
        [sys.executable, *DAEMON],
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        umask=umask,
    )
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"listens on" in line:
                break
        try:
            yield process
        finally:
            process.kill()


def over(path: Path) -> httpx.Client:
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=str(path)), base_url="http://mgr", timeout=GUARD_SECONDS
    )


# ---- the end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_exits_0_and_leaves_nothing(
    environment: dict[str, str], number: signal.Signals
) -> None:
    """Must hold: SIGTERM gives exit 0."""
    temporary = Path(environment["TMPDIR"])
    with running(environment) as process:
        assert [stat.S_IMODE(path.stat().st_mode) for path in temporary.iterdir()] == [0o700]
        process.send_signal(number)
        assert process.wait(GUARD_SECONDS) == 0
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_twice_it_does_not_wait_for_answers(
    make_daemon: MakeDaemon, number: signal.Signals
) -> None:
    """The answer never ends, so the first signal alone would wait for the whole drain."""
    daemon = make_daemon(DRAIN_TIMEOUT="8s")
    daemon.model("a")
    daemon.script({"hold_tokens": str(daemon.hold("tokens"))})
    daemon.start()
    way = STREAMS[0]
    async with daemon.client() as client, client.stream("POST", way.path, json=way.body("a")) as stream:
        await daemon.until("held")
        daemon.signal(signal.SIGTERM)
        await eventually(lambda: "mgr.server: stopping\n" in daemon.log_text(), "it drains")
        daemon.signal(number)
        assert "engine stopped" in way.terminal_error(await stream.aread())
    assert await asyncio.to_thread(daemon.wait) == 0
    assert "mgr.server: stopping at once\n" in daemon.log_text()


# ---- addresses


def test_a_busy_port_is_1_and_names_who_holds_it(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        code, error = ended({**environment, "MGR_HOST": address})
    assert code == 1
    assert f"{address} is in use by {psutil.Process().name()} (process {os.getpid()})" in error


def test_a_store_that_another_daemon_has_is_75(environment: dict[str, str], folder: Path) -> None:
    with running({**environment, "TMPDIR": str(folder)}) as first:
        code, error = ended(environment)
        assert code == 75
        assert f"the model store is in use by another daemon (pid {first.pid})" in error
    with running(environment):  # after the first was killed
        pass


def test_a_unix_socket(environment: dict[str, str], folder: Path) -> None:
    path = folder / "mgr.sock"
    with running({**environment, "MGR_HOST": str(path)}, umask=0) as process:
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        with over(path) as client:
            assert client.get("/").text == "Ollama is running"
            assert client.get("/", headers={"Origin": "http://evil.example"}).status_code == 403
        process.terminate()
        assert process.wait(GUARD_SECONDS) == 0
    assert not path.exists()


def test_a_unix_socket_that_a_killed_daemon_left_is_replaced(
    environment: dict[str, str], folder: Path
) -> None:
    path = folder / "mgr.sock"
    environment["MGR_HOST"] = str(path)
    with running(environment) as process:
        process.kill()
    assert path.is_socket()
    with running(environment), over(path) as client:
        assert client.get("/health/live").status_code == 200


def test_a_unix_socket_that_answers_is_left_alone(environment: dict[str, str], folder: Path) -> None:
    path = folder / "mgr.sock"
    environment["MGR_HOST"] = str(path)
    with running({**environment, "TMPDIR": str(folder)}), over(path) as client:
        code, error = ended({**environment, "MGR_MODELS": str(folder / "others")})
        assert code == 1
        assert f"cannot listen on {path}: another program listens there" in error
        assert client.get("/").status_code == 200


def test_a_file_where_the_socket_should_be_is_left_alone(environment: dict[str, str], folder: Path) -> None:
    path = folder / "precious.sock"
    path.write_text("precious")
    code, error = ended({**environment, "MGR_HOST": str(path)})
    assert (code, path.read_text()) == (1, "precious")
    assert f"cannot listen on {path}: there is a file of that name" in error


# ---- who may be reached


def by_file(environment: dict[str, str]) -> tuple[str, ...]:
    config = Path(environment["TMPDIR"]).with_name("config.toml")
    config.write_text('host = "0.0.0.0:0"\n')
    environment["MGR_CONFIG"] = str(config)
    del environment["MGR_HOST"]
    return DAEMON


def by_mgr(environment: dict[str, str]) -> tuple[str, ...]:
    environment["MGR_HOST"] = "0.0.0.0:0"
    return DAEMON


def by_ollama(environment: dict[str, str]) -> tuple[str, ...]:
    environment["OLLAMA_HOST"] = "0.0.0.0:0"
    del environment["MGR_HOST"]
    return DAEMON


def by_flag(environment: dict[str, str]) -> tuple[str, ...]:
    return (*SERVE, "--host", "0.0.0.0:0")


def by_variable_of_serve(environment: dict[str, str]) -> tuple[str, ...]:
    by_ollama(environment)
    return SERVE


@pytest.mark.parametrize("told", [by_mgr, by_ollama, by_file, by_flag, by_variable_of_serve])
def test_an_address_beyond_this_machine_needs_a_key(
    environment: dict[str, str], told: Callable[[dict[str, str]], tuple[str, ...]]
) -> None:
    """Must hold: a non-loopback address without a key is refused at start, exit 78, wherever it came from."""
    code, error = ended(environment, *told(environment))
    assert code == 78
    assert "0.0.0.0:0 can be reached from other machines and no API key is set" in error
    assert "MGR_API_KEYS_FILE" in error


def test_with_a_key_it_may_be_reached(environment: dict[str, str], folder: Path) -> None:
    (folder / "keys").write_text("secret\n")
    environment |= {"MGR_HOST": "0.0.0.0:0", "MGR_API_KEYS_FILE": str(folder / "keys")}
    with running(environment) as process:
        [listener] = [c for c in psutil.Process(process.pid).net_connections() if c.status == "LISTEN"]
        assert listener.laddr
        url = f"http://127.0.0.1:{listener.laddr.port}/api/tags"
        assert httpx.get(url, trust_env=False).status_code == 401
        key = {"Authorization": "Bearer secret"}
        assert httpx.get(url, headers=key, trust_env=False).status_code == 200
        assert httpx.get(url, headers={**key, "Host": "evil.example"}, trust_env=False).status_code == 403
        process.terminate()
        assert process.wait(GUARD_SECONDS) == 0


# ---- settings that are wrong


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("MGR_HOST", "https://127.0.0.1", "mgr speaks plain HTTP"),
        ("MGR_HOST", "127.0.0.1:99999", "write it like 127.0.0.1:11434"),
        ("MGR_MAX_QUEUE", "many", "must be a whole number"),
        ("OLLAMA_NUM_PARALLEL", "-1", "must be a whole number"),
        ("MGR_KEEP_ALIVE", "soon", "must be a duration"),
        ("MGR_LOAD_TIMEOUT", "0", "longer than zero"),
        ("MGR_DRAIN_TIMEOUT", "1m", "must be between 0s and 8s"),
        ("MGR_ORIGINS", "chat.example", "is not an origin"),
        ("MGR_HOSTS", "mgr.lan:80", "is not a host name"),
        ("HF_ENDPOINT", "hub.example", "must be an http:// or https:// URL"),
        ("MGR_LOG_LEVEL", "loud", "must be one of debug, info, warning, error"),
        ("MGR_LOG_FORMAT", "xml", "must be one of text, json"),
        ("MGR_API_KEYS_FILE", "/nowhere/keys", "No such file or directory"),
        ("MGR_RUN_DIR", "/" + "x" * 100, "too long for a socket path"),
        ("MGR_RUN_DIR", "/dev/null", "cannot be used"),
        ("MGR_MODELS", "/dev/null/models", "set MGR_MODELS"),
    ],
)
def test_a_bad_setting_is_78_and_one_sentence(
    environment: dict[str, str], name: str, value: str, reason: str
) -> None:
    code, error = ended({**environment, name: value})
    assert code == 78
    assert name in error
    assert value in error
    assert reason in error


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.toml", "max_queue = 'many'", "must be a whole number"),
        ("config.toml", "max_que = 1", "unknown key 'max_que'"),
        ("config.toml", "max_queue", "not valid TOML"),
        ("shortnames.toml", "[x", "not TOML"),
        ("keys", "# none", "it has no key in it"),
    ],
)
def test_a_bad_file_is_78_and_named(
    environment: dict[str, str], folder: Path, name: str, content: str, reason: str
) -> None:
    path = folder / name
    path.write_text(content)
    variable = {"config.toml": "MGR_CONFIG", "keys": "MGR_API_KEYS_FILE"}.get(name, "MGR_SHORTNAMES")
    code, error = ended({**environment, variable: str(path)})
    assert code == 78
    assert str(path) in error
    assert reason in error


def test_a_bad_flag_is_78(environment: dict[str, str]) -> None:
    code, error = ended(environment, *SERVE, "--max-loaded-models", "many")
    assert (code, error) == (78, "Error: --max-loaded-models is 'many': must be a whole number, 0 or more\n")


# ---- who it is


async def test_it_tells_the_process_that_it_is(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    async with daemon.client() as client:
        told = (await client.get("/api/version")).json()["mgr"]
    assert told["pid"] == daemon.pid
    assert told["started"] == pytest.approx(psutil.Process(daemon.pid).create_time(), abs=1.1)
    boot = Path("/proc/sys/kernel/random/boot_id")
    assert told["boot_id"] == (boot.read_text().strip() if boot.exists() else "")
