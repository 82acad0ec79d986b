"""Which memory there is for models: values, and how an engine's list of devices is read. Pure; `machine.py` asks."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1024 * 1024

# A line of `--list-devices` (llama.cpp, common/arg.cpp): "  CUDA0: NVIDIA H200 (143167 MiB, 142000 MiB free)".
_LINE = re.compile(r"\s*([\w.-]+): (\S.*) \((\d{1,9}) MiB, (\d{1,9}) MiB free\)\s*")

# GPUs that have no memory of their own, by the names that their drivers give them: the list does not tell otherwise.
_INTEGRATED = re.compile(
    r"""Apple\ (M\d|A\d)                                # every Mac with a chip of Apple's
    | \b(GB10|Orin|Xavier|Tegra|Thor)\b                 # NVIDIA's boards and small computers
    | Intel.*\b(U?HD|Iris.*|\(tm\)|\(R\))\ Graphics     # a number before the last word: "Arc(tm) A770 Graphics"
    | Radeon(\(TM\))?\ (Vega\ \d+\ |\d{3}M\ |\d{4}S\ )?Graphics(?!.*\bNAVI)  # one without a name also has this one
    | AMD\ Custom\ GPU""",
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Pool:
    """Bytes. `free` is what a new model can have without anything else being swapped out or read again."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the engine names it: `id` is what its `--device` takes. Sizes in bytes.

    Where it is `unified`, its memory is the machine's: what lies there is also taken from the RAM, and `free` is never
    more than the RAM's. Where it is not `live`, `free` is what it was when the engine listed it.
    """

    id: str
    name: str
    total: int
    free: int
    unified: bool = False
    live: bool = False

    @property
    def backend(self) -> str:
        """The id without its number: "CUDA", "Vulkan", "MTL"."""
        return self.id.rstrip("0123456789")


@dataclass(frozen=True, slots=True)
class Memory:
    """`ram` is None where it cannot be read; `devices` are in the engine's order."""

    ram: Pool | None
    devices: tuple[Device, ...] = ()


def listed(lines: Iterable[str]) -> tuple[Device, ...]:
    """The devices in the lines of `--list-devices`; what else an engine prints there is passed over.

    Those without memory (a BLAS library, a GPU whose driver failed) are left out. So is a GPU that a second backend
    lists again: the engine uses the first, and its memory must not count twice.
    """
    devices: list[Device] = []
    owners: dict[str, str] = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None or int(match[3]) == 0:
            continue
        total = int(match[3]) * MIB
        device = Device(match[1], match[2], total, min(int(match[4]) * MIB, total), _is_unified(match[2]))
        if owners.setdefault(_bare(device.name), device.backend) == device.backend:
            devices.append(device)
    return tuple(devices)


def _is_unified(name: str) -> bool:
    return _INTEGRATED.search(name) is not None


def _bare(name: str) -> str:
    """Without the driver's name, which only some backends add: "AMD Radeon RX 7900 XTX (RADV NAVI31)"."""
    return name.partition(" (")[0].casefold()
