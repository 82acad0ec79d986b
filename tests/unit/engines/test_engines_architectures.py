from pathlib import Path

import pytest

from daemon.engines.architectures import choose, parse, portable
from daemon.engines.cuda import Cuda, Version
from daemon.engines.gpus import Gpu
from daemon.errors import InvalidRequest

H200 = Gpu("NVIDIA H200", "nvidia", "9.0")
UNKNOWN = Gpu("NVIDIA H200", "nvidia", None)
RTX3090 = Gpu("RTX 3090", "nvidia", "8.6")
GTX1080 = Gpu("GTX 1080", "nvidia", "6.1")


def cuda(version: Version = (13, 0), driver: Version | None = (13, 0)) -> Cuda:
    return Cuda(Path("/c/bin/nvcc"), Path("/c"), version, driver=Path("/libcuda.so.1"), driver_version=driver)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("86", ("86",)),
        ("86, 90", ("86", "90")),
        ("8.6,12.0", ("86", "120")),
        ("86,8.6", ("86",)),
        ("90a-real,120f-virtual", ("90a-real", "120f-virtual")),
    ],
)
def test_what_may_be_asked_for(text: str, expected: tuple[str, ...]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize("text", ["", "86,", "sm_86", "8", "86 90", "86;90", "native"])
def test_what_is_no_architecture(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write them like --cuda-arch 86,90"):
        parse(text)


def test_those_asked_for_go_before_those_present() -> None:
    assert choose(("75",), False, cuda(), [H200]) == (("75",), ())
    assert choose(("75",), True, cuda(), []) == (("75",), ())


def test_each_gpu_present_once_as_machine_code() -> None:
    assert choose((), False, cuda(), [H200, RTX3090, RTX3090]) == (("86-real", "90-real"), ())


def test_without_a_gpu_the_portable_list_is_taken() -> None:
    for gpus in ([], [Gpu("navi21", "amd")]):
        chosen, notes = choose((), False, cuda(), gpus)
        assert chosen == portable((13, 0))
        assert notes == ("it is built for many GPUs: no NVIDIA GPU was seen; choose with --cuda-arch",)


def test_a_gpu_that_nothing_is_known_of_is_not_said_to_be_absent() -> None:
    chosen, (note,) = choose((), False, cuda(), [UNKNOWN])
    assert chosen == portable((13, 0))
    assert note == (
        "it is built for many GPUs: nvidia-smi does not tell the compute capability of NVIDIA H200; "
        "choose with --cuda-arch"
    )


def test_a_portable_build_is_not_for_the_gpu_here_only() -> None:
    assert choose((), True, cuda(), [H200])[0] == portable((13, 0))


def test_the_portable_list_is_what_the_release_can_make() -> None:
    assert portable((13, 0)) == (
        *("75-virtual", "80-virtual", "86-real", "89-real", "90-virtual", "120a-real", "121a-real"),
    )
    assert portable((12, 4)) == (
        *("50-virtual", "61-virtual", "70-virtual"),
        *("75-virtual", "80-virtual", "86-real", "89-real", "90-virtual"),
    )
    assert portable((11, 7))[-1] == "86-real"


def test_a_gpu_too_old_for_the_compiler_is_left_out_and_named() -> None:
    assert choose((), False, cuda(), [H200, GTX1080]) == (
        ("90-real",),
        ("CUDA 13.0 makes no code for GTX 1080",),
    )
    assert choose((), False, cuda((12, 4)), [GTX1080]) == (("61-real",), ())


def test_a_machine_with_old_gpus_only_needs_an_older_toolkit() -> None:
    with pytest.raises(
        InvalidRequest, match="makes no code for GTX 1080; point CUDA_HOME to an older toolkit"
    ):
        choose((), False, cuda(), [GTX1080])


def test_a_driver_too_old_for_the_compiler_is_said_before_the_build() -> None:
    for wished, many, gpu in (
        ((), False, H200),
        (("90",), False, H200),
        ((), True, H200),
        ((), False, UNKNOWN),
    ):
        with pytest.raises(InvalidRequest, match=r"up to 12\.8 and the compiler is of CUDA 13\.0"):
            choose(wished, many, cuda(driver=(12, 8)), [gpu])
    assert choose((), False, cuda((12, 9), driver=(12, 4)), [H200])[0] == ("90-real",)
    assert choose(("90",), False, cuda(driver=(12, 8)), [])[0] == ("90",)  # for another machine
    assert choose((), False, cuda(driver=None), [H200])[0] == ("90-real",)
