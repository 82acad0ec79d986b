import pytest

from daemon.chunked import chunk, content_of

SIZES = [1, 15, 16, 17, 255, 256, 1023]


@pytest.mark.parametrize("size", SIZES)
def test_a_small_chunk(size: int) -> None:
    content = b"x" * size
    assert chunk(content) == b"%x\r\n%b\r\n" % (size, content)
    assert content_of(chunk(content)) == content


@pytest.mark.parametrize("size", [1024, 4096, 100_000])
def test_a_larger_one_is_only_written(size: int) -> None:
    content = b"x" * size
    assert chunk(content) == b"%x\r\n%b\r\n" % (size, content)
    assert content_of(chunk(content)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"3",
        b"3\r\n",
        b"3\r\nab\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc\r",
        b"3\r\nabc\n\n",
        b"3\r\nabc\r\n3\r\nabc\r\n",
        b"3;x\r\nabc\r\n",
        b"03\r\nabc\r\n",
        b"A\r\nabcdefghij\r\n",
        b"0\r\n\r\n",
        *[chunk(b"x" * size)[:-1] for size in SIZES],
        *[chunk(b"x" * size) + b"x" for size in SIZES],
    ],
)
def test_what_is_not_exactly_one_chunk(data: bytes) -> None:
    assert content_of(data) is None
