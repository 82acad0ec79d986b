"""`scripts/gpu_check.sh` with an engine that pretends to have a GPU; every check, passed and failed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.daemon import ENGINE
from tests.fakes.gguf_files import gguf

SCRIPT = Path(__file__).parents[2] / "scripts/gpu_check.sh"
CHECKS = (
    "engine",
    "device",
    "layers",
    "daemon",
    "pull",
    "load",
    "memory",
    "speed",
    "evict",
    "freed",
    "recover",
    "stop",
)

# The memory of the device is taken while the process that served last is there.
PROGRAM = """#!/bin/sh
cd "$(dirname "$0")"
case "$*" in
*--list-devices*)
    free={free}
    if [ -e pid ] && kill -0 "$(cat pid)" 2>/dev/null; then free={left}; fi
    printf 'Available devices:\\n  CUDA0: NVIDIA Pretender (80000 MiB, %s MiB free)\\n' "$free" ;;
*--log-verbosity*)
    echo "load_tensors: offloaded {offloaded}/31 layers to GPU"
    echo "srv  llama_server: model loaded"
    exec sleep 60 ;;
*)
    case "$*" in *--model*) echo $$ >pid ;; esac
    exec "{python}" "{engine}" --script script.json "$@" ;;
esac
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf({"general.name": "m", "llama.context_length": 8192}))
    return path


def gpu_check(folder: Path, model: Path, **pretended: object) -> tuple[int, dict[str, str], str]:
    """The exit code, each check's outcome, and the output."""
    program = folder / "build/bin/llama-server"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM.format(python=sys.executable, engine=ENGINE, **pretended))
    program.chmod(0o755)
    script = {"log": str(folder / "events.jsonl"), "default": {}, "models": {}}
    (program.parent / "script.json").write_text(json.dumps(script))
    command = [
        str(SCRIPT),
        "--python",
        sys.executable,
        "--engine",
        str(folder / "build"),
        "--model",
        str(model),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    rows = re.findall(r"^(ok|FAIL|skip) +(\w+)", done.stdout, re.MULTILINE)
    return done.returncode, {name: outcome for outcome, name in rows}, done.stdout + done.stderr


def test_every_check_passes_on_a_gpu(tmp_path: Path, model: Path) -> None:
    code, outcomes, text = gpu_check(tmp_path, model, free=70000, left=60000, offloaded=31)
    assert code == 0, text
    assert list(outcomes.items()) == [(check, "ok") for check in CHECKS]
    assert "CUDA0: NVIDIA Pretender, 80000 MiB" in text
    assert "offloaded 31/31 layers to GPU" in text
    assert "10000 MiB are in use on the device" in text
    assert "prompt 4666.7 tokens/s (7), generation 1200.0 tokens/s (3)" in text


def test_a_model_that_stays_in_the_memory_of_the_machine_fails(tmp_path: Path, model: Path) -> None:
    code, outcomes, text = gpu_check(tmp_path, model, free=70000, left=70000, offloaded=12)
    assert code == 1
    assert outcomes == {check: "FAIL" if check in ("layers", "memory") else "ok" for check in CHECKS}
    assert "offloaded 12/31 layers to GPU" in text
    assert "70000 MiB were free before the load and 70000 after it" in text
