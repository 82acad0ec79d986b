"""Lists of devices as engines print them."""

import pytest

from daemon.scheduler.devices import MIB, Device, listed

CUDA = """\
ggml_cuda_init: found 2 CUDA devices (Total VRAM: 35936 MiB):
  Device 0: NVIDIA GeForce RTX 3080 Ti, compute capability 8.6, VMM: yes, VRAM: 11909 MiB
  Device 1: NVIDIA RTX PRO 4000 Blackwell SFF Edition, compute capability 12.0, VMM: yes, VRAM: 24026 MiB
load_backend: loaded CUDA backend from /usr/lib/llama/libggml-cuda.so
Available devices:
  CUDA0: NVIDIA GeForce RTX 3080 Ti (11909 MiB, 11650 MiB free)
  CUDA1: NVIDIA RTX PRO 4000 Blackwell SFF Edition (24026 MiB, 23795 MiB free)
"""

VULKAN = """\
ggml_vulkan: Found 2 Vulkan devices:
ggml_vulkan: 0 = NVIDIA GeForce RTX 2060 (NVIDIA) | uma: 0 | fp16: 1 | bf16: 1 | warp size: 32
ggml_vulkan: 1 = AMD Radeon Graphics (RADV RAPHAEL_MENDOCINO) (radv) | uma: 1 | fp16: 1 | bf16: 0 | warp size: 32
Available devices:
  Vulkan0: NVIDIA GeForce RTX 2060 (6144 MiB, 5136 MiB free)
  Vulkan1: AMD Radeon Graphics (RADV RAPHAEL_MENDOCINO) (16151 MiB, 15000 MiB free)
"""

METAL = """\
ggml_metal_device_init: GPU name:   Apple M4 Max
ggml_metal_device_init: has unified memory    = true
ggml_metal_device_init: recommendedMaxWorkingSetSize  = 103079.22 MB
Available devices:
  MTL0: Apple M4 Max (98304 MiB, 98303 MiB free)
  BLAS: Accelerate (0 MiB, 0 MiB free)
"""


def test_cuda() -> None:
    assert listed(CUDA.splitlines()) == (
        Device("CUDA0", "NVIDIA GeForce RTX 3080 Ti", 11909 * MIB, 11650 * MIB),
        Device("CUDA1", "NVIDIA RTX PRO 4000 Blackwell SFF Edition", 24026 * MIB, 23795 * MIB),
    )


def test_vulkan() -> None:
    assert listed(VULKAN.splitlines()) == (
        Device("Vulkan0", "NVIDIA GeForce RTX 2060", 6144 * MIB, 5136 * MIB),
        Device(
            "Vulkan1", "AMD Radeon Graphics (RADV RAPHAEL_MENDOCINO)", 16151 * MIB, 15000 * MIB, unified=True
        ),
    )


def test_metal_and_a_library_that_is_no_device() -> None:
    apple = Device("MTL0", "Apple M4 Max", 98304 * MIB, 98303 * MIB, unified=True)
    assert listed(METAL.splitlines()) == (apple,)


def test_the_name_that_metal_had_before() -> None:
    (apple,) = listed(["  Metal: Apple M4 Max (98304 MiB, 98303 MiB free)"])
    assert (apple.id, apple.backend) == ("Metal", "Metal")


def test_none() -> None:
    assert listed("Available devices:\n  (none)\n".splitlines()) == ()
    assert listed([]) == ()


def test_lines_without_their_indent() -> None:
    assert listed(["CUDA0: NVIDIA H200 (143167 MiB, 142000 MiB free)"]) == (
        Device("CUDA0", "NVIDIA H200", 143167 * MIB, 142000 * MIB),
    )


def test_a_card_that_two_backends_list_counts_once() -> None:
    lines = [
        "  ROCm0: AMD Radeon RX 7900 XTX (24560 MiB, 24500 MiB free)",
        "  ROCm1: AMD Radeon RX 7900 XTX (24560 MiB, 24500 MiB free)",
        "  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 23000 MiB free)",
        "  Vulkan1: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 23000 MiB free)",
        "  Vulkan2: NVIDIA GeForce RTX 2060 (6144 MiB, 5136 MiB free)",
    ]
    assert [device.id for device in listed(lines)] == ["ROCm0", "ROCm1", "Vulkan2"]


def test_a_card_whose_driver_failed_has_no_memory_and_is_left_out() -> None:
    assert listed(["  CUDA0: NVIDIA H200 (0 MiB, 0 MiB free)"]) == ()


def test_free_is_never_more_than_all() -> None:
    (device,) = listed(["  Vulkan0: NVIDIA GeForce RTX 2060 (6144 MiB, 9000 MiB free)"])
    assert device.free == device.total


@pytest.mark.parametrize(
    "line",
    [
        "  CUDA0: NVIDIA H200 (143167 MiB)",
        "  CUDA0: NVIDIA H200 (-1 MiB, 5 MiB free)",
        "  CUDA0: NVIDIA H200 (99999999999999999999 MiB, 5 MiB free)",
        "  CUDA0:  (1 MiB, 1 MiB free)",
        "llama_prepare_model_devices: using device CUDA0 (NVIDIA H200) (0000:01:00.0) - 142000 MiB free",
    ],
)
def test_what_is_no_device(line: str) -> None:
    assert listed([line]) == ()


@pytest.mark.parametrize(
    "name",
    [
        "Apple M1",
        "Apple M1 (G13G B1)",
        "NVIDIA GB10",
        "Orin",
        "NVIDIA Thor",
        "Intel(R) UHD Graphics 770 (ADL-S GT1)",
        "Intel(R) HD Graphics 530",
        "Intel(R) Iris(R) Xe Graphics (TGL GT2)",
        "Intel(R) Arc(tm) Graphics (MTL)",
        "Intel(R) Graphics (LNL)",
        "AMD Radeon(TM) Graphics",
        "AMD Radeon Graphics (RADV RENOIR)",
        "AMD Radeon Vega 8 Graphics",
        "AMD Radeon 780M Graphics (RADV PHOENIX)",
        "Radeon 8060S Graphics (RADV STRIX_HALO)",
        "AMD Custom GPU 0405 (RADV VANGOGH)",
    ],
)
def test_gpus_that_share_the_machines_memory(name: str) -> None:
    (device,) = listed([f"  X0: {name} (16000 MiB, 15000 MiB free)"])
    assert device.unified


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H200",
        "Tesla T4",
        "Intel(R) Arc(tm) A770 Graphics (DG2)",
        "Intel(R) Arc(tm) B580 Graphics (BMG G21)",
        "Intel(R) Data Center GPU Max 1100",
        "AMD Radeon RX 7900 XTX (RADV NAVI31)",
        "AMD Radeon Graphics (RADV NAVI21)",
        "AMD Radeon RX Vega (RADV VEGA10)",
        "AMD Radeon Pro W7900",
        "AMD Instinct MI300X",
    ],
)
def test_gpus_with_memory_of_their_own(name: str) -> None:
    (device,) = listed([f"  X0: {name} (16000 MiB, 15000 MiB free)"])
    assert not device.unified
