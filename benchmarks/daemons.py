"""The daemon, and the paced engine with and without it."""

import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import psutil
from gguf import GGUFWriter

from benchmarks.processes import GUARD_SECONDS, Process, environment
from daemon.names import ModelName
from daemon.settings import Address
from daemon.store.models import Store

PACED_MODEL = "paced"

_PACED = Path(__file__).with_name("paced.py")
_LISTENS = re.compile(r"listens on (\S+)")


class Daemon:
    """`python -m daemon` with the store in `folder`/models; on a port that the system chose, or on `socket`. `settings`
    are MGR_* variables without their prefix."""

    def __init__(self, folder: Path, *, socket: Path | None = None, **settings: object) -> None:
        self.folder = folder
        log = folder / "daemon.log"
        seen = log.stat().st_size if log.exists() else 0
        variables = environment(folder, host=socket or "127.0.0.1:0", **settings)
        self._process = Process([sys.executable, "-m", "daemon"], variables, log)
        match = None
        while match is None:
            self._process.check()
            time.sleep(0.02)
            match = _LISTENS.search(log.read_text(errors="replace")[seen:])
        self.address = Address.parse(match[1])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        return self.address.port

    @property
    def where(self) -> int | Path:
        """What it listens on: a TCP port, or the path of its Unix socket."""
        return self.address.socket or self.address.port

    def client(self) -> httpx.Client:
        """Of its API; it waits for an answer for as long as anything may take."""
        socket = self.address.socket
        transport = httpx.HTTPTransport(uds=None if socket is None else str(socket))
        return httpx.Client(base_url=self.address.url, transport=transport, timeout=GUARD_SECONDS)

    def engines(self) -> list[psutil.Process]:
        """The engines that it runs now."""
        return psutil.Process(self.pid).children()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()


def socket_of(command: list[str]) -> Path:
    """Where an engine with this command line listens."""
    return Path(command[command.index("--host") + 1])


def paced_daemon(folder: Path, **settings: Any) -> Daemon:
    """A daemon whose engine is the paced one, with PACED_MODEL in its store."""
    folder.mkdir(parents=True, exist_ok=True)
    launcher = folder / "engine"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{_PACED}" "$@"\n')
    launcher.chmod(0o755)
    store = Store(folder / "models").open()
    digest = store.blobs.put(_tiny_model(folder / "tiny.gguf"))
    store.add(ModelName.parse(PACED_MODEL), digest, store.summary(digest), replace=True)
    return Daemon(folder, engine=launcher, **settings)


def _tiny_model(path: Path) -> bytes:
    """A model file as small as the store takes; no engine reads it."""
    writer = GGUFWriter(path, "llama")
    writer.add_name("Paced")
    writer.add_context_length(8192)
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_head_count(1)
    writer.add_tensor("output.weight", np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


class PacedEngine:
    """The paced engine by itself, on a socket in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "paced.sock"
        arguments = ["--host", str(self.socket), "--alias", f"{PACED_MODEL}:latest"]
        self._process = Process(
            [sys.executable, "-I", str(_PACED), *arguments], os.environ, folder / "paced.log"
        )
        while not self.socket.exists():
            self._process.check()
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
