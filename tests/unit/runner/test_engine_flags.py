"""The same configuration runs on each engine version: golden/engine_flags holds the flags that each lists.

A file is made from the real help of that version: its flags, one a line, sorted.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from daemon.runner import embedded
from daemon.runner.engine import flags_in
from daemon.runner.launch import Launch, Offload, arguments, not_taken

GOLDEN = Path(__file__).parents[2] / "golden/engine_flags"
VERSIONS = ("b11311", "b11434", "wheel-b11549")
LAUNCH = Launch(model=Path("/m.gguf"), alias="a:b", window=1024, slots=2)
EVERYTHING = replace(LAUNCH, batch=64, gpu_layers=3, threads=4, main_gpu=1, mmap=False)
TASKS = (
    replace(EVERYTHING, template=Path("/t"), projector=Path("/p"), adapters=(Path("/a"), Path("/b"))),
    replace(EVERYTHING, embedding=True, pooling="mean"),
    replace(EVERYTHING, reranking=True),
    replace(EVERYTHING, offload=Offload(3, 4, ("CUDA0", "CUDA1"), (2, 1))),
    replace(EVERYTHING, offload=Offload(0, 4, ()), projector=Path("/p")),
)
SOCKET = Path("/run/x.sock")


def known(version: str) -> frozenset[str]:
    return frozenset((GOLDEN / f"{version}.txt").read_text().split())


def test_every_file_is_one_that_is_tested() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_takes_every_setting_of_mgr(version: str) -> None:
    """Must hold: the same configuration runs on the wheel, b11311 and b11434."""
    assert not_taken(known(version)) == []
    given = arguments(EVERYTHING, SOCKET, known(version), cpu_only=False)
    assert given == [
        "--model", "/m.gguf", "--host", "/run/x.sock", "--ctx-size", "2048", "--parallel", "2",
        "--batch-size", "64", "--alias", "a:b", "--no-ui", "--slots", "--metrics", "--offline",
        "--cache-ram", "1024", "--ctx-checkpoints", "4",
        "--n-gpu-layers", "3", "--main-gpu", "1", "--threads", "4", "--load-mode", "none",
    ]  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_no_version_is_given_a_flag_that_it_does_not_list(version: str) -> None:
    for launch in (LAUNCH, EVERYTHING, replace(EVERYTHING, mmap=True), *TASKS):
        given = arguments(launch, SOCKET, known(version), cpu_only=True)
        assert {word for word in given if word.startswith("-")} <= known(version)


def test_the_wheels_file_is_what_its_help_says_now() -> None:
    assert known("wheel-b11549") == flags_in(embedded.parser().format_help())


def test_the_wheels_program_reads_every_setting_of_mgr() -> None:
    for launch in (EVERYTHING, *TASKS):
        given = arguments(launch, SOCKET, known("wheel-b11549"), cpu_only=True)
        options = embedded.parser().parse_args(given)
        assert (options.embedding, options.reranking) == (launch.embedding, launch.reranking)
        assert options.pooling == launch.pooling
        assert options.lora == [str(path) for path in launch.adapters]
        assert (options.chat_template_file, options.mmproj) == (
            launch.template and str(launch.template),
            launch.projector and str(launch.projector),
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_where_layers_lie_is_said_in_full(version: str) -> None:
    def given(offload: Offload, projector: Path | None = None) -> list[str]:
        launch = replace(LAUNCH, offload=offload, projector=projector, gpu_layers=1, main_gpu=1)
        words = arguments(launch, SOCKET, known(version), cpu_only=False)
        return words[words.index("--n-gpu-layers") :]

    assert given(Offload(3, 4, ("CUDA1",))) == [
        "--n-gpu-layers", "3", "--device", "CUDA1", "--fit", "off"
    ]  # fmt: skip
    assert given(Offload(4, 4, ("CUDA0", "CUDA1"), (2, 1))) == [
        "--n-gpu-layers", "4", "--device", "CUDA0,CUDA1", "--fit", "off", "--tensor-split", "2,1"
    ]  # fmt: skip
    assert given(Offload(0, 4, ()), Path("/p")) == [
        "--n-gpu-layers", "0", "--device", "none", "--fit", "off", "--no-mmproj-offload"
    ]  # fmt: skip


def test_flags_that_an_engine_lacks_are_told_in_the_spelling_that_mgr_prefers() -> None:
    lacks = known("b11434") - {"--no-ui", "--no-webui", "--n-gpu-layers", "--metrics"}
    assert not_taken(lacks) == ["--no-ui", "--metrics"]  # -ngl is another spelling
