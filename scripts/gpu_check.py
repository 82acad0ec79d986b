"""The checks of gpu_check.sh: a daemon of this checkout, with a home and a store of its own, and the build's engine.

Each check prints one line. `--dry-run` is for machines without a GPU: it does the same on the CPU and says which
checks it leaves out; without `--engine` it takes the engine of the wheel.
"""
# ruff: noqa: T201

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from cli.client import Client
from cli.errors import CliError
from daemon.runner import embedded
from daemon.settings import Address

LIMIT_SECONDS = 225
STEP_SECONDS = 120.0
ALL_LAYERS = 999
MIB = 2**20

_DEVICE = re.compile(r"^\s+(\w+): (.+) \((\d+) MiB, (\d+) MiB free\)$", re.MULTILINE)
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_LOADED = re.compile(r"model loaded")


class Failed(Exception):
    """A check that failed; the sentence says why."""


class OutOfTime(Exception):
    """All checks together took too long."""


@dataclass(frozen=True)
class Device:
    name: str
    description: str
    total: int  # MiB, like `free`
    free: int


@dataclass
class Report:
    """Runs checks and prints what came of them. Checks of a GPU are skipped where `gpu` is false."""

    gpu: bool
    failed: int = 0
    skipped: int = 0

    def check(self, name: str, work: Callable[[], str]) -> bool:
        try:
            self._print("ok", name, work())
        except LookupError as error:
            return self._fail(name, f"the daemon's answer lacks {error}")
        except (Failed, CliError, OSError, subprocess.SubprocessError) as error:
            return self._fail(name, str(error))
        return True

    def check_gpu(self, name: str, work: Callable[[], str]) -> None:
        if self.gpu:
            self.check(name, work)
        else:
            self.skipped += 1
            self._print("skip", name, "needs a GPU")

    def _fail(self, name: str, why: str) -> bool:
        self.failed += 1
        self._print("FAIL", name, why)
        return False

    def _print(self, outcome: str, name: str, detail: str) -> None:
        print(f"{outcome:<5} {name:<10} {detail}", flush=True)


@dataclass
class Machine:
    """The engine and the daemon that runs it; `folder` is the daemon's home."""

    engine: Sequence[str]
    setting: str
    model: Path
    folder: Path
    gpu: bool
    client: Client = field(init=False)
    daemon: "subprocess.Popen[bytes] | None" = None

    def __post_init__(self) -> None:
        self.client = Client(Address(socket=self.folder / "mgr.sock"))

    # ---- what the engine says of itself

    def ask(self, flag: str) -> str:
        done = subprocess.run(
            [*self.engine, flag], capture_output=True, text=True, timeout=STEP_SECONDS, check=False
        )
        if done.returncode != 0:
            raise Failed(f"{flag} ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout + done.stderr

    def devices(self) -> list[Device]:
        return [
            Device(name, description, int(total), int(free))
            for name, description, total, free in _DEVICE.findall(self.ask("--list-devices"))
        ]

    def version(self) -> str:
        return next((line for line in self.ask("--version").splitlines() if "version" in line), "unknown")

    def device(self) -> str:
        found = self.devices()
        if not found:
            raise Failed("--list-devices names no device")
        shown = "; ".join(f"{one.name}: {one.description}, {one.total} MiB" for one in found)
        return f"{shown}{_nvidia_smi()}"

    def free_memory(self) -> int:
        """MiB that are free on all devices together."""
        return sum(device.free for device in self.devices())

    def layers(self) -> str:
        """The engine by itself, as only its own log tells how many layers are on the device."""
        arguments = ("--model", str(self.model), "--host", str(self.folder / "e.sock"))
        verbose = ("--n-gpu-layers", str(ALL_LAYERS), "--log-verbosity", "4")
        log = self.folder / "engine.log"
        with log.open("wb") as file:
            engine = subprocess.Popen([*self.engine, *arguments, *verbose], stdout=file, stderr=file)
        try:
            wait_until(
                lambda: bool(_LOADED.search(log.read_text(errors="replace"))) or engine.poll() is not None,
                "the engine does not load the model",
            )
        finally:
            engine.kill()
            engine.wait()
        said = log.read_text(errors="replace")
        found = _OFFLOADED.search(said)
        if found is None:
            last = said.strip().rpartition("\n")[2]
            raise Failed(f"no layer was offloaded; the engine's last line is: {last}")
        if found[1] != found[2]:
            raise Failed(found[0])
        return found[0]

    # ---- through the daemon

    def start(self) -> str:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("MGR_", "OLLAMA_"))
        }
        environment |= {
            "HOME": str(self.folder),
            "MGR_MODELS": str(self.folder / "models"),
            "MGR_HOST": str(self.client.address),
            "MGR_ENGINE": self.setting,
        }
        with (self.folder / "daemon.log").open("wb") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "daemon"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, f"the daemon does not start: {self._log_end()}")
        return f"process {self.daemon.pid}"

    def _answers(self) -> bool:
        with contextlib.suppress(CliError):
            return bool(self.client.version())
        return False

    def _log_end(self) -> str:
        return (self.folder / "daemon.log").read_text(errors="replace")[-300:]

    def pull(self) -> str:
        body = {"model": self.model.as_uri(), "as": "checked", "stream": False}
        self.client.call("POST", "/api/pull", body, timeout=STEP_SECONDS)
        return f"{self.model.stat().st_size // MIB} MiB"

    def generate(self, prompt: str, tokens: int) -> dict[str, Any]:
        options = {"num_gpu": ALL_LAYERS if self.gpu else 0, "num_predict": tokens, "temperature": 0}
        body = {"model": "checked", "prompt": prompt, "raw": True, "stream": False, "options": options}
        return self.client.call("POST", "/api/generate", body, timeout=STEP_SECONDS)

    def answer(self) -> str:
        text = self.generate("The capital of France is", 8)["response"]
        if not text.strip():
            raise Failed("the answer is empty")
        return repr(text)

    def load(self) -> str:
        began = time.monotonic()
        text = self.answer()
        engine = self.client.call("GET", "/api/ps")["models"][0]["engine"]
        return f"{time.monotonic() - began:.2f} s to an answer of {engine}: {text}"

    def speed(self) -> str:
        words, tokens = (512, 128) if self.gpu else (64, 16)
        told = self.generate(" ".join(["word"] * words), tokens)
        read, written = told["prompt_eval_count"], told["eval_count"] - 1  # the first comes with the prompt
        return (
            f"prompt {read / told['prompt_eval_duration'] * 1e9:.1f} tokens/s ({read}), "
            f"generation {written / max(told['eval_duration'], 1) * 1e9:.1f} tokens/s ({written})"
        )

    def evict(self) -> str:
        engine = self.only_engine()
        self.client.call(
            "POST",
            "/api/generate",
            {"model": "checked", "keep_alive": 0, "stream": False},
            timeout=STEP_SECONDS,
        )
        wait_until(lambda: not engine.is_running(), "the engine still runs after its model was unloaded")
        # The daemon sees to what the process may have left before the model is gone from the list.
        wait_until(
            lambda: not self.client.call("GET", "/api/ps")["models"], "the model is still listed as loaded"
        )
        return f"process {engine.pid} is gone"

    def recover(self) -> str:
        self.answer()
        engine = self.only_engine()
        engine.send_signal(signal.SIGKILL)
        text = self.answer()
        other = self.only_engine()
        return f"killed process {engine.pid}, process {other.pid} answers: {text}"

    def engines(self) -> list[psutil.Process]:
        children = psutil.Process(self._running().pid).children(recursive=True)
        return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]

    def only_engine(self) -> psutil.Process:
        found = self.engines()
        if len(found) != 1:
            raise Failed(f"the daemon has {len(found)} engines, not one")
        return found[0]

    def _running(self) -> "subprocess.Popen[bytes]":
        if self.daemon is None or self.daemon.poll() is not None:
            raise Failed("the daemon does not run")
        return self.daemon

    def stop(self) -> str:
        engines, daemon = self.engines(), self._running()
        daemon.terminate()
        if (status := daemon.wait(STEP_SECONDS)) != 0:
            raise Failed(f"the daemon ended with status {status}: {self._log_end()}")
        if any(engine.is_running() for engine in engines):
            raise Failed("an engine outlived the daemon")
        return "no process is left"


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + STEP_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(otherwise)
        time.sleep(0.05)


def _nvidia_smi() -> str:
    if (program := shutil.which("nvidia-smi")) is None:
        return ""
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, timeout=STEP_SECONDS, check=True).stdout
    return f" (nvidia-smi: {'; '.join(said.split(chr(10))).rstrip('; ')})"


def memory_grew(before: int, after: int, model: Path) -> str:
    """Raises Failed unless the model's weights, at the least, went to the device. MiB."""
    if before - after < model.stat().st_size / MIB * 0.8:
        raise Failed(f"{before} MiB were free before the load and {after} after it")
    return f"{before - after} MiB are in use on the device"


def memory_came_back(before: int, after: int, model: Path) -> str:
    if before - after > model.stat().st_size / MIB * 0.2:
        raise Failed(f"{before} MiB were free before the load and {after} after the model was unloaded")
    return f"{after} MiB are free again"


def run(machine: Machine, report: Report) -> None:
    report.check("engine", machine.version)
    report.check_gpu("device", machine.device)
    report.check_gpu("layers", machine.layers)
    if not (report.check("daemon", machine.start) and report.check("pull", machine.pull)):
        return
    free = machine.free_memory() if report.gpu else 0
    report.check("load", machine.load)
    report.check_gpu("memory", lambda: memory_grew(free, machine.free_memory(), machine.model))
    report.check("speed", machine.speed)
    report.check("evict", machine.evict)
    report.check_gpu("freed", lambda: memory_came_back(free, machine.free_memory(), machine.model))
    report.check("recover", machine.recover)
    report.check("stop", machine.stop)


@contextlib.contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Machine]:
    """The machine; its daemon, engines and files are gone afterwards."""
    program = find_program(options.engine) if options.engine else None
    engine = [str(program)] if program else [sys.executable, "-I", embedded.__file__]
    with tempfile.TemporaryDirectory(prefix="mgr-gpu-") as folder:
        machine = Machine(
            engine, str(program or "wheel"), options.model.resolve(), Path(folder), gpu=not options.dry_run
        )
        try:
            yield machine
        finally:
            if machine.daemon is not None and machine.daemon.poll() is None:
                machine.daemon.kill()  # its engines end with it
                machine.daemon.wait()


def find_program(folder: Path) -> Path:
    """The llama-server of a version's folder, or of its bin. Raises Failed."""
    for place in (folder / "bin", folder):
        if (place / "llama-server").is_file():
            return (place / "llama-server").resolve()
    raise Failed(f"{folder} holds no llama-server and no bin/llama-server")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_check.sh", description="Checks a build of the engine on a GPU."
    )
    parser.add_argument(
        "--engine", type=Path, metavar="DIR", help="the build: its version's folder, or its bin/"
    )
    parser.add_argument("--model", type=Path, metavar="FILE", required=True, help="a GGUF file")
    parser.add_argument("--dry-run", action="store_true", help="no GPU here: leave out what needs one")
    options = parser.parse_args(arguments)
    if options.engine is None and not options.dry_run:
        parser.error("--engine is needed, except with --dry-run")
    if not options.model.is_file():
        parser.error(f"there is no file {options.model}")
    return options


def out_of_time(_: int, __: FrameType | None) -> None:
    raise OutOfTime(f"the checks took longer than {LIMIT_SECONDS} s")


def main() -> int:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(LIMIT_SECONDS)
    report = Report(gpu=not options.dry_run)
    try:
        with prepared(options) as machine:
            run(machine, report)
    except (Failed, OutOfTime) as error:
        print(f"FAIL  {error}")
        return 1
    print(f"{report.failed} failed, {report.skipped} skipped")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
