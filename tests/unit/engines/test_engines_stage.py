import os
from pathlib import Path

import pytest

from daemon.engines.stage import add_libraries, make_links, stage


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    place = tmp_path / "build"
    (place / "bin").mkdir(parents=True)
    for name in ("llama-server", "llama-quantize", "llama-bench"):
        (place / "bin" / name).write_text(name)
        (place / "bin" / name).chmod(0o755)
    (place / "bin/libllama.so.0.5.0").write_text("library")
    (place / "bin/libllama.so.0").symlink_to("libllama.so.0.5.0")
    (place / "bin/libllama.so").symlink_to("libllama.so.0")
    (place / "bin/libggml-cpu-haswell.so").write_text("variant")
    (place / "bin/libllama.a").write_text("archive")
    return place


def test_programs_and_libraries_are_copied_with_their_links(finished: Path, tmp_path: Path) -> None:
    target = tmp_path / "staged"
    (target / "bin").mkdir(parents=True)
    (target / "bin/old").touch()
    stage(finished, target)
    assert sorted(os.listdir(target / "bin")) == [
        "libggml-cpu-haswell.so",
        "libllama.so",
        "libllama.so.0",
        "libllama.so.0.5.0",
        "llama-quantize",
        "llama-server",
    ]
    assert os.access(target / "bin/llama-server", os.X_OK)
    moved = target.rename(tmp_path / "moved")
    assert (moved / "bin/libllama.so").readlink() == Path("libllama.so.0")
    assert (moved / "bin/libllama.so").read_text() == "library"


def test_a_program_that_was_not_built(finished: Path, tmp_path: Path) -> None:
    (finished / "bin/llama-server").unlink()
    with pytest.raises(FileNotFoundError):
        stage(finished, tmp_path / "staged")


def test_libraries_of_packages_take_no_room(tmp_path: Path) -> None:
    library, folder = tmp_path / "libcublas.so.13", tmp_path / "bin"
    library.write_text("cublas")
    folder.mkdir()
    add_libraries([library], folder)
    assert (folder / "libcublas.so.13").samefile(library)
    add_libraries([tmp_path / "absent.so"], folder)  # found at its own place, or not at all


def test_names_for_the_linker_are_made_anew(tmp_path: Path) -> None:
    links = tmp_path / "links"
    make_links({"libold.so": tmp_path / "libold.so.1"}, links)
    make_links({"libcublas.so": tmp_path / "libcublas.so.13"}, links)
    assert os.listdir(links) == ["libcublas.so"]
    assert (links / "libcublas.so").readlink() == tmp_path / "libcublas.so.13"
