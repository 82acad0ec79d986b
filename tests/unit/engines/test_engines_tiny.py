from pathlib import Path

import pytest

from daemon.engines import tiny
from daemon.store.gguf import read_summary
from daemon.store.summary import Summary


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    tiny.write(path)
    return path


@pytest.fixture(scope="module")
def summary(model: Path) -> Summary:
    """As the store's own reader sees it, which also checks that the file is whole."""
    return read_summary(model)


def test_it_is_small(model: Path) -> None:
    assert 100_000 < model.stat().st_size < 2_000_000


def test_it_is_the_same_each_time(model: Path, tmp_path: Path) -> None:
    tiny.write(tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == model.read_bytes()


def test_it_is_a_llama_with_a_token_for_each_byte(summary: Summary) -> None:
    shown = {
        key: summary.metadata[key] for key in summary.metadata if key.startswith(("general.arch", "llama."))
    }
    assert shown == {
        "general.architecture": "llama",
        "llama.context_length": 256,
        "llama.embedding_length": 64,
        "llama.block_count": 2,
        "llama.feed_forward_length": 128,
        "llama.attention.head_count": 1,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": pytest.approx(1e-5),
        "llama.rope.dimension_count": 64,
        "llama.vocab_size": 259,
    }


def test_its_tensors(summary: Summary) -> None:
    shapes = {tensor.name: tensor.shape for tensor in summary.tensors}
    assert len(shapes) == 3 + 2 * 9
    assert shapes["token_embd.weight"] == shapes["output.weight"] == (64, 259)
    assert shapes["blk.1.ffn_down.weight"] == (128, 64)
    assert shapes["blk.1.ffn_up.weight"] == (64, 128)
    assert summary.parameter_count == 115_392


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        tiny.write(tmp_path / "none/tiny.gguf")
