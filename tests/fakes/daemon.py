"""A real daemon in a process of its own, with a store and a HOME of its own, for tests that drive it from outside."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from daemon.names import ModelName
from daemon.store.models import Store
from tests.fakes.gguf_files import gguf

# A guard against a hang, nothing is measured with it.
GUARD_SECONDS = 120.0

ENGINE = Path(__file__).with_name("llama_server.py")
_LISTENS = re.compile(r"listens on 127\.0\.0\.1:(\d+)")


class DaemonProcess:
    """`python -m daemon` on a port that the system chose. `settings` are MGR_* variables without their prefix."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.stderr = folder / "daemon.log"
        self.settings = {"HOST": "127.0.0.1:0", "LOG_LEVEL": "debug", **(settings or {})}
        self.command = [sys.executable, "-m", "daemon"]
        self.headers: dict[str, str] = {}  # of each request
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MGR_", "OLLAMA_", "HF_", "XDG_"))}
        mgr = {f"MGR_{name}": str(value) for name, value in self.settings.items()}
        return {**kept, "HOME": str(self.folder), "MGR_MODELS": str(self.models), **mgr}

    def start(self) -> Self:
        start = self.stderr.stat().st_size if self.stderr.exists() else 0
        with self.stderr.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + GUARD_SECONDS
        while time.monotonic() < deadline:
            text = self.stderr.read_text(errors="replace")[start:]
            if match := _LISTENS.search(text):
                self.url = f"http://127.0.0.1:{match[1]}"
                return self
            if self.process.poll() is not None:
                raise RuntimeError(f"the daemon ended with {self.process.returncode}:\n{text}")
            time.sleep(0.02)
        raise TimeoutError("the daemon did not listen")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(GUARD_SECONDS)

    def stop(self) -> int:
        """Ends it like a service manager does. Returns the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def log_text(self) -> str:
        return self.stderr.read_text(errors="replace")

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url, headers=self.headers, timeout=GUARD_SECONDS, trust_env=False
        )

    def engines(self) -> list[psutil.Process]:
        """The processes below the daemon that have not ended."""
        children = psutil.Process(self.pid).children(recursive=True)
        return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]

    def zombies(self) -> list[int]:
        children = psutil.Process(self.pid).children(recursive=True)
        return [child.pid for child in children if child.status() == psutil.STATUS_ZOMBIE]

    def loaded(self) -> list[dict[str, Any]]:
        reply = httpx.get(f"{self.url}/api/ps", headers=self.headers, trust_env=False, timeout=GUARD_SECONDS)
        models = reply.json()["models"]
        assert isinstance(models, list)
        return models


class ScriptedDaemon(DaemonProcess):
    """A daemon whose engine is the scripted one. Call `model` and `script` before `start`, `script` also later."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        engine = folder / "engine.sh"
        super().__init__(folder, {"ENGINE": engine, **(settings or {})})
        self._script = folder / "script.json"
        self._events = folder / "events.jsonl"
        self._events.touch()
        engine.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ENGINE}" --script "{self._script}" "$@"\n')
        engine.chmod(0o755)
        self.script()

    def model(self, *names: str, **metadata: Any) -> None:
        """Puts tiny models into the store, each with a file of its own."""
        store = Store(self.models).open()
        for name in names:
            digest = store.blobs.put(gguf({"general.name": name, "llama.context_length": 8192, **metadata}))
            store.add(ModelName.parse(name), digest, store.summary(digest))

    def script(self, default: Mapping[str, Any] | None = None, **models: Mapping[str, Any]) -> None:
        """How engines behave that start from now on; a model's name is written without its tag `latest`."""
        by_alias = {f"{name}:latest": behaviour for name, behaviour in models.items()}
        script = {"log": str(self._events), "default": dict(default or {}), "models": by_alias}
        self._script.write_text(json.dumps(script))

    def hold(self, name: str) -> "Hold":
        return Hold(self.folder / f"hold-{name}")

    def events(self, kind: str | None = None, model: str | None = None) -> list[dict[str, Any]]:
        """What the engines did, in order. The last line may be half written."""
        *whole, _ = self._events.read_text().split("\n")
        lines = [json.loads(line) for line in whole]
        return [
            line
            for line in lines
            if (kind is None or line["event"] == kind)
            and (model is None or line["alias"] == f"{model}:latest")
        ]

    async def until(self, kind: str, model: str | None = None, count: int = 1) -> list[dict[str, Any]]:
        """Waits until `count` such events have happened."""
        async with asyncio.timeout(GUARD_SECONDS):
            while len(events := self.events(kind, model)) < count:
                await asyncio.sleep(0.01)
        return events


class Hold:
    """A file that a scripted engine waits for until it is gone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __str__(self) -> str:
        return str(self.path)

    def release(self) -> None:
        self.path.unlink(missing_ok=True)


async def eventually(condition: Any, what: str) -> None:
    """Waits until `condition()` is true; the guard is generous."""
    async with asyncio.timeout(GUARD_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)
    assert condition(), what
