"""The CUDA compiler of the Python packages: a tiny project is built to its end, the real engine's source is configured,
and one of its kernels compiled. No GPU is needed.

Needs the extra `cuda`; the real engine's source is a folder that MGR_TEST_ENGINE_SOURCE names.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from daemon.engines import architectures, cuda, gpus
from tests.fakes.engine_source import EngineSource

ROOT = Path(__file__).resolve().parents[2]
GUARD = 200.0  # seconds; nothing waits that long unless something hangs
KERNEL = "ggml/src/ggml-cuda/CMakeFiles/ggml-cuda.dir/fill.cu.o"

_SOURCE = os.environ.get("MGR_TEST_ENGINE_SOURCE", "")
_PACKAGES = Path(sysconfig.get_path("purelib"))
_COMPILERS = sorted(_PACKAGES.glob("nvidia/cu*/bin/nvcc"))
_TOOLKIT = str(_COMPILERS[-1].parents[1]) if _COMPILERS else ""

pytestmark = pytest.mark.skipif(not _COMPILERS, reason="the packages of the extra `cuda` are not installed")
needs_source = pytest.mark.skipif(not _SOURCE, reason="MGR_TEST_ENGINE_SOURCE names no source of llama.cpp")


CALLS_CUDA = """
#include <string>
int release();
const char *said() { static const auto text = "CUDA " + std::to_string(release()); return text.c_str(); }
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MGR_", "XDG_"))}
    return {
        **kept,
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "MGR_ENGINES": str(tmp_path / "engines"),
        "CUDA_HOME": _TOOLKIT,
    }


def configured(environment: dict[str, str], *arguments: str) -> tuple[str, str]:
    """Runs `mgr engine build` until it compiles, then presses Ctrl-C. Returns what it said, and its log."""
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "engine",
        "build",
        "--source",
        _SOURCE,
        "--jobs",
        "1",
        *arguments,
    ]
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    said = ""
    with process:
        for line in process.stderr or ():
            said += line
            if line == "compiling the engine\n":
                process.send_signal(signal.SIGINT)
        status = process.wait(GUARD)
    assert status == 130, said
    log = Path(chosen(said)["log"])
    return said, log.read_text()


def chosen(said: str) -> dict[str, str]:
    rows = (line.split(maxsplit=1) for line in said.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


@needs_source
def test_cuda_is_chosen_and_says_for_which_architectures(environment: dict[str, str]) -> None:
    found = cuda.find(environment, _PACKAGES)
    assert found is not None
    assert found.packaged
    expected, _ = architectures.choose((), False, found, gpus.present())
    said, log = configured(environment)
    rows = chosen(said)
    assert rows["backend"] == f"cuda {cuda.dotted(found.version)} ({found.nvcc})"
    assert rows["architectures"] == ", ".join(expected)
    assert f"$ {rows['cmake']}" in log.splitlines()
    if found.driver is None:
        assert "-DGGML_CUDA_NO_VMM=ON" in shlex.split(rows["cmake"])
    assert "-- Including CUDA backend" in log


@needs_source
def test_one_kernel_is_compiled(environment: dict[str, str]) -> None:
    said, log = configured(environment, "--cuda-arch", "86-real")
    assert "Using CMAKE_CUDA_ARCHITECTURES=86-real" in log
    line = shlex.split(chosen(said)["cmake"])
    folder = Path(line[line.index("-B") + 1])
    subprocess.run(
        [line[0], "--build", folder, "--target", KERNEL], check=True, timeout=GUARD, env=environment
    )
    assert b".nv_fatbin" in (folder / KERNEL).read_bytes()


def test_a_build_finds_its_libraries_wherever_it_is_moved(tmp_path: Path) -> None:
    """Also when the packages have gone, where hard links could be made."""
    project = EngineSource(tmp_path)
    project.environment["CUDA_HOME"] = _TOOLKIT
    project.write("llama.cpp", CALLS_CUDA)
    done = project.build("--backend", "cuda", "--cuda-arch", "86-real")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Built b7-cuda-86-real ")
    built = project.engines.get("b7-cuda-86-real")
    assert built.record.architectures == ("86-real",)
    shutil.rmtree(project.engines.folder / "builds")
    moved = built.folder.rename(tmp_path / "moved") / "bin"
    major = "".join(filter(str.isdigit, Path(_TOOLKIT).name))
    assert subprocess.check_output([moved / "llama-quantize"], text=True) == f"CUDA {major}\n"
    if (moved / f"libcublas.so.{major}").exists():
        libraries = subprocess.check_output(["ldd", moved / "libggml-cuda.so"], text=True)
        assert f"libcublas.so.{major} => {moved}/" in libraries
