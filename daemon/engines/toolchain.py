"""The programs that a build needs, where they are, and what installs those that are missing."""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from daemon.errors import MgrError

# What installs a thing, by the package manager that is there. The first word is looked for on PATH.
_COMPILER = {
    "apt-get": "sudo apt-get install g++",
    "dnf": "sudo dnf install gcc-c++",
    "pacman": "sudo pacman -S gcc",
    "zypper": "sudo zypper install gcc-c++",
    "apk": "sudo apk add g++",
    "xcode-select": "xcode-select --install",
}
_VULKAN = {
    "apt-get": "sudo apt-get install libvulkan-dev glslc spirv-headers",
    "dnf": "sudo dnf install vulkan-loader-devel glslc spirv-headers-devel",
    "pacman": "sudo pacman -S vulkan-headers vulkan-icd-loader shaderc spirv-headers",
    "zypper": "sudo zypper install vulkan-devel shaderc spirv-headers",
    "apk": "sudo apk add vulkan-loader-dev shaderc spirv-headers",
    "brew": "brew install vulkan-headers vulkan-loader shaderc spirv-headers",
}
_HIP: dict[str, str] = {}  # AMD's own repositories, and different for each distribution

# What cmake reads when it configures a folder for the first time, and never again.
_COMPILERS = (
    *("CC", "CXX", "CUDACXX", "CUDAHOSTCXX", "HIPCXX"),
    *("CFLAGS", "CXXFLAGS", "CUDAFLAGS", "HIPFLAGS", "LDFLAGS"),
)

# A backend's program, what it is called for a person, what installs it.
BACKEND_PROGRAMS = {
    "vulkan": ("glslc", "Vulkan's shader compiler glslc, with its headers", _VULKAN),
    "hip": ("hipconfig", "ROCm 6.1 or newer, with hipconfig on PATH", _HIP),
}


class ToolMissing(MgrError):
    """A program that a build needs is not there; the message has the command that installs it."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Programs by their path. `builder` is what cmake's generator drives, ninja or make; `compilers` are the
    variables of the environment, like "CXX=clang++", that choose compilers and their flags."""

    cmake: Path
    generator: str
    builder: Path
    ccache: Path | None = None
    compilers: tuple[str, ...] = ()


def find(environment: Mapping[str, str], beside: Path) -> Toolchain:
    """The programs on PATH and in `beside`, the folder of Python's own. Raises ToolMissing with all that lack."""
    search = _search(environment, beside)
    _check_named(environment, search)
    cmake = _which("cmake", search)
    builders = {"Ninja": _which("ninja", search), "Unix Makefiles": _which("make", search)}
    generator, builder = next(((name, path) for name, path in builders.items() if path), ("", None))
    needs = []
    if cmake is None or builder is None:
        lacking = [name for name, path in (("cmake", cmake), ("ninja", builder)) if path is None]
        needs.append(f"without {' and '.join(lacking)} ({pip_install('cmake', 'ninja')})")
    if not environment.get("CXX") and not any(_which(name, search) for name in ("c++", "g++", "clang++")):
        needs.append(f"without a C++ compiler ({_installs(_COMPILER, search)})")
    if needs or cmake is None or builder is None:
        raise ToolMissing(f"the engine cannot be built {' and '.join(needs)}")
    compilers = tuple(f"{name}={environment[name]}" for name in _COMPILERS if environment.get(name))
    return Toolchain(cmake, generator, builder, _which("ccache", search), compilers)


def require(backend: str, environment: Mapping[str, str]) -> None:
    """Raises ToolMissing where the compiler of that backend is not on PATH. CUDA's has a module of its own."""
    if backend in BACKEND_PROGRAMS:
        program, shown, commands = BACKEND_PROGRAMS[backend]
        search = environment.get("PATH", "")
        if _which(program, search) is None:
            raise ToolMissing(f"a build for {backend} needs {shown}; {_installs(commands, search)}")


def pip_install(*packages: str) -> str:
    """How to install Python packages beside mgr; environments that uv made have no pip."""
    pip = importlib.util.find_spec("pip") is not None
    command = f"{sys.executable} -m pip install" if pip else f"uv pip install --python {sys.executable}"
    return f"install with: {command} {' '.join(packages)}"


def _installs(commands: Mapping[str, str], search: str) -> str:
    """The command for the package manager that is there."""
    for manager, command in commands.items():
        if _which(manager, search) is not None:
            return f"install with: {command}"
    return f"install it in the way of your system, {platform.system()}"


def _check_named(environment: Mapping[str, str], search: str) -> None:
    """Raises ToolMissing where the user named a compiler that is not there."""
    for variable in ("CC", "CXX"):
        for name in environment.get(variable, "").split()[:1]:
            if _which(name, search) is None:
                raise ToolMissing(f"{variable} names {name!r}, which is not on PATH; correct it or unset it")


def _search(environment: Mapping[str, str], beside: Path) -> str:
    return os.pathsep.join(filter(None, (str(beside), environment.get("PATH", ""))))


def _which(name: str, search: str) -> Path | None:
    found = shutil.which(name, path=search)
    return Path(found).absolute() if found else None
