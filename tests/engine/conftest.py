"""Fixtures of the tests with real engines and a real model, pulled once by mgr itself.

Every test runs on the engine of the wheel, and on each `llama-server` that the variable MGR_TEST_ENGINES names, paths
with the system's separator between them; a test's id begins with the engine's name.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from daemon.runner import embedded
from daemon.store.models import Store
from tests.engine.matrix import table
from tests.fakes.daemon import GUARD_SECONDS, DaemonProcess

# Checks of the matrix are written in modules of their own.
for _module in (
    "cells",
    "check_errors",
    "check_models",
    "check_output",
    "check_text",
    "openai_api",
    "responses_api",
):
    pytest.register_assert_rewrite(f"tests.engine.matrix.{_module}")

MakeEngineDaemon = Callable[..., DaemonProcess]

# Nothing listens on the discard port: the hub is out of reach at once, and the package is the next source.
NO_HUB = "http://127.0.0.1:9"
TOOLS_TEMPLATE = Path(__file__).with_name("matrix") / "tools.jinja"
_RELEASE = re.compile(r"release: id +\d+ \| task \d+ \| stop processing: n_tokens = (\d+)")


@dataclass(frozen=True)
class RealEngine:
    """`setting` is what MGR_ENGINE says, `command` starts the same engine without mgr."""

    name: str
    setting: str
    command: tuple[str, ...]


def _real_engines() -> list[RealEngine]:
    wheel = RealEngine("wheel", "wheel", (sys.executable, "-I", embedded.__file__))
    paths = [
        Path(path).absolute() for path in os.environ.get("MGR_TEST_ENGINES", "").split(os.pathsep) if path
    ]
    # A program lies in VERSION/bin.
    return [wheel, *(RealEngine(path.parents[1].name, str(path), (str(path),)) for path in paths)]


# These ask much of mgr and the same of every engine; the wheel's is enough where time is short.
_ONE_ENGINE = {
    Path(__file__).with_name(f"test_{name}.py")
    for name in ("faults_real", "hammer", "matrix", "memory", "memory_group", "schemas", "turns")
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    twice = [item for item in items if item.path in _ONE_ENGINE and _engine_of(item) not in (None, "wheel")]
    if twice and not os.environ.get("MGR_TEST_ALL"):
        config.hook.pytest_deselected(items=twice)
        items[:] = [item for item in items if item not in twice]
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


def _engine_of(item: pytest.Item) -> str | None:
    parameters = getattr(item, "callspec", None)
    engine = parameters.params.get("engine") if parameters is not None else None
    return engine.name if isinstance(engine, RealEngine) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The matrix of clients and features, when its tests ran."""
    results = {
        table.Place(*value): outcome
        for outcome in ("passed", "skipped", "failed", "error")
        for report in terminalreporter.stats.get(outcome, ())
        for name, value in getattr(report, "user_properties", ())
        if name == "matrix"
    }
    if results:
        terminalreporter.section("clients x features")
        for line in table.lines(results):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session", params=_real_engines(), ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> RealEngine:
    tested = request.param
    assert isinstance(tested, RealEngine)
    assert Path(tested.command[-1]).is_file(), f"MGR_TEST_ENGINES names {tested.setting}, which is no file"
    return tested


@pytest.fixture(scope="session")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with `smollm2:135m`, and `other`, the same model in another file."""
    folder = tmp_path_factory.mktemp("pulled")
    daemon = DaemonProcess(folder, {"HUB_ENDPOINT": NO_HUB}).start()
    try:
        lines = httpx.post(
            f"{daemon.url}/api/pull", json={"model": "smollm2"}, timeout=300, trust_env=False
        ).text.splitlines()
        assert lines[-1].startswith('{"status":"success"'), lines[-1]
        copy = folder / "other.gguf"
        shutil.copyfile(Store(daemon.models).open().resolve("smollm2").path, copy)
        copy.chmod(0o644)
        with copy.open("ab") as file:
            file.write(b"\0" * 32)
        reply = httpx.post(
            f"{daemon.url}/api/pull",
            json={"model": copy.as_uri(), "as": "other", "stream": False},
            timeout=300,
            trust_env=False,
        )
        assert reply.status_code == 200, reply.text
        copy.unlink()
        for model in ("smollm2:135m", "other:latest"):
            create(daemon, model, model)
    finally:
        daemon.stop()
    return daemon.models


def create(daemon: DaemonProcess, name: str, source: str, **recipe: Any) -> None:
    """A model whose engine has one thread: threads that wait for each other do so busily, which takes long where
    other tests run."""
    body = {"model": name, "from": source, "parameters": {"num_thread": 1}, "stream": False, **recipe}
    made = httpx.post(f"{daemon.url}/api/create", json=body, timeout=GUARD_SECONDS, trust_env=False)
    assert made.json() == {"status": "success"}


def copy_store(source: Path, target: Path) -> None:
    """A store of its own that shares the large files."""

    def copy(one: str, other: str) -> None:
        (os.link if Path(one).parent.name == "blobs" else shutil.copy2)(one, other)

    shutil.copytree(source, target, copy_function=copy)


@pytest.fixture
def make_engine_daemon(engine: RealEngine, pulled: Path, tmp_path: Path) -> Iterator[MakeEngineDaemon]:
    """Starts daemons with these settings on a copy of the store that shares its files."""
    made: list[DaemonProcess] = []

    def make(**settings: object) -> DaemonProcess:
        folder = tmp_path / f"daemon-{len(made)}"
        copy_store(pulled, folder / "models")
        made.append(DaemonProcess(folder, {"ENGINE": engine.setting, **settings}))
        return made[-1].start()

    yield make
    for daemon in made:
        daemon.stop()


@pytest.fixture(scope="session")
def daemon(
    engine: RealEngine, pulled: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """A running daemon that tests share."""
    folder = tmp_path_factory.mktemp("shared")
    copy_store(pulled, folder / "models")
    daemon = DaemonProcess(folder, {"ENGINE": engine.setting, "CONTEXT_LENGTH": 8192}).start()
    yield daemon
    daemon.stop()


@pytest.fixture(scope="session")
def tools_daemon(
    engine: RealEngine, pulled: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """A running daemon with the model `with-tools`: SmolLM2 with a template that can carry tools."""
    folder = tmp_path_factory.mktemp("tools")
    copy_store(pulled, folder / "models")
    daemon = DaemonProcess(folder, {"ENGINE": engine.setting, "CONTEXT_LENGTH": 2048}).start()
    try:
        create(daemon, "with-tools", "smollm2", template=TOOLS_TEMPLATE.read_text())
        yield daemon
    finally:
        daemon.stop()


def releases(daemon: DaemonProcess) -> list[int]:
    """Tokens in the slot at each release that the engine's own log shows."""
    return [int(tokens) for tokens in _RELEASE.findall(daemon.log_text())]


class DirectEngine:
    """The engine without mgr: the same program with the same numbers, asked over its own socket."""

    def __init__(self, engine: RealEngine, model: Path) -> None:
        self._answers: dict[tuple[str, str], Any] = {}
        self._folder = tempfile.mkdtemp(prefix="mgr-t-")
        self._socket = Path(self._folder) / "e.sock"
        self._process = subprocess.Popen(
            [
                *(*engine.command, "--model", str(model), "--host", str(self._socket)),
                *("--ctx-size", "8192", "--parallel", "2", "--batch-size", "512", "--threads", "1"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self._socket)), base_url="http://e", timeout=GUARD_SECONDS
        )
        deadline = time.monotonic() + GUARD_SECONDS
        while not self._is_ready():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self._socket)) != 0:
                return False
        return self._client.get("/health").status_code == 200

    def ask(self, path: str, **body: Any) -> Any:
        """The engine's reply; the same question is asked once."""
        question = (path, json.dumps(body))
        if question not in self._answers:
            self._answers[question] = self._client.post(path, content=question[1]).raise_for_status().json()
        return self._answers[question]

    def chat(self, **body: Any) -> str:
        """The answer's text."""
        return str(self.ask("/v1/chat/completions", **body)["choices"][0]["message"]["content"])

    def close(self) -> None:
        self._client.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)


@pytest.fixture(scope="session")
def direct(engine: RealEngine, pulled: Path) -> Iterator[DirectEngine]:
    direct = DirectEngine(engine, Store(pulled).open().resolve("smollm2").path)
    yield direct
    direct.close()
