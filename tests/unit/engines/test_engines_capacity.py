import pytest

from daemon.engines.capacity import memory, processors, quota, room


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 1),
        ("20000 100000\n", 1),
        ("max 100000\n", None),
        ("", None),
    ],
)
def test_the_processors_that_a_control_group_grants(text: str, expected: int | None) -> None:
    assert quota(text) == expected


def test_the_memory_that_a_control_group_leaves() -> None:
    assert room("1000\n", "600\n", "anon 100\ninactive_file 250\n") == 650
    assert room("1000\n", "1200\n", "") == 0
    assert room("max\n", "600\n", "") is None
    assert room("", "", "") is None


def test_this_machine_has_some() -> None:
    assert processors() >= 1
    assert memory() > 0
