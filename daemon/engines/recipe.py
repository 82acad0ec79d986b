"""What to build and how: from what was asked for and what the machine has to cmake's command lines. Pure."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.engines import architectures
from daemon.engines import cuda as toolkits
from daemon.engines.cuda import Cuda
from daemon.engines.gpus import Gpu
from daemon.engines.source import Source
from daemon.engines.toolchain import Toolchain, ToolMissing
from daemon.errors import InvalidRequest

TARGETS = ("llama-server", "llama-quantize")

# A backend and the option of the engine's cmake files that turns it on.
BACKENDS = {
    "cpu": None,
    "cuda": "GGML_CUDA",
    "vulkan": "GGML_VULKAN",
    "hip": "GGML_HIP",
    "metal": "GGML_METAL",
}

# The backend of each vendor; Vulkan is for all of them.
_VENDORS = {"nvidia": "cuda", "amd": "hip", "apple": "metal"}

GIB = 1024**3
_GET_CUDA = toolkits.get()
# Seen at the largest files of the source: the server's own, and the kernels of matrix products and attention.
_JOB_BYTES = {"cpu": 3 * GIB // 2, "cuda": 3 * GIB, "hip": 3 * GIB}
# The build folder and a copy of the result; the CPU's takes 60 MB, a CUDA one 300 MB for each architecture.
_DISK_BYTES = {"cpu": GIB // 2, "metal": GIB // 2}
_MOST_DISK_BYTES = 3 * GIB
_MOST_NAME_LETTERS = 40  # of the architectures in the name of a version, which has a limit


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was asked for; None and () leave the choice to mgr."""

    backend: str | None = None
    architectures: tuple[str, ...] = ()
    portable: bool = False
    jobs: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """What is there. `memory` is in bytes that a build can take."""

    tools: Toolchain
    cuda: Cuda | None
    gpus: Sequence[Gpu]
    apple: bool
    processors: int
    memory: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """`options` are cmake's, without the folder and the build number; `gpus` are those here that the engine has to
    see; `by_hand` says that the architectures were asked for; `notes` are sentences for the user."""

    source: Source
    tools: Toolchain
    backend: str
    architectures: tuple[str, ...]
    portable: bool
    jobs: int
    options: tuple[str, ...]
    cuda: Cuda | None
    gpus: tuple[Gpu, ...]
    by_hand: bool
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Like b11312-cuda, or b11312-cuda-86+90 for architectures that were asked for. The commit stands for a
        number that is not known, and where both are not, what tells the folder from others."""
        source = self.source
        build = f"b{source.number}" if source.number is not None else source.commit
        parts = [build or f"local-{_digest(str(source.folder))[:6]}", self.backend]
        if self.by_hand:
            listed = "+".join(self.architectures)
            parts.append(listed if len(listed) <= _MOST_NAME_LETTERS else _digest(listed)[:8])
        return "-".join([*parts, *(["portable"] if self.portable else [])])

    @property
    def key(self) -> str:
        """Names the build folder. What git counts is no part of it: a newer commit builds on what is there."""
        source, tools = self.source, self.tools
        parts = (str(source.folder), source.revision, tools.generator, *tools.compilers, *self.options)
        return _digest("\0".join(parts))[:16]

    @property
    def disk(self) -> int:
        """Bytes to have free before it starts."""
        return _DISK_BYTES.get(self.backend, _MOST_DISK_BYTES)

    def configure(self, folder: Path, links: Path) -> tuple[str, ...]:
        """The command that prepares `folder`; `links` is where the linker finds `Cuda.links`."""
        tools, source = self.tools, self.source
        identity = {"LLAMA_BUILD_NUMBER": source.number, "LLAMA_BUILD_COMMIT": source.commit or None}
        return (
            str(tools.cmake),
            *("-S", str(source.folder), "-B", str(folder), "-G", tools.generator),
            f"-DCMAKE_MAKE_PROGRAM={tools.builder}",
            *self.options,
            *(f"-D{name}={value}" for name, value in identity.items() if value is not None),
            *([f"-DCMAKE_LIBRARY_PATH={links}"] if self.cuda and self.cuda.links() else []),
        )

    def compile(self, folder: Path) -> tuple[str, ...]:
        targets = ("--target", *TARGETS)
        return (str(self.tools.cmake), "--build", str(folder), *targets, "--parallel", str(self.jobs))


def decide(wishes: Wishes, source: Source, machine: Machine) -> Recipe:
    """Raises InvalidRequest for what cannot be, ToolMissing for a CUDA build without a compiler."""
    backend = _backend(wishes, machine)
    needed = BACKENDS[backend]
    if needed is not None and needed not in source.knows:
        raise InvalidRequest(
            f"the source in {source.folder} has no option {needed}: it is too old, or no llama.cpp"
        )
    cuda = machine.cuda if backend == "cuda" else None
    chosen, notes = (
        ((), ())
        if cuda is None
        else architectures.choose(wishes.architectures, wishes.portable, cuda, machine.gpus)
    )
    jobs, bound = jobs_for(backend, machine.processors, machine.memory)
    if backend == "cpu" and not wishes.backend:
        notes += _unused(machine.gpus)
    if wishes.jobs is None and bound:
        notes += (_memory_bound(backend, jobs, machine),)
    return Recipe(
        source=source,
        tools=machine.tools,
        backend=backend,
        architectures=chosen,
        portable=wishes.portable,
        jobs=wishes.jobs or jobs,
        options=_options(backend, wishes.portable, chosen, source, machine),
        cuda=cuda,
        gpus=tuple(gpu for gpu in machine.gpus if backend in (_VENDORS[gpu.vendor], "vulkan")),
        by_hand=bool(wishes.architectures),
        notes=notes,
    )


def jobs_for(backend: str, processors: int, memory: int) -> tuple[int, bool]:
    """How many compilers run at once, and whether memory, not the processors, is the bound."""
    fit = max(1, memory // _job_bytes(backend))
    return min(processors, fit), fit < processors


def _backend(wishes: Wishes, machine: Machine) -> str:
    best = "metal" if machine.apple else "cuda" if machine.cuda or wishes.architectures else "cpu"
    chosen = wishes.backend or best
    if chosen not in BACKENDS:
        raise InvalidRequest(f"there is no backend {chosen!r}; there are {', '.join(BACKENDS)}")
    if chosen == "metal" and not machine.apple:
        raise InvalidRequest("the backend metal is for macOS; here are cpu, cuda, vulkan and hip")
    if chosen == "cuda" and machine.cuda is None:
        raise ToolMissing(
            f"a build for cuda needs NVIDIA's compiler nvcc, which is not on PATH, in CUDA_HOME or in a usual "
            f"place; {_GET_CUDA}"
        )
    if wishes.architectures and chosen != "cuda":
        raise InvalidRequest(f"--cuda-arch is for the backend cuda, and this build is for {chosen}")
    return chosen


def _options(
    backend: str, portable: bool, architectures: Sequence[str], source: Source, machine: Machine
) -> tuple[str, ...]:
    wanted = {
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_CURL": "OFF",
        "LLAMA_OPENSSL": "OFF",  # an engine downloads nothing
        "LLAMA_USE_PREBUILT_UI": "OFF",  # ... and neither does its build
        "GGML_CCACHE": "OFF",  # said below, for CUDA's compiler too
        **{name: _on(kind == backend) for kind, name in BACKENDS.items() if name},
        "GGML_NATIVE": _on(not portable),
        "GGML_BACKEND_DL": _on(portable),
        "GGML_CPU_ALL_VARIANTS": _on(portable),
    }
    known = {name: value for name, value in wanted.items() if name in source.knows}
    chosen = {"CMAKE_BUILD_TYPE": "Release", **known}
    packaged = None
    if backend == "cuda" and machine.cuda is not None:
        chosen |= _cuda_options(machine.cuda, architectures, portable)
        packaged = machine.cuda.root / "lib" if machine.cuda.packaged else None
    if machine.tools.ccache is not None:
        languages = ("C", "CXX", "CUDA") if backend == "cuda" else ("C", "CXX")
        chosen |= {f"CMAKE_{name}_COMPILER_LAUNCHER": str(machine.tools.ccache) for name in languages}
    chosen |= _run_path(machine.apple, packaged)
    return tuple(f"-D{name}={value}" for name, value in chosen.items())


def _cuda_options(cuda: Cuda, architectures: Sequence[str], portable: bool) -> Mapping[str, str]:
    """Virtual memory of the GPU needs the driver's library: where the engine is linked, and, unless it loads its
    backends at run time, where it starts, too."""
    linked = cuda.driver is not None or (portable and cuda.stub is not None)
    return {
        "CMAKE_CUDA_COMPILER": str(cuda.nvcc),
        "CUDAToolkit_ROOT": str(cuda.root),
        "CMAKE_CUDA_ARCHITECTURES": ";".join(architectures),
        "GGML_CUDA_NO_VMM": _on(not linked),
        # The compiler of a package may look for its own libraries in `lib64`, which the packages do not have.
        **({"CMAKE_CUDA_FLAGS": f"-L{shlex.quote(str(cuda.root / 'lib'))}"} if cuda.packaged else {}),
    }


def _run_path(apple: bool, packaged: Path | None) -> Mapping[str, str]:
    """A program finds the libraries beside it wherever its folder is moved to, then those it was linked with.

    The Python packages are linked through names of our own, so their folder is named.
    """
    origin = "@loader_path" if apple else "$ORIGIN"
    return {
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
        "CMAKE_INSTALL_RPATH": f"{origin};{packaged}" if packaged else origin,
        "CMAKE_INSTALL_RPATH_USE_LINK_PATH": _on(packaged is None),
    }


def _unused(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """What to say of the GPUs here when mgr chose the CPU."""
    names = {gpu.vendor: gpu.name for gpu in gpus}
    notes = []
    if "nvidia" in names:
        notes.append(
            f"there is an NVIDIA GPU and no CUDA compiler, so this build uses the CPU only; {_GET_CUDA}"
        )
    if "amd" in names:
        notes.append(
            f"there is an AMD GPU ({names['amd']}), and this build uses the CPU only; for the GPU, build with "
            "--backend vulkan, or with --backend hip where ROCm is installed"
        )
    return tuple(notes)


def _memory_bound(backend: str, jobs: int, machine: Machine) -> str:
    return (
        f"{jobs} of {machine.processors} processors are used: {machine.memory / GIB:.1f} GiB of memory are free, "
        f"and a job may take {_job_bytes(backend) / GIB:.1f}"
    )


def _job_bytes(backend: str) -> int:
    return _JOB_BYTES.get(backend, _JOB_BYTES["cpu"])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _on(value: bool) -> str:
    return "ON" if value else "OFF"
