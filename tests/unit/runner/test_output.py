"""Output of any kind is kept bounded, made printable, and its causes are recognized."""

import pytest

from daemon.runner.output import KEPT_LINES, MAX_LINE_BYTES, Tail, classify, printable, quote, without_paths


def test_lines_are_completed_over_chunks() -> None:
    tail = Tail()
    assert tail.feed(b"one\ntw") == ["one"]
    assert tail.feed(b"o\r\nthree") == ["two"]
    assert tail.lines() == ["one", "two", "three"]
    assert tail.total_bytes == 14


def test_only_the_last_lines_are_kept() -> None:
    tail = Tail()
    for number in range(KEPT_LINES + 50):
        tail.feed(f"{number}\n".encode())
    lines = tail.lines()
    assert len(lines) == KEPT_LINES
    assert lines[-1] == str(KEPT_LINES + 49)


def test_a_flood_without_a_line_end_is_cut_up_and_bounded() -> None:
    tail = Tail()
    for _ in range(1000):
        tail.feed(b"x" * 64 * 1024)
    lines = tail.lines()
    assert len(lines) <= KEPT_LINES + 1
    assert max(map(len, lines)) <= MAX_LINE_BYTES


def test_control_and_bidirectional_characters_are_not_passed_on() -> None:
    assert printable("a\x1b[31mb\x00\u202ec\td") == "a\ufffd[31mb\ufffd\ufffdc\td"


@pytest.mark.parametrize(
    ("line", "sentence", "permanent"),
    [
        ("ggml_backend_cuda: cudaMalloc failed: out of memory", "not enough memory", False),
        ("llama_model_load: error loading model: unknown model architecture: 'x'", "architecture", True),
        ("0.00 E tensor 'blk.1' data is not within the file bounds, model is corrupted", "damaged", True),
        ("error: invalid argument: --frobnicate", "options", True),
        ("couldn't bind HTTP server socket, hostname: x.sock", "listen", False),
        ("srv    load_model: failed to load model, 'x'", "cannot load", True),
    ],
)
def test_causes(line: str, sentence: str, permanent: bool) -> None:
    cause = classify(["noise", line, "srv init: exiting due to model loading error: failed to load model"])
    assert cause is not None
    assert sentence in cause.sentence
    assert cause.permanent is permanent


def test_no_cause_is_made_up() -> None:
    assert classify(["all is well"]) is None


def test_a_quotation_has_no_paths_and_no_time_stamps() -> None:
    lines = ["old"] * 10 + ["0.00.006.683 E gguf: failed to read '/data/blobs/sha256-1'", "  ", "end"]
    assert quote(lines, 3) == "gguf: failed to read '<path>'\nend"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot open /srv/models/x.gguf: no", "cannot open <path>: no"),
        ("on unix:///tmp/mgr-1/a.sock", "on <path>"),
        ("12 tokens/s, and/or 1/2", "12 tokens/s, and/or 1/2"),
        ("(/opt/lib/ld-linux.so)", "(<path>)"),
    ],
)
def test_only_paths_are_taken_out(text: str, shown: str) -> None:
    assert without_paths(text) == shown
