"""The bounded reader of GGUF headers."""

import math
import random
import struct
import time
from pathlib import Path

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from daemon.errors import BadModel, StorageFailed
from daemon.store import gguf as reader
from daemon.store.ggml import FILE_TYPES, TENSOR_TYPES
from daemon.store.gguf import parse, read_summary
from daemon.store.summary import Summary, Tensor
from tests.fakes import gguf_files
from tests.fakes.gguf_files import NOT_MODELS, Meta, Raw, TensorInfo, gguf, head, string


class CountedFile:
    """Bytes that tell how they were read; `size` may claim more than there are."""

    def __init__(self, data: bytes, size: int | None = None) -> None:
        self.data = data
        self.size = len(data) if size is None else size
        self.reads: list[int] = []

    def __call__(self, count: int, offset: int) -> bytes:
        piece = self.data[offset : offset + count]
        if offset + count > len(self.data) and self.size > len(self.data):
            piece = piece.ljust(min(count, self.size - offset), b"\0")
        self.reads.append(len(piece))
        return piece


def summary_of(data: bytes) -> Summary:
    return parse(CountedFile(data), len(data))


def refusal(data: bytes) -> str:
    with pytest.raises(BadModel) as caught:
        summary_of(data)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_types_are_those_of_the_gguf_package() -> None:
    assert {int(t): (t.name, *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType} == TENSOR_TYPES
    names = {
        int(t): t.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        for t in LlamaFileType
        if t is not LlamaFileType.GUESSED
    }
    assert names == FILE_TYPES


@pytest.mark.parametrize("version", [2, 3])
def test_a_valid_file(version: int) -> None:
    summary = summary_of(gguf(version=version))
    assert (summary.architecture, summary.name, summary.file_type) == ("llama", "Tiny", "F32")
    assert (summary.context_length, summary.embedding_length, summary.number("block_count")) == (128, 32, 1)
    assert summary.parameter_count == 64
    assert summary.tensors == (Tensor("output.weight", "F32", (32, 2)),)
    assert summary.array_counts == {"tokenizer.ggml.tokens": 3}
    assert summary.chat_template is None


def test_every_kind_of_value() -> None:
    metadata: dict[str, Meta] = {
        "k.u8": Raw(0, b"\xff"),
        "k.i8": Raw(1, b"\xff"),
        "k.u16": Raw(2, b"\xff\xff"),
        "k.i16": Raw(3, b"\xff\xff"),
        "k.i32": Raw(5, b"\xff" * 4),
        "k.u64": Raw(10, b"\xff" * 8),
        "k.i64": Raw(11, b"\xff" * 8),
        "k.f32": 0.5,
        "k.f64": Raw(12, struct.pack("<d", 0.1)),
        "k.bool": True,
        "k.text": "h\u00e9",
        "k.bad_text": Raw(8, string(b"a\xff")),
        "k.small": [4, 0, -1],
        "k.bools": Raw(9, struct.pack("<IQ", 7, 2) + b"\1\0"),
        "k.large": [1] * 1025,
        "k.floats": Raw(9, struct.pack("<IQff", 6, 2, 1.0, 2.0)),
        "tokenizer.chat_template": "{{ x }}",
    }
    summary = summary_of(gguf(metadata))
    kept = {key: value for key, value in summary.metadata.items() if key.startswith("k.")}
    assert kept == {
        "k.u8": 255,
        "k.i8": -1,
        "k.u16": 65535,
        "k.i16": -1,
        "k.i32": -1,
        "k.u64": 2**64 - 1,
        "k.i64": -1,
        "k.f32": 0.5,
        "k.f64": 0.1,
        "k.bool": True,
        "k.text": "h\u00e9",
        "k.bad_text": "a\ufffd",
        "k.small": (4, 0, -1),
        "k.bools": (True, False),
    }
    assert summary.array_counts == {"tokenizer.ggml.tokens": 3, "k.large": 1025, "k.floats": 2}
    assert summary.chat_template == "{{ x }}"


@pytest.mark.parametrize(("data", "words"), NOT_MODELS.values(), ids=NOT_MODELS.keys())
def test_what_is_not_a_model_is_told_apart(data: bytes, words: str) -> None:
    assert words in refusal(data)


def test_each_refusal_is_another_sentence() -> None:
    assert len({refusal(data) for data, _ in NOT_MODELS.values()}) == len(NOT_MODELS)


def test_every_prefix_of_a_good_file_is_refused() -> None:
    whole = gguf()
    for length in range(len(whole)):
        refusal(whole[:length])
    summary_of(whole)


def test_a_huge_array_is_refused_before_it_is_read() -> None:
    data = gguf_files.claims_huge_array()
    assert len(data) == 49
    file = CountedFile(data)
    with pytest.raises(BadModel, match="claims 1152921504606846976 elements"):
        parse(file, len(data))
    assert file.reads == [49]


def test_a_huge_array_in_a_huge_file_costs_one_small_read() -> None:
    file = CountedFile(gguf_files.claims_huge_array(), size=2**50)
    with pytest.raises(BadModel, match="claims"):
        parse(file, file.size)
    assert sum(file.reads) <= 4096


U32, STRING, ARRAY = gguf_files.U32, gguf_files.STRING, gguf_files.ARRAY


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (head(0, 0, version=0), "version 0"),
        (head(0, 0, version=1), "version 1"),
        (head(0, 0, version=4), "version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (head(0, 2**62), "metadata keys"),
        (head(2**62, 0), "tensors"),
        (head(0, 1) + string("k" * 257), "257 bytes"),
        (head(0, 1) + struct.pack("<Q", 2**60), "a metadata key claims"),
        (head(0, 1) + string("") + struct.pack("<II", U32, 1), "key is empty"),
        (head(0, 2) + 2 * (string("k") + struct.pack("<II", U32, 1)), "twice"),
        (head(0, 1) + string("k") + struct.pack("<I", 13), "unknown type 13"),
        (head(0, 1) + string("k") + struct.pack("<IQ", STRING, 2**60), "claims 1152921504606846976 bytes"),
        (
            head(0, 1) + string("k") + struct.pack("<IIQ", ARRAY, STRING, 2**40),
            "claims 1099511627776 elements",
        ),
        (head(0, 1) + string("k") + struct.pack("<IIQQ", ARRAY, STRING, 1, 2**60), "a string of 'k'"),
        (head(0, 1) + string("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1), "elements of type 9"),
        (head(0, 1) + string("k") + struct.pack("<IIQ", ARRAY, 99, 1), "elements of type 99"),
        (head(1, 0), "architecture"),
        (gguf({"general.architecture": 7}), "architecture"),
        (gguf({"tokenizer.chat_template": "x" * (256 * 1024 + 1)}), "at most 262144"),
        (gguf({"general.alignment": 3}), "power of two"),
        (gguf({"general.alignment": 0}), "power of two"),
        (gguf({"general.alignment": "32"}), "power of two"),
        (gguf({"general.alignment": 131072}), "power of two"),
        (gguf(tensors=[]), "no tensors"),
        (gguf(tensors=[TensorInfo(), TensorInfo()]), "twice"),
        (gguf(tensors=[TensorInfo(shape=())]), "0 dimensions"),
        (gguf(tensors=[TensorInfo(shape=(1,) * 5)]), "5 dimensions"),
        (gguf(tensors=[TensorInfo(shape=(32, 0))]), "claims 0 elements"),
        (gguf(tensors=[TensorInfo(shape=(2**33, 2**33))], data=b""), "which the file cannot hold"),
        (gguf(tensors=[TensorInfo(type=4)]), "type 4"),
        (gguf(tensors=[TensorInfo(shape=(33,), type=gguf_files.TYPE_Q4_1)]), "whole blocks of Q4_1"),
        (gguf(tensors=[TensorInfo(offset=1)]), "not aligned to 32"),
        (gguf(tensors=[TensorInfo(offset=2**60)], data=bytes(256)), "truncated"),
    ],
)
def test_hostile_headers(data: bytes, words: str) -> None:
    assert words in refusal(data)


def test_a_large_header_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_HEADER", 1000)
    assert "longer than 1000 bytes" in refusal(gguf({"general.description": "x" * 1000}))


def test_random_damage_never_raises_anything_else() -> None:
    chance = random.Random(7)
    good = gguf({"llama.attention.head_count_kv": [1, 2], "tokenizer.chat_template": "x"})
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0xFF, chance.randrange(256)])
        try:
            summary_of(bytes(data))
        except BadModel:
            continue


@pytest.mark.parametrize("value", [0, 2**31, 2**63, 1.5, math.nan, "x", True, [1, 2], [1] * 1025, ["x"]])
def test_hostile_numbers_are_kept_and_refused_when_used(value: Meta) -> None:
    summary = summary_of(gguf({"llama.context_length": value}))
    with pytest.raises(BadModel, match=r"llama\.context_length"):
        assert summary.context_length


def test_a_missing_number_is_none() -> None:
    assert summary_of(gguf()).number("pooling_type") is None


def test_a_summary_survives_json() -> None:
    summary = summary_of(gguf({"k.small": [1, 2], "k.f": 0.25, "k.text": "\u2028\u00e9", "k.inf": math.inf}))
    assert Summary.from_json(summary.to_json()) == summary
    with pytest.raises(ValueError, match="format"):
        Summary.from_json(b'{"format": 0}')


def test_model_info_is_legal_json() -> None:
    info = summary_of(gguf({"k.inf": math.inf, "k.small": [1], "tokenizer.chat_template": "x"})).model_info()
    assert info == {
        "general.architecture": "llama",
        "general.file_type": 0,
        "general.parameter_count": 64,
        "k.inf": None,
        "k.small": None,
        "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.embedding_length": 32,
        "llama.attention.head_count": 2,
        "tokenizer.ggml.tokens": None,
    }


def test_a_large_vocabulary_is_walked_quickly(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    words = [f"token{n}" for n in range(50_000)]
    path.write_bytes(gguf({"tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": words}))
    started = time.monotonic()
    summary = read_summary(path)
    assert time.monotonic() - started < 5
    assert summary.array_counts == {"tokenizer.ggml.tokens": 50_000, "tokenizer.ggml.merges": 50_000}
    assert summary.parameter_count == 64


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(gguf())
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("absent", "link", "."):
        with pytest.raises(StorageFailed) as caught:
            read_summary(tmp_path / name)
        assert str(tmp_path) not in caught.value.message


# ---- arrays


def test_arrays_are_read_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    floats = Raw(9, struct.pack("<IQ2f", 6, 2, 0.5, math.inf))
    path.write_bytes(gguf({"a.floats": floats, "a.small": [1, 2], "a.many": range(5000), "z": "after"}))
    arrays = reader.read_arrays(path)
    assert arrays == {
        "tokenizer.ggml.tokens": ["a", "bc", ""],
        "a.floats": [0.5, math.inf],
        "a.small": [1, 2],
        "a.many": [*range(5000)],
    }
    summary = read_summary(path)
    assert set(arrays) == {*summary.array_counts, "a.small"}
    info = summary.model_info(arrays)
    assert (info["a.floats"], info["tokenizer.ggml.tokens"]) == ([0.5, None], ["a", "bc", ""])


def test_arrays_beyond_the_limit_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf({"a": [1, 2, 3], "b": [4, 5], "c": ["x"]}))
    monkeypatch.setattr(reader, "MAX_SHOWN_ELEMENTS", 6)
    assert reader.read_arrays(path) == {"tokenizer.ggml.tokens": ["a", "bc", ""], "a": [1, 2, 3]}


@pytest.mark.parametrize(
    ("data", "words"), [(gguf()[:60], "truncated"), (gguf_files.claims_huge_array(), "array")]
)
def test_arrays_of_a_hostile_file(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(BadModel, match=words):
        reader.read_arrays(path)
