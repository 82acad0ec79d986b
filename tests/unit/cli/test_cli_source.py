import os
from pathlib import Path

import pytest

from cli import source
from cli.errors import CliError


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    "text",
    [
        "smollm2",
        "smollm2:135m",
        "hf.co/user/repo:Q4_K_M",
        "hf.co/user/repo/x.gguf",
        "HuggingFace.co/user/repo/x.gguf",
        "https://example.org/x.gguf",
        "file:///x.gguf",
    ],
)
def test_names_and_urls_stay(text: str) -> None:
    assert source.absolute(text) == text


def test_relative_paths_become_absolute_urls(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/x.gguf").touch()
    url = f"{tmp_path.as_uri()}/models/x.gguf"
    assert source.absolute("./models/x.gguf") == url
    assert source.absolute("models/x.gguf") == url
    assert source.absolute("../" + tmp_path.name + "/models/x.gguf") == url


def test_the_home_folder_is_the_callers(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/x.gguf").touch()
    assert source.absolute("~/x.gguf") == f"{tmp_path.as_uri()}/home/x.gguf"


def test_a_home_folder_that_does_not_exist_is_a_sentence() -> None:
    with pytest.raises(CliError, match="~no-such-user-here"):
        source.absolute("~no-such-user-here/x.gguf")


def test_special_characters_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "a b#é%.gguf").touch()
    assert source.absolute("./a b#é%.gguf") == f"{tmp_path.as_uri()}/a%20b%23%C3%A9%25.gguf"


def test_a_link_keeps_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "blob").touch()
    (tmp_path / "tiny.gguf").symlink_to("blob")
    assert source.absolute("tiny.gguf") == f"{tmp_path.as_uri()}/tiny.gguf"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x.gguf", "no such file"),
        ("./x.gguf", "no such file"),
        ("some/x.GGUF", "no such file"),
        ("./dangling.gguf", "no such file"),
        ("./loop.gguf", "too many levels of symbolic links"),
        ("./folder", "is a directory"),
        ("./pipe.gguf", "is not a regular file"),
        ("./file/x.gguf", "not a directory"),
    ],
)
def test_what_is_no_file_is_refused_with_path_and_reason(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "dangling.gguf").symlink_to("nowhere")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CliError) as caught:
        source.absolute(text)
    assert caught.value.message == f"cannot pull '{text}': {reason}"


def test_a_file_that_the_caller_may_not_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.gguf").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)  # permissions do not bind root
    with pytest.raises(CliError, match=r"^cannot pull 'x\.gguf': permission denied$"):
        source.absolute("x.gguf")
