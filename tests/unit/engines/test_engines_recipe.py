from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.engines.cuda import Cuda
from daemon.engines.gpus import Gpu
from daemon.engines.recipe import GIB, Machine, Recipe, Wishes, decide, jobs_for
from daemon.engines.source import Source
from daemon.engines.toolchain import Toolchain, ToolMissing
from daemon.errors import InvalidRequest

KNOWN = frozenset(
    {
        *("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_OPENSSL", "LLAMA_USE_PREBUILT_UI"),
        *("GGML_CUDA", "GGML_VULKAN", "GGML_HIP", "GGML_METAL", "GGML_CCACHE"),
        *("GGML_NATIVE", "GGML_BACKEND_DL", "GGML_CPU_ALL_VARIANTS"),
    }
)
SOURCE = Source(Path("/src/llama.cpp"), 11312, "0c1e57098", KNOWN)
TOOLS = Toolchain(Path("/t/cmake"), "Ninja", Path("/t/ninja"))
SYSTEM = Cuda(Path("/usr/local/cuda/bin/nvcc"), Path("/usr/local/cuda"), (12, 8))
PACKAGED = Cuda(
    Path("/s/nvidia/cu13/bin/nvcc"),
    Path("/s/nvidia/cu13"),
    (13, 0),
    libraries=(Path("/s/nvidia/cu13/lib/libcublas.so.13"),),
)
DRIVER = Path("/usr/lib64/libcuda.so.1")
STUB = Path("/usr/local/cuda/lib64/stubs/libcuda.so")
H200 = Gpu("NVIDIA H200", "nvidia", "9.0")
NAVI = Gpu("navi21", "amd")
MACHINE = Machine(TOOLS, None, (), apple=False, processors=8, memory=64 * GIB)
BUILD = Path("/e/builds/key")
LINKS = Path("/e/builds/key/mgr/links")


def made(machine: Machine = MACHINE, source: Source = SOURCE, **wishes: Any) -> Recipe:
    return decide(Wishes(**wishes), source, machine)


def options(recipe: Recipe) -> dict[str, str]:
    """What cmake is told with -D."""
    line = recipe.configure(BUILD, LINKS)
    return dict(argument[2:].split("=", 1) for argument in line if argument.startswith("-D"))


def with_cuda(cuda: Cuda | None, *gpus: Gpu) -> Machine:
    return replace(MACHINE, cuda=cuda, gpus=gpus)


def test_a_build_for_the_processor_here_in_full() -> None:
    assert made().configure(BUILD, LINKS) == (
        *("/t/cmake", "-S", "/src/llama.cpp", "-B", "/e/builds/key", "-G", "Ninja"),
        "-DCMAKE_MAKE_PROGRAM=/t/ninja",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        "-DLLAMA_OPENSSL=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        "-DGGML_CCACHE=OFF",
        "-DGGML_CUDA=OFF",
        "-DGGML_VULKAN=OFF",
        "-DGGML_HIP=OFF",
        "-DGGML_METAL=OFF",
        "-DGGML_NATIVE=ON",
        "-DGGML_BACKEND_DL=OFF",
        "-DGGML_CPU_ALL_VARIANTS=OFF",
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN",
        "-DCMAKE_INSTALL_RPATH_USE_LINK_PATH=ON",
        "-DLLAMA_BUILD_NUMBER=11312",
        "-DLLAMA_BUILD_COMMIT=0c1e57098",
    )


def test_the_programs_that_are_compiled() -> None:
    assert made(jobs=3).compile(BUILD) == (
        *("/t/cmake", "--build", "/e/builds/key", "--target", "llama-server", "llama-quantize"),
        *("--parallel", "3"),
    )


def test_a_cuda_compiler_chooses_cuda_for_the_gpus_present() -> None:
    recipe = made(with_cuda(SYSTEM, H200, Gpu("RTX 3090", "nvidia", "8.6")))
    assert (recipe.backend, recipe.architectures, recipe.name) == (
        "cuda",
        ("86-real", "90-real"),
        "b11312-cuda",
    )
    told = options(recipe)
    assert told["GGML_CUDA"] == "ON"
    assert told["CMAKE_CUDA_ARCHITECTURES"] == "86-real;90-real"
    assert told["CMAKE_CUDA_COMPILER"] == "/usr/local/cuda/bin/nvcc"
    assert told["CUDAToolkit_ROOT"] == "/usr/local/cuda"


def test_without_a_gpu_the_portable_list_is_taken() -> None:
    recipe = made(with_cuda(SYSTEM))
    assert recipe.architectures[0] == "50-virtual"
    assert options(recipe)["CMAKE_CUDA_ARCHITECTURES"] == ";".join(recipe.architectures)
    assert any("no NVIDIA GPU was seen" in note for note in recipe.notes)


def test_architectures_that_were_asked_for() -> None:
    assert made(with_cuda(SYSTEM, H200), architectures=("86",)).architectures == ("86",)
    with pytest.raises(
        InvalidRequest, match="--cuda-arch is for the backend cuda, and this build is for cpu"
    ):
        made(with_cuda(SYSTEM), backend="cpu", architectures=("86",))


@pytest.mark.parametrize(
    ("driver", "stub", "portable", "no_vmm"),
    [
        (None, None, False, "ON"),
        (DRIVER, None, False, "OFF"),
        (DRIVER, STUB, False, "OFF"),
        # It links with a stub alone, but would not start here, unless it loads its backends at run time.
        (None, STUB, False, "ON"),
        (None, STUB, True, "OFF"),
        (None, None, True, "ON"),
    ],
)
def test_virtual_memory_of_the_gpu_needs_the_drivers_library(
    driver: Path | None, stub: Path | None, portable: bool, no_vmm: str
) -> None:
    cuda = replace(SYSTEM, driver=driver, stub=stub)
    assert options(made(with_cuda(cuda, H200), portable=portable))["GGML_CUDA_NO_VMM"] == no_vmm


def test_the_packages_are_linked_through_names_of_our_own() -> None:
    told = options(made(with_cuda(PACKAGED, H200)))
    assert told["CMAKE_LIBRARY_PATH"] == str(LINKS)
    assert told["CMAKE_INSTALL_RPATH"] == "$ORIGIN;/s/nvidia/cu13/lib"
    assert told["CMAKE_INSTALL_RPATH_USE_LINK_PATH"] == "OFF"
    assert told["CMAKE_CUDA_FLAGS"] == "-L/s/nvidia/cu13/lib"


def test_a_toolkit_of_the_system_needs_no_names() -> None:
    told = options(made(with_cuda(replace(SYSTEM, driver=DRIVER, stub=STUB), H200)))
    assert "CMAKE_LIBRARY_PATH" not in told
    assert "CMAKE_CUDA_FLAGS" not in told
    assert told["CMAKE_INSTALL_RPATH"] == "$ORIGIN"


def test_a_portable_build_chooses_the_processors_code_at_run_time() -> None:
    recipe = made(portable=True)
    told = options(recipe)
    assert recipe.name == "b11312-cpu-portable"
    assert (told["GGML_NATIVE"], told["GGML_BACKEND_DL"], told["GGML_CPU_ALL_VARIANTS"]) == (
        "OFF",
        "ON",
        "ON",
    )


def test_ccache_is_used_when_present() -> None:
    machine = replace(with_cuda(SYSTEM, H200), tools=replace(TOOLS, ccache=Path("/usr/bin/ccache")))
    told = options(made(machine))
    assert {told[f"CMAKE_{name}_COMPILER_LAUNCHER"] for name in ("C", "CXX", "CUDA")} == {"/usr/bin/ccache"}
    assert "CMAKE_CUDA_COMPILER_LAUNCHER" not in options(made(machine, backend="cpu"))


def test_macos_uses_metal() -> None:
    recipe = made(replace(MACHINE, apple=True))
    assert (recipe.backend, options(recipe)["GGML_METAL"]) == ("metal", "ON")
    assert options(recipe)["CMAKE_INSTALL_RPATH"] == "@loader_path"
    assert options(made(replace(MACHINE, apple=True), backend="cpu"))["GGML_METAL"] == "OFF"


@pytest.mark.parametrize(("backend", "option"), [("vulkan", "GGML_VULKAN"), ("hip", "GGML_HIP")])
def test_a_backend_that_was_asked_for(backend: str, option: str) -> None:
    told = options(made(with_cuda(SYSTEM, H200), backend=backend))
    assert (told[option], told["GGML_CUDA"]) == ("ON", "OFF")


def test_backends_that_cannot_be() -> None:
    with pytest.raises(InvalidRequest, match="no backend 'cdua'; there are cpu, cuda, vulkan, hip, metal"):
        made(backend="cdua")
    with pytest.raises(InvalidRequest, match="for macOS"):
        made(backend="metal")


@pytest.mark.parametrize("wishes", [{"backend": "cuda"}, {"architectures": ("86",)}])
def test_cuda_without_a_compiler_names_the_packages(wishes: dict[str, Any]) -> None:
    with pytest.raises(ToolMissing, match=r"-m pip install 'nvidia-cuda-nvcc==13.* .*nvidia-cublas"):
        made(**wishes)


def test_a_gpu_without_a_cuda_compiler_is_told() -> None:
    machine = with_cuda(None, H200)
    assert made(machine).backend == "cpu"
    assert "NVIDIA GPU and no CUDA compiler" in made(machine).notes[0]
    assert made(machine, backend="cpu").notes == ()


def test_a_source_that_does_not_know_the_backend() -> None:
    old = replace(SOURCE, knows=frozenset({"LLAMA_CUBLAS"}))
    with pytest.raises(InvalidRequest, match="has no option GGML_CUDA: it is too old"):
        made(with_cuda(SYSTEM, H200), old)


def test_only_options_that_the_source_knows_are_passed() -> None:
    told = options(made(source=replace(SOURCE, knows=frozenset({"LLAMA_CURL", "GGML_NATIVE"}))))
    passed = {name for name in told if name.startswith(("LLAMA_", "GGML_"))}
    assert passed == {"LLAMA_CURL", "GGML_NATIVE", "LLAMA_BUILD_NUMBER", "LLAMA_BUILD_COMMIT"}


@pytest.mark.parametrize(
    ("number", "commit", "name"),
    [(11311, "", "b11311-cpu"), (None, "3f2a91c0d", "3f2a91c0d-cpu"), (None, "", "local-d01645-cpu")],
)
def test_a_version_is_named_by_what_is_known(number: int | None, commit: str, name: str) -> None:
    recipe = made(source=replace(SOURCE, number=number, commit=commit))
    assert recipe.name == name
    assert ("LLAMA_BUILD_NUMBER" in options(recipe), "LLAMA_BUILD_COMMIT" in options(recipe)) == (
        number is not None,
        commit != "",
    )


def test_versions_that_differ_do_not_share_a_name() -> None:
    unknown = replace(SOURCE, number=None, commit="")
    assert made(source=unknown).name != made(source=replace(unknown, folder=Path("/other"))).name

    machine = with_cuda(SYSTEM, H200)
    assert made(machine, architectures=("86", "90-real")).name == "b11312-cuda-86+90-real"
    assert made(machine, architectures=("90",), portable=True).name == "b11312-cuda-90-portable"
    many = [made(machine, architectures=(*toolkit, "90-virtual")) for toolkit in (("75",) * 20, ("80",) * 20)]
    assert len({recipe.name for recipe in many}) == 2
    assert all(len(recipe.name) < 40 for recipe in many)


def test_the_gpus_that_an_engine_has_to_see() -> None:
    machine = with_cuda(SYSTEM, H200, NAVI)
    assert made(machine).gpus == (H200,)
    assert made(machine, backend="hip").gpus == (NAVI,)
    assert made(machine, backend="vulkan").gpus == (H200, NAVI)
    assert made(machine, backend="cpu").gpus == ()


def test_an_amd_gpu_is_told_how_to_be_used() -> None:
    machine = replace(MACHINE, gpus=(NAVI,))
    (note,) = made(machine).notes
    assert note == (
        "there is an AMD GPU (navi21), and this build uses the CPU only; for the GPU, build with "
        "--backend vulkan, or with --backend hip where ROCm is installed"
    )
    assert made(machine, backend="cpu").notes == ()
    assert made(machine, backend="vulkan").notes == ()


def test_the_build_folder_is_the_same_for_the_same_source_and_options() -> None:
    key = made().key
    assert made(jobs=1).key == key
    assert made(source=replace(SOURCE, number=11400, commit="abc")).key == key
    others = {
        made(portable=True).key,
        made(source=replace(SOURCE, folder=Path("/other"))).key,
        made(with_cuda(SYSTEM, H200)).key,
        made(replace(MACHINE, tools=replace(TOOLS, generator="Unix Makefiles"))).key,
        made(replace(MACHINE, tools=replace(TOOLS, compilers=("CXX=clang++",)))).key,
        made(source=replace(SOURCE, revision="7  123")).key,
    }
    assert len(others - {key}) == 6


@pytest.mark.parametrize(
    ("backend", "processors", "gib", "expected"),
    [
        ("cpu", 8, 64, (8, False)),
        ("cpu", 8, 6, (4, True)),
        ("cuda", 8, 6, (2, True)),
        ("cuda", 8, 24, (8, False)),
        ("cpu", 8, 0, (1, True)),
        ("cpu", 1, 1, (1, False)),
    ],
)
def test_as_many_jobs_as_memory_allows(
    backend: str, processors: int, gib: int, expected: tuple[int, bool]
) -> None:
    assert jobs_for(backend, processors, gib * GIB) == expected


def test_memory_that_bounds_the_jobs_is_told() -> None:
    small = replace(MACHINE, memory=6 * GIB)
    assert made(small).jobs == 4
    assert made(small).notes == (
        "4 of 8 processors are used: 6.0 GiB of memory are free, and a job may take 1.5",
    )
    assert (made(small, jobs=8).jobs, made(small, jobs=8).notes) == (8, ())
