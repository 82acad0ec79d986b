"""The real engine and a real model: pulled by mgr itself, asked through mgr and by hand."""

import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.daemons import Daemon, socket_of
from benchmarks.load import Ask
from benchmarks.options import Options
from benchmarks.processes import GUARD_SECONDS, Unavailable
from daemon.chat import ChatRequest
from daemon.middleware import openai
from daemon.runner.launch import KEY_VARIABLE
from daemon.runner.wire import body_for, path_for
from daemon.store.models import Store

# Nothing listens on the discard port: the hub is out of reach at once, and the package is the next source.
_NO_HUB = "http://127.0.0.1:9"
_SMALL = "smollm2"

MODEL, OTHER = "bench-one", "bench-two"


def post(daemon: Daemon, path: str, body: Mapping[str, Any]) -> None:
    """Returns when it has been done. Raises Unavailable with the daemon's error."""
    with daemon.client() as client:
        reply = client.post(path, json=body)
    if reply.status_code != 200:
        raise Unavailable(f"{path} answered {reply.status_code}: {reply.text}")


def make_store(folder: Path, options: Options) -> None:
    """A store in `folder`/models with MODEL and OTHER: the same weights in two files."""
    folder.mkdir(parents=True)
    with Daemon(folder, hub_endpoint=_NO_HUB) as daemon:
        source = options.model
        if source is None:
            post(daemon, "/api/pull", {"model": _SMALL, "stream": False})
            source = Store(folder / "models").open().resolve(_SMALL).path
        copy = folder / "copy.gguf"
        shutil.copyfile(source, copy)
        copy.chmod(0o644)
        for name in (MODEL, OTHER):
            post(daemon, "/api/pull", {"model": copy.as_uri(), "as": name, "stream": False})
            with copy.open("ab") as file:
                file.write(b"\0" * 32)  # another file, the same model
        copy.unlink()


def load(daemon: Daemon, model: str) -> None:
    post(daemon, "/api/generate", {"model": model})


def unload(daemon: Daemon, model: str) -> None:
    """Returns when the engine's process is gone, if there was one."""
    engines = daemon.engines()
    post(daemon, "/api/generate", {"model": model, "keep_alive": 0})
    psutil.wait_procs(engines, timeout=GUARD_SECONDS)


# Counted where all answers must be cut off by their limit, so that all have the same length.
_AT_LIMIT = b'"length"'


def through_mgr(model: str, text: str, tokens: int) -> Ask:
    """A greedy chat of at most `tokens` tokens; the connection ends with the answer."""
    return Ask("/v1/chat/completions", _chat(model, text, tokens), _AT_LIMIT, {"Connection": "close"})


def _chat(model: str, text: str, tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "stream": True,
        "temperature": 0,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": text}],
    }


@dataclass(frozen=True, slots=True)
class Started:
    """How an engine was started by mgr, so that it can be asked, and started again, without mgr."""

    command: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def by(cls, daemon: Daemon) -> "Started":
        """The one engine that the daemon runs now."""
        (engine,) = daemon.engines()
        return cls(tuple(engine.cmdline()), engine.environ())

    @property
    def socket(self) -> Path:
        return socket_of([*self.command])

    def at(self, socket: Path) -> "Started":
        """The same on another socket."""
        return replace(self, command=tuple(str(socket) if a == str(self.socket) else a for a in self.command))

    def direct(self, text: str, tokens: int) -> Ask:
        """What mgr would ask the engine for `through_mgr(text, tokens)`."""
        parsed = openai.CHAT.parse(json.dumps(_chat(MODEL, text, tokens)).encode())
        if not isinstance(parsed, ChatRequest):
            raise TypeError(f"{parsed} is no chat")
        request = replace(parsed, sampling=parsed.sampling.over(openai.CHAT.defaults))
        headers = {"Connection": "close", "Authorization": f"Bearer {self.environment[KEY_VARIABLE]}"}
        return Ask(path_for(request), body_for(request), _AT_LIMIT, headers)


class ByHand:
    """An engine started without mgr, on a socket of its own; `wait` polls its health without a pause."""

    def __init__(self, started: Started) -> None:
        self._folder = tempfile.mkdtemp(prefix="mgr-b-")
        self.started = started.at(Path(self._folder) / "e.sock")
        self._process = subprocess.Popen(
            self.started.command,
            env=dict(self.started.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def socket(self) -> Path:
        return self.started.socket

    def wait(self) -> None:
        deadline = time.monotonic() + GUARD_SECONDS
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the engine did not start by hand")
            time.sleep(0.002)

    def _healthy(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
                probe.sendall(b"GET /health HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n")
                return probe.recv(4096).startswith(b"HTTP/1.1 200")
            except OSError:
                return False

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(GUARD_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.stop()
