"""For which GPUs CUDA code is compiled. Names are cmake's: 86 is compute capability 8.6, "-real" is machine code,
"-virtual" is code that the driver finishes on first use, and neither is both."""

import re
from collections.abc import Sequence

from daemon.engines.cuda import Cuda, Version, dotted
from daemon.engines.gpus import Gpu
from daemon.errors import InvalidRequest

_NAME = re.compile(r"\d{2,3}[af]?(-real|-virtual)?")
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")
# The oldest that a compiler of this major release makes code for.
_OLDEST = {11: 35, 12: 50, 13: 75}
# The list that llama.cpp itself takes where it sees no GPU (ggml/src/ggml-cuda/CMakeLists.txt), by the release that
# brought each.
_PORTABLE: Sequence[tuple[Version, tuple[str, ...]]] = (
    ((11, 0), ("75-virtual", "80-virtual", "86-real")),
    ((11, 8), ("89-real", "90-virtual")),
    ((12, 8), ("120a-real",)),
    ((12, 9), ("121a-real",)),
)
_UNTIL_12 = ("50-virtual", "61-virtual", "70-virtual")


def parse(text: str) -> tuple[str, ...]:
    """Reads "86,90", also written as compute capabilities, "8.6,9.0". Raises InvalidRequest for what is neither."""
    found = []
    for part in (part.strip() for part in text.split(",")):
        capability = _CAPABILITY.fullmatch(part)
        name = f"{capability[1]}{capability[2]}" if capability else part
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"{part!r} is no CUDA architecture; write them like --cuda-arch 86,90")
        found.append(name)
    return tuple(dict.fromkeys(found))


def portable(version: Version) -> tuple[str, ...]:
    """What runs on the GPUs that this release of CUDA knows."""
    old = _UNTIL_12 if version < (13, 0) else ()
    return old + tuple(name for since, names in _PORTABLE if version >= since for name in names)


def choose(
    wished: tuple[str, ...], many: bool, cuda: Cuda, gpus: Sequence[Gpu]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The architectures, and sentences about them: those wished for, else those of the GPUs here, else the portable
    ones, which `many` asks for.

    Raises InvalidRequest where the compiler cannot serve the GPUs here.
    """
    here = [gpu for gpu in gpus if gpu.vendor == "nvidia"]
    if here:
        _check_driver(cuda)
    if wished:
        return wished, ()
    present = {gpu.compute_capability: gpu.name for gpu in here if gpu.compute_capability is not None}
    if many or not present:
        unknown = f"nvidia-smi does not tell the compute capability of {here[0].name}" if here else ""
        reason = "--portable" if many else f"{unknown or 'no NVIDIA GPU was seen'}; choose with --cuda-arch"
        return portable(cuda.version), (f"it is built for many GPUs: {reason}",)
    numbers = {int(capability.replace(".", "")): name for capability, name in present.items()}
    oldest = _OLDEST.get(cuda.version[0], 0)
    usable = tuple(f"{number}-real" for number in sorted(numbers) if number >= oldest)
    left_out = [name for number, name in numbers.items() if number < oldest]
    said = f"CUDA {dotted(cuda.version)} makes no code for {' and '.join(left_out)}"
    if not usable:
        raise InvalidRequest(
            f"{said}; point CUDA_HOME to an older toolkit, or build with --backend cpu or vulkan"
        )
    return usable, ((said,) if left_out else ())


def _check_driver(cuda: Cuda) -> None:
    """A run-time library of a newer major release than the driver's finds no GPU at all, after a long build."""
    if cuda.driver_version is not None and cuda.driver_version[0] < cuda.version[0]:
        raise InvalidRequest(
            f"the driver here runs CUDA up to {dotted(cuda.driver_version)} and the compiler is of CUDA "
            f"{dotted(cuda.version)}, so the engine would see no GPU; update the driver, point CUDA_HOME to a toolkit "
            f"of CUDA {cuda.driver_version[0]}, or build with --backend cpu"
        )
