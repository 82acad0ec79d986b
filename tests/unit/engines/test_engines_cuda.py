from pathlib import Path

import pytest

from daemon.engines.cuda import PACKAGES, Cuda, candidates, find, parse_version
from daemon.engines.toolchain import ToolMissing

NVCC = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n"


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


def packaged(site: Path, *, without: str = "") -> Path:
    """The toolkit as the Python packages of NVIDIA unpack it. Returns its folder."""
    root = site / "nvidia/cu13"
    for package, file in PACKAGES.items():
        if package != without:
            program(root / file)
    for name in (
        "libcublas.so.13",
        "libcublasLt.so.13",
        "libcudart.so.13",
        "libnvrtc.so.13",
        "libcudart_static.a",
    ):
        program(root / "lib" / name)
    return root


def ask(nvcc: Path) -> str:
    return NVCC


def test_the_release_of_a_compiler() -> None:
    assert parse_version(NVCC) == (13, 0)
    assert parse_version("command not found") is None


def test_compilers_in_their_order(tmp_path: Path) -> None:
    system, site = tmp_path / "system", tmp_path / "site"
    home = program(tmp_path / "home/bin/nvcc")
    on_path = program(tmp_path / "path/nvcc")
    current = program(system / "usr/local/cuda/bin/nvcc")
    older = program(system / "usr/local/cuda-9.2/bin/nvcc")
    newer = program(system / "usr/local/cuda-12.8/bin/nvcc")
    arch = program(system / "opt/cuda/bin/nvcc")
    package = program(site / "nvidia/cu13/bin/nvcc")
    environment = {"CUDA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert list(candidates(environment, site, system)) == [
        home,
        on_path,
        current,
        newer,
        older,
        arch,
        package,
    ]


def test_cuda_path_is_read_too(tmp_path: Path) -> None:
    nvcc = program(tmp_path / "bin/nvcc")
    assert list(candidates({"CUDA_PATH": str(tmp_path)}, tmp_path / "site", tmp_path / "system")) == [nvcc]


def test_no_compiler(tmp_path: Path) -> None:
    assert find({}, tmp_path, system=tmp_path, ask=ask) is None


def test_a_compiler_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "opt/cuda/bin/nvcc")
    assert find({}, tmp_path / "site", system=tmp_path, ask=lambda nvcc: "") is None


def test_a_toolkit_of_the_system(tmp_path: Path) -> None:
    root = tmp_path / "usr/local/cuda"
    nvcc = program(root / "bin/nvcc")
    stub = program(root / "lib64/stubs/libcuda.so")
    found = find({}, tmp_path / "site", system=tmp_path, ask=ask)
    assert found == Cuda(nvcc, root, (13, 0), stub=stub)
    assert not found.packaged
    assert found.links() == {}


def test_the_packages_get_the_names_that_a_linker_looks_for(tmp_path: Path) -> None:
    root = packaged(tmp_path / "site")
    found = find({}, tmp_path / "site", system=tmp_path / "system", ask=ask)
    assert found is not None
    assert found.packaged
    assert found.nvcc == root / "bin/nvcc"
    assert found.links() == {
        "libcublas.so": root / "lib/libcublas.so.13",
        "libcublas.so.13": root / "lib/libcublas.so.13",
        "libcublasLt.so": root / "lib/libcublasLt.so.13",
        "libcublasLt.so.13": root / "lib/libcublasLt.so.13",
        "libcudart.so": root / "lib/libcudart.so.13",
        "libcudart.so.13": root / "lib/libcudart.so.13",
    }


def test_the_driver_stands_in_for_a_stub(tmp_path: Path) -> None:
    packaged(tmp_path / "site")
    driver = program(tmp_path / "system/usr/lib64/libcuda.so.1")
    found = find({}, tmp_path / "site", system=tmp_path / "system", ask=ask)
    assert found is not None
    assert found.driver == driver
    assert found.driver_version is None  # an empty file tells nothing
    assert found.links()["libcuda.so"] == driver


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "nvidia-cuda-nvcc"])
def test_a_package_that_lacks_is_named(tmp_path: Path, package: str) -> None:
    packaged(tmp_path / "site", without=package)
    with pytest.raises(ToolMissing) as error:
        find({}, tmp_path / "site", system=tmp_path / "system", ask=ask)
    assert f"-m pip install '{package}==13.0.*' " in error.value.message
