"""A tiny CMake project that `mgr engine build` takes for the engine's source: its llama-server is the scripted engine,
its llama-quantize a program with a shared library."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from daemon.engines.versions import Engines
from tests.fakes.daemon import ENGINE

GUARD = 120.0  # seconds; nothing waits that long unless something hangs

_ROOT = Path(__file__).resolve().parents[2]
_COMMAND = (sys.executable, "-m", "cli.main", "engine", "build", "--build-number", "7")

CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(tiny CXX)
option(LLAMA_BUILD_TESTS "build tests" ON)
option(GGML_CUDA "use CUDA" OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_library(llama SHARED llama.cpp)
set_target_properties(llama PROPERTIES VERSION 0.1.2 SOVERSION 0)
add_executable(llama-quantize quantize.cpp)
target_link_libraries(llama-quantize PRIVATE llama)
add_custom_command(OUTPUT first COMMAND sh ${CMAKE_SOURCE_DIR}/first.sh && ${CMAKE_COMMAND} -E touch first)
add_custom_command(OUTPUT held DEPENDS first
                   COMMAND sh ${CMAKE_SOURCE_DIR}/hold.sh && ${CMAKE_COMMAND} -E touch held)
set(SERVER ${CMAKE_BINARY_DIR}/bin/llama-server)
add_custom_command(OUTPUT ${SERVER} DEPENDS held ${CMAKE_SOURCE_DIR}/server.sh
                   COMMAND ${CMAKE_COMMAND} -E copy ${CMAKE_SOURCE_DIR}/server.sh ${SERVER})
add_custom_target(llama-server DEPENDS ${SERVER})
message(STATUS "number ${LLAMA_BUILD_NUMBER}, tests ${LLAMA_BUILD_TESTS}")
if(GGML_CUDA)
    find_package(CUDAToolkit REQUIRED)
    enable_language(CUDA)
    add_library(ggml-cuda SHARED cuda.cu)
    target_link_libraries(ggml-cuda PRIVATE CUDA::cudart CUDA::cublas)
    target_link_libraries(llama PRIVATE ggml-cuda)
endif()
"""

_CUDA = """
#include <cublas_v2.h>
__global__ void kernel(float *x) { x[threadIdx.x] *= 2; }
int release() {
    int major = 0;
    kernel<<<1, 1>>>(nullptr);
    return cublasGetProperty(MAJOR_VERSION, &major) == CUBLAS_STATUS_SUCCESS ? major : -1;
}
"""


class EngineSource:
    """While the file `hold` exists, its build waits. `folder` holds the source, the engines and a HOME."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "source"
        self.engines = Engines(folder / "engines")
        self.hold = self.folder / "hold"
        self._script = folder / "script.json"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("MGR_", "XDG_"))},
            "HOME": str(folder),
            "PYTHONPATH": str(_ROOT),
            "MGR_ENGINES": str(self.engines.folder),
            "MGR_API_KEY": "sesame",
            "CLICOLOR_FORCE": "1",
            "NINJA_STATUS": "mine ",
        }
        self.folder.mkdir()
        self.write("CMakeLists.txt", CMAKE)
        self.write("llama.cpp", 'const char *said() { return "tiny"; }\n')
        self.write(
            "quantize.cpp", "#include <cstdio>\nconst char *said();\nint main() { std::puts(said()); }\n"
        )
        self.write("cuda.cu", _CUDA)
        self.write("first.sh", f"echo run >> {self.folder}/first-runs; env > {self.folder}/environment\n")
        self.write(
            "hold.sh", f"echo $$ > {self.folder}/held-by; while [ -e {self.hold} ]; do sleep 0.02; done\n"
        )
        self.write(
            "server.sh", f'#!/bin/sh\nexec "{sys.executable}" "{ENGINE}" --script {self._script} "$@"\n'
        )
        (self.folder / "server.sh").chmod(0o755)
        self.script()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def script(self, **behaviour: Any) -> None:
        """How the engine that is built from here behaves."""
        log = str(self._script.with_name("events.jsonl"))
        self._script.write_text(json.dumps({"log": log, "default": behaviour}))

    def start(self, *arguments: str, **streams: Any) -> "subprocess.Popen[str]":
        """Starts `mgr engine build`, for the CPU unless the arguments say more."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        command = [*_COMMAND, "--source", str(self.folder), "--backend", "cpu", *arguments]
        return subprocess.Popen(command, env=self.environment, text=True, **pipes)

    def build(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*arguments)
        out, err = process.communicate(timeout=GUARD)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def until_held(self) -> psutil.Process:
        """Waits until the build waits. Returns the process that does."""
        deadline = time.monotonic() + GUARD
        place = self.folder / "held-by"
        while not (place.exists() and place.read_text().endswith("\n")):
            assert time.monotonic() < deadline, "the build did not get so far"
            time.sleep(0.02)
        return psutil.Process(int(place.read_text()))
