from pathlib import Path

import pytest

from daemon.engines.source import checked, counted, declared, own_repository, read
from daemon.errors import InvalidRequest


def test_an_empty_submodule_says_what_to_type(tmp_path: Path) -> None:
    submodule = tmp_path / "native/llama.cpp"
    submodule.mkdir(parents=True)
    with pytest.raises(InvalidRequest) as error:
        checked(None, submodule)
    assert f"git -C {tmp_path} submodule update --init native/llama.cpp" in error.value.message
    assert "--source DIR" in error.value.message


def test_without_a_submodule_a_source_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="name a folder of it with --source DIR"):
        checked(None, tmp_path / "native/llama.cpp")


def test_a_folder_that_is_no_source_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds no CMakeLists"):
        checked(tmp_path, tmp_path)
    with pytest.raises(InvalidRequest, match="is no folder"):
        checked(tmp_path / "absent", tmp_path)


def test_a_source_is_resolved(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "CMakeLists.txt").touch()
    (tmp_path / "link").symlink_to(real)
    assert checked(tmp_path / "link", tmp_path) == real
    assert checked(None, real) == real


@pytest.mark.parametrize("commit", ["feature/x", "..", "a" * 41, "a b", "-x"])
def test_what_can_be_no_commit(tmp_path: Path, commit: str) -> None:
    with pytest.raises(InvalidRequest, match="is no commit; write it in letters and digits, like 0c1e570"):
        read(tmp_path, {}, 7, commit)


def test_the_options_that_cmake_files_declare() -> None:
    text = """
    option(GGML_CUDA "ggml: use CUDA" OFF)
      option( LLAMA_OPENSSL "x" ON)
    set   (GGML_CUDA_FA_QUANTS "all" CACHE STRING "x")
    # option(LLAMA_OLD "x" ON)
    llama_option_depr(WARNING LLAMA_CURL)
    """
    assert declared(text) == {"GGML_CUDA", "LLAMA_OPENSSL", "GGML_CUDA_FA_QUANTS"}


def test_only_a_clone_with_its_history_can_count() -> None:
    assert counted("false", "11312") == 11312
    assert counted("true", "1") is None
    assert counted("", "") is None


def test_git_does_not_look_above_the_source() -> None:
    assert own_repository(Path("/a/native/llama.cpp")) == {"GIT_CEILING_DIRECTORIES": "/a/native"}
