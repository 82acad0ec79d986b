import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.engines.toolchain import Toolchain, ToolMissing, find, pip_install, require

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Makes folders with programs of these names."""

    def make(name: str, *programs: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        for program in programs:
            (place / program).touch(mode=0o755)
        return place

    return make


def path(*folders: Path) -> dict[str, str]:
    return {"PATH": ":".join(map(str, folders))}


def test_the_tools_beside_python_go_before_those_on_path(folder: Folder) -> None:
    system = folder("usr", "cmake", "ninja", "make", "c++", "ccache")
    own = folder("venv", "cmake", "ninja")
    assert find(path(system), own) == Toolchain(own / "cmake", "Ninja", own / "ninja", system / "ccache")


def test_make_where_there_is_no_ninja_and_no_ccache(folder: Folder) -> None:
    system, own = folder("usr", "cmake", "make", "g++"), folder("venv")
    assert find(path(system), own) == Toolchain(system / "cmake", "Unix Makefiles", system / "make", None)


def test_cmake_and_ninja_come_from_the_package_index(folder: Folder) -> None:
    with pytest.raises(ToolMissing) as error:
        find(path(folder("usr", "c++")), folder("venv"))
    assert error.value.message == (
        f"the engine cannot be built without cmake and ninja ({pip_install('cmake', 'ninja')})"
    )


def test_all_that_lacks_is_one_sentence(folder: Folder) -> None:
    with pytest.raises(ToolMissing) as error:
        find(path(folder("usr", "ninja", "apk")), folder("venv"))
    assert error.value.message == (
        f"the engine cannot be built without cmake ({pip_install('cmake', 'ninja')}) "
        "and without a C++ compiler (install with: sudo apk add g++)"
    )


@pytest.mark.parametrize(
    ("pip", "command"),
    [(object(), "/v/bin/python -m pip install a b"), (None, "uv pip install --python /v/bin/python a b")],
)
def test_packages_are_installed_with_what_is_there(
    pip: object, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", {"pip": pip}.__getitem__)
    monkeypatch.setattr(sys, "executable", "/v/bin/python")
    assert pip_install("a", "b") == f"install with: {command}"


def test_only_what_is_missing_is_named(folder: Folder) -> None:
    with pytest.raises(ToolMissing, match=r"without cmake \(") as error:
        find(path(folder("usr", "c++", "make")), folder("venv"))
    assert "compiler" not in error.value.message


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "sudo apt-get install g++"),
        ("dnf", "sudo dnf install gcc-c++"),
        ("pacman", "sudo pacman -S gcc"),
        ("xcode-select", "xcode-select --install"),
    ],
)
def test_a_compiler_comes_from_the_package_manager_that_is_there(
    folder: Folder, manager: str, command: str
) -> None:
    with pytest.raises(ToolMissing) as error:
        find(path(folder("usr", "cmake", "ninja", manager)), folder("venv"))
    assert (
        error.value.message == f"the engine cannot be built without a C++ compiler (install with: {command})"
    )


def test_the_compiler_that_the_environment_names_counts(folder: Folder) -> None:
    system, own = folder("usr", "cmake", "ninja", "clang++-18"), folder("venv")
    assert find({**path(system), "CXX": "clang++-18 -stdlib=libc++"}, own).generator == "Ninja"
    assert find({**path(system), "CXX": str(system / "clang++-18")}, own).generator == "Ninja"


@pytest.mark.parametrize("variable", ["CC", "CXX"])
def test_a_compiler_that_the_environment_names_and_that_is_not_there(folder: Folder, variable: str) -> None:
    with pytest.raises(ToolMissing) as error:
        find({**path(folder("usr", "cmake", "ninja", "g++")), variable: "nope -O2"}, folder("venv"))
    assert error.value.message == f"{variable} names 'nope', which is not on PATH; correct it or unset it"


def test_what_chooses_compilers_is_kept(folder: Folder) -> None:
    system = folder("usr", "cmake", "ninja", "g++")
    environment = {**path(system), "CXX": "g++ -m64", "CXXFLAGS": "-O1", "CFLAGS": "", "LANG": "C"}
    assert find(environment, folder("venv")).compilers == ("CXX=g++ -m64", "CXXFLAGS=-O1")


def test_a_backends_own_compiler_is_named_with_its_packages(folder: Folder) -> None:
    require("vulkan", path(folder("with", "glslc")))
    require("cpu", path())
    with pytest.raises(ToolMissing, match=r"sudo dnf install .*glslc"):
        require("vulkan", path(folder("without", "dnf")))
    with pytest.raises(ToolMissing, match="needs ROCm"):
        require("hip", path())
