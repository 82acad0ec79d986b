from daemon.engines.gpus import Gpu, parse_kfd_node, parse_nvidia_information, parse_smi


def test_each_line_of_nvidia_smi_is_a_gpu() -> None:
    text = "NVIDIA H200, 9.0\nNVIDIA GeForce RTX 3090, 8.6\n"
    assert parse_smi(text) == (
        Gpu("NVIDIA H200", "nvidia", "9.0"),
        Gpu("NVIDIA GeForce RTX 3090", "nvidia", "8.6"),
    )


def test_what_is_no_gpu_in_nvidia_smi() -> None:
    assert parse_smi("No devices were found\n") == ()
    assert parse_smi('Field "compute_cap" is not a valid field to query.\n\n') == ()
    assert parse_smi("NVIDIA H200, [N/A]\n") == ()


def test_a_name_with_a_comma_is_kept_whole() -> None:
    assert parse_smi("Card, 16 GB, 7.5\n") == (Gpu("Card, 16 GB", "nvidia", "7.5"),)


def test_the_driver_names_a_gpu_without_its_capability() -> None:
    text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 33\nGPU UUID: \t GPU-1234\n"
    assert parse_nvidia_information(text) == Gpu("NVIDIA H200", "nvidia")
    assert parse_nvidia_information("IRQ: 33\n") is None


def test_a_node_of_amd_with_compute_units_is_a_gpu() -> None:
    assert parse_kfd_node("cpu_cores_count 0\nsimd_count 192\n", "navi21\n") == Gpu("navi21", "amd")
    assert parse_kfd_node("simd_count 192\n", "") == Gpu("AMD GPU", "amd")


def test_a_node_of_amd_that_is_a_processor_is_none() -> None:
    assert parse_kfd_node("cpu_cores_count 16\nsimd_count 0\n", "cpu\n") is None
    assert parse_kfd_node("", "") is None
