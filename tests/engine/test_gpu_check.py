"""`scripts/gpu_check.sh` where no GPU is: what can be checked without one."""

import subprocess
import sys
from pathlib import Path

from daemon.store.models import Store
from tests.engine.conftest import RealEngine

SCRIPT = Path(__file__).parents[2] / "scripts/gpu_check.sh"


def gpu_check(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [str(SCRIPT), "--python", sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def test_without_a_gpu_it_checks_what_it_can(engine: RealEngine, pulled: Path) -> None:
    model = Store(pulled).open().resolve("smollm2").path
    build = [] if engine.setting == "wheel" else ["--engine", Path(engine.setting).parents[1]]
    done = gpu_check("--dry-run", "--model", model, *build)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    assert [tuple(line.split()[:2]) for line in lines] == [
        ("ok", "engine"),
        ("skip", "device"),
        ("skip", "layers"),
        ("ok", "daemon"),
        ("ok", "pull"),
        ("ok", "load"),
        ("skip", "memory"),
        ("ok", "speed"),
        ("ok", "evict"),
        ("skip", "freed"),
        ("ok", "recover"),
        ("ok", "stop"),
    ]
    assert last == "0 failed, 4 skipped"


def test_a_folder_without_an_engine_is_told(pulled: Path, tmp_path: Path) -> None:
    model = Store(pulled).open().resolve("smollm2").path
    done = gpu_check("--engine", tmp_path, "--model", model)
    assert (done.returncode, done.stdout) == (
        1,
        f"FAIL  {tmp_path} holds no llama-server and no bin/llama-server\n",
    )
