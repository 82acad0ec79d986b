"""Which GPUs this machine has, as its drivers tell."""

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ASK_SECONDS = 20.0  # a driver that wakes a sleeping GPU takes seconds
WSL_SMI = Path("/usr/lib/wsl/lib/nvidia-smi")
NVIDIA_PROC = Path("/proc/driver/nvidia/gpus")
AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


@dataclass(frozen=True, slots=True)
class Gpu:
    """`compute_capability` is NVIDIA's, like "9.0"; None where nothing tells it."""

    name: str
    vendor: Literal["nvidia", "amd", "apple"]
    compute_capability: str | None = None


def present() -> tuple[Gpu, ...]:
    """The GPUs whose driver is loaded, () if there are none. Never raises; blocks for ASK_SECONDS at most."""
    return (_nvidia() or _nvidia_driver(NVIDIA_PROC)) + _amd(AMD_NODES) + _apple()


def parse_smi(text: str) -> tuple[Gpu, ...]:
    """Reads `nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader`, a line for each GPU."""
    gpus = []
    for line in text.splitlines():
        name, comma, capability = (part.strip() for part in line.rpartition(","))
        major, dot, minor = capability.partition(".")
        if comma and name and major.isdigit() and dot and minor.isdigit():
            gpus.append(Gpu(name, "nvidia", capability))
    return tuple(gpus)


def parse_nvidia_information(text: str) -> Gpu | None:
    """Reads `/proc/driver/nvidia/gpus/<address>/information`: the model's name and no more."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model" and value.strip():
            return Gpu(value.strip(), "nvidia")
    return None


def parse_kfd_node(properties: str, name: str) -> Gpu | None:
    """Reads a node of `/sys/class/kfd/kfd/topology/nodes`; None for one that is a processor."""
    fields = dict(line.split(maxsplit=1) for line in properties.splitlines() if len(line.split()) == 2)
    if fields.get("simd_count", "0") == "0":
        return None
    return Gpu(name.strip() or "AMD GPU", "amd")


def _nvidia() -> tuple[Gpu, ...]:
    program = shutil.which("nvidia-smi") or (str(WSL_SMI) if WSL_SMI.exists() else None)
    if program is None:
        return ()
    command = [program, "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_smi(done.stdout.decode(errors="replace")) if done.returncode == 0 else ()


def _nvidia_driver(folder: Path) -> tuple[Gpu, ...]:
    found = (parse_nvidia_information(_text(path)) for path in sorted(folder.glob("*/information")))
    return tuple(gpu for gpu in found if gpu is not None)


def _amd(folder: Path) -> tuple[Gpu, ...]:
    nodes = sorted(folder.glob("*/properties"))
    found = (parse_kfd_node(_text(path), _text(path.with_name("name"))) for path in nodes)
    return tuple(gpu for gpu in found if gpu is not None)


def _apple() -> tuple[Gpu, ...]:
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return (Gpu("Apple GPU", "apple"),)
    return ()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
