"""Finds a CUDA compiler and what belongs to it: a toolkit of the system, or the Python packages of NVIDIA.

The packages unpack into `site-packages/nvidia/cu<major>` as a toolkit without link names: `lib` has
`libcublas.so.13` and no `libcublas.so`, which a linker needs. `Cuda.links` says which names have to be made.
"""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.engines.toolchain import ToolMissing, pip_install

# The packages of the extra `cuda`, each with a file that it brings.
# One minor version, as the packages do not hold each other to one, and no newer than the drivers that are around.
PACKAGES_VERSION = "13.0.*"
PACKAGES = {
    "nvidia-cuda-nvcc": "bin/nvcc",
    "nvidia-nvvm": "nvvm/bin/cicc",
    "nvidia-cuda-crt": "include/crt/host_config.h",
    "nvidia-cuda-runtime": "include/cuda_runtime.h",
    "nvidia-cuda-cccl": "include/cccl/cub/cub.cuh",
    "nvidia-cublas": "include/cublas_v2.h",
}

_USUAL = ("usr/local/cuda/bin", "usr/local/cuda-*/bin", "opt/cuda/bin")
_DRIVERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "run/opengl-driver/lib",
)
_STUBS = ("lib64/stubs", "lib/stubs", "targets/*/lib/stubs", "lib/*/stubs", "lib/*-linux-gnu/stubs")
_LIBRARY = re.compile(r"(lib(?:cudart|cublas|cublasLt)\.so)\.\d+")
_RELEASE = re.compile(r"release (\d+)\.(\d+)")
_ASK_SECONDS = 60.0

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Cuda:
    """`root` is the toolkit's folder; `libraries` are the run-time ones of the packages, () for a system's toolkit;
    `driver` is the library of the driver, which exists where one is installed, and `driver_version` the newest CUDA
    that it runs; `stub` is what a toolkit has to link against instead."""

    nvcc: Path
    root: Path
    version: Version
    libraries: tuple[Path, ...] = ()
    driver: Path | None = None
    driver_version: Version | None = None
    stub: Path | None = None

    @property
    def packaged(self) -> bool:
        return bool(self.libraries)

    def links(self) -> dict[str, Path]:
        """Names that the linker looks for and that nobody made, with what they stand for."""
        made = {name: path for path in self.libraries for name in (path.name, _link_name(path.name))}
        if self.driver is not None and self.stub is None:
            made["libcuda.so"] = self.driver
        return made


def find(
    environment: Mapping[str, str],
    packages: Path,
    *,
    system: Path = Path("/"),
    ask: Callable[[Path], str] | None = None,
) -> Cuda | None:
    """The first compiler that works, None if there is none. `packages` is Python's folder of packages.

    Raises ToolMissing where the compiler is a Python package and others of its kind lack.
    """
    for nvcc in candidates(environment, packages, system):
        version = parse_version((ask or _version_text)(nvcc))
        if version is not None:
            root = nvcc.parent.parent
            packaged = root.is_relative_to(packages)
            driver = _first(system, _DRIVERS, "libcuda.so.1")
            return Cuda(
                nvcc,
                root,
                version,
                libraries=_libraries(root) if packaged else (),
                driver=driver,
                driver_version=_driver_version(driver) if driver else None,
                stub=_first(root, _STUBS, "libcuda.so"),
            )
    return None


def candidates(environment: Mapping[str, str], packages: Path, system: Path) -> Iterator[Path]:
    """Every nvcc there is: the one named by CUDA_HOME or CUDA_PATH, on PATH, in the usual places, in a package."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(variable):
            yield from _programs([Path(environment[variable]) / "bin"])
    if found := shutil.which("nvcc", path=environment.get("PATH", "")):
        yield Path(found).absolute()
    for pattern in _USUAL:
        yield from _programs(_newest(system.glob(pattern)))
    yield from _programs(_newest(packages.glob("nvidia/cu*/bin")))


def parse_version(text: str) -> Version | None:
    """Reads `nvcc --version`: "Cuda compilation tools, release 13.0, V13.0.88" is (13, 0)."""
    match = _RELEASE.search(text)
    return (int(match[1]), int(match[2])) if match else None


def _programs(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        if os.access(folder / "nvcc", os.X_OK):
            yield folder / "nvcc"


def _newest(folders: Iterable[Path]) -> list[Path]:
    """Folders named by a version, like cuda-12.8, the highest first."""
    return sorted(
        folders, key=lambda path: [int(part) for part in re.findall(r"\d+", path.parent.name)], reverse=True
    )


def _libraries(root: Path) -> tuple[Path, ...]:
    lacking = [package for package, file in PACKAGES.items() if not (root / file).exists()]
    found = tuple(path for path in sorted((root / "lib").glob("*.so.*")) if _LIBRARY.fullmatch(path.name))
    if lacking or not found:
        raise ToolMissing(
            f"the CUDA compiler in {root} is a Python package without what belongs to it; "
            f"{get(*(lacking or ['nvidia-cuda-runtime', 'nvidia-cublas']))} (or build with --backend cpu)"
        )
    return found


def get(*packages: str) -> str:
    """The sentence that says how to install these packages, or all of them."""
    return pip_install(*(f"'{name}=={PACKAGES_VERSION}'" for name in packages or PACKAGES))


def _link_name(library: str) -> str:
    """libcublas.so of libcublas.so.13."""
    match = _LIBRARY.fullmatch(library)
    return match[1] if match else library


def _first(root: Path, folders: Sequence[str], name: str) -> Path | None:
    return next((path for folder in folders for path in sorted(root.glob(f"{folder}/{name}"))), None)


def _version_text(nvcc: Path) -> str:
    try:
        done = subprocess.run(
            [nvcc, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _driver_version(library: Path) -> Version | None:
    """The newest CUDA that the driver runs, as cuDriverGetVersion tells: 12080 is (12, 8)."""
    number = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL(str(library)).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return (number.value // 1000, number.value % 1000 // 10) if failed == 0 and number.value > 0 else None


def dotted(version: Version) -> str:
    return ".".join(map(str, version))
