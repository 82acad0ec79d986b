"""Headers of strangers: every number may be anything, and the answer is an estimate or BadModel."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.errors import BadModel
from daemon.scheduler.memory import estimate
from daemon.scheduler.shape import Shape
from daemon.store.gguf import parse
from daemon.store.summary import Summary, Tensor
from tests.fakes.gguf_files import ARRAY, F32, Raw, gguf

_NEEDED = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4}
_SAID = {
    "block_count",
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
}
# What may be 0 in a sound file.
_OPTIONAL = {
    "attention.key_length_mla", "attention.value_length_mla", "attention.sliding_window", "attention.shared_kv_layers",
    "attention.indexer.key_length", "nextn_predict_layers", "feed_forward_length", "expert_count", "expert_used_count",
    "expert_feed_forward_length", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.group_count",
    "wkv.head_size", "token_shift_count", "shortconv.l_cache", "kda.head_dim", "full_attention_interval",
    "attention.recurrent_layers", "attention.sliding_window_pattern", "attention.key_length_swa",
}  # fmt: skip
_ARCHITECTURES = (
    "llama", "gemma3", "gemma3n", "gemma4", "deepseek2", "mamba", "mamba2", "rwkv7", "jamba", "qwen3next", "nemotron_h",
    "falcon-h1", "lfm2", "kimi-linear", "minimax-01", "bert", "gpt-oss", "", "never-seen",
)  # fmt: skip


def header(architecture: str, numbers: dict[str, Any], tensors: tuple[Any, ...] = ()) -> Summary:
    metadata = {f"{architecture}.{key}": value for key, value in {**_NEEDED, **numbers}.items()}
    metadata["general.architecture"] = architecture
    return Summary(metadata, {}, (Tensor("token_embd.weight", "F16", (64, 100)), *tensors))


_HOSTILE = [
    -1,
    2**63,
    2**64 - 1,
    float("nan"),
    float("inf"),
    8.0,
    True,
    False,
    "8",
    "",
    (1,),
    (1, 2, 3),
    (1,) * 5,
]


@pytest.mark.parametrize("value", [0, *_HOSTILE], ids=repr)
@pytest.mark.parametrize("key", sorted(_SAID))
def test_hostile_numbers_are_refused_in_a_sentence(key: str, value: object) -> None:
    with pytest.raises(BadModel) as caught:
        Shape.of(header("llama", {key: value}))
    assert f"llama.{key}" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("value", [-1, 2**63, float("nan"), "8", (1,), (2**63,) * 4, (-1,) * 4], ids=repr)
@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv"])
def test_hostile_numbers_of_layers_are_refused(key: str, value: object) -> None:
    with pytest.raises(BadModel, match=key):
        Shape.of(header("llama", {key: value}))


@pytest.mark.parametrize("value", [-1, 2**63, float("nan"), "8"], ids=repr)
@pytest.mark.parametrize("key", sorted(_OPTIONAL))
def test_hostile_numbers_are_refused_where_they_are_optional(key: str, value: object) -> None:
    # Whatever makes another number matter is there.
    numbers = {"attention.sliding_window": 8, "attention.key_length_mla": 8, "expert_count": 8}
    numbers |= {"ssm.conv_kernel": 4, "ssm.inner_size": 8, "ssm.state_size": 4}
    if key == "token_shift_count":
        numbers["wkv.head_size"] = 8
    with pytest.raises(BadModel, match=key):
        Shape.of(header("gemma3", {**numbers, key: value}))


@pytest.mark.parametrize("key", sorted(_NEEDED))
def test_what_is_needed_must_be_there(key: str) -> None:
    summary = header("llama", {})
    del summary.metadata[f"llama.{key}"]  # type: ignore[attr-defined]
    with pytest.raises(BadModel, match=f"does not say its llama.{key}"):
        Shape.of(summary)


def test_layers_are_bounded_and_their_heads_too() -> None:
    with pytest.raises(BadModel, match="claims 513 layers"):
        Shape.of(header("llama", {"block_count": 513}))
    with pytest.raises(BadModel, match="no attention heads"):
        Shape.of(header("llama", {"attention.head_count": (0, 0, 0, 0)}))
    with pytest.raises(BadModel, match="key_length"):
        Shape.of(header("llama", {"attention.head_count": 65}))  # more heads than numbers to share out


@pytest.mark.parametrize("pattern", [(1, 0), (2, 0, 0, 0), (-1, 0, 0, 0), (2**63, 1, 1, 1)], ids=repr)
def test_a_pattern_says_yes_or_no_for_each_layer(pattern: object) -> None:
    numbers = {"attention.sliding_window": 8, "attention.sliding_window_pattern": pattern}
    with pytest.raises(BadModel, match="0 or 1 for each of 4 layers"):
        Shape.of(header("gemma3", numbers))


def test_lists_that_were_not_kept_are_refused() -> None:
    summary = header("llama", {})
    del summary.metadata["llama.attention.head_count"]  # type: ignore[attr-defined]
    counted = Summary(summary.metadata, {"llama.attention.head_count": 2**40}, summary.tensors)
    with pytest.raises(BadModel, match="list that is too long"):
        Shape.of(counted)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (Tensor("a", "Q9_9", (32,)), "type"),
        (Tensor("a", "F32", (0, 3)), "size"),
        (Tensor("a", "F32", (-4,)), "size"),
        (Tensor("a", "F32", (2**63,)), "size"),
        (Tensor("a", "F32", (True,)), "size"),
        (Tensor("a", "F32", (float("nan"),)), "size"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_hostile_tensors_are_refused(tensor: Tensor, words: str) -> None:
    with pytest.raises(BadModel, match=words):
        Shape.of(header("llama", {}, (tensor,)))


def test_tensors_must_fit_the_file() -> None:
    summary = header("llama", {})
    assert Shape.of(summary, 12_800).weights == 12_800
    with pytest.raises(BadModel, match="12800 bytes and its file has 12799"):
        Shape.of(summary, 12_799)


def test_a_file_is_refused_or_understood() -> None:
    def shape(metadata: dict[str, Any]) -> Shape:
        file = gguf({"llama.attention.head_count": 2, **metadata})
        return Shape.of(parse(lambda count, offset: file[offset : offset + count], len(file)), len(file))

    assert shape({}).layers[0].kv == 2 * 32 * 2
    for hostile in (0, 2**63, 1.5, True, "2", [1, 2], Raw(F32, b"\x00\x00\xc0\x7f"), Raw(ARRAY, bytes(12))):
        with pytest.raises(BadModel):
            shape({"llama.attention.head_count": hostile})


_number = st.one_of(
    st.integers(0, 16),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 4) | st.integers() | st.booleans(), max_size=5).map(tuple),
)


@given(
    st.sampled_from(_ARCHITECTURES),
    st.dictionaries(st.sampled_from(sorted(_SAID | _OPTIONAL)), _number, max_size=12),
    st.integers(1, 2**20),
    st.integers(1, 8),
)
def test_any_header_gives_an_estimate_or_bad_model(
    architecture: str, numbers: dict[str, Any], window: int, slots: int
) -> None:
    try:
        shape = Shape.of(header(architecture, numbers))
    except BadModel:
        return
    need = estimate(shape, window=window, slots=slots, batch=256)
    parts = [need.weights, need.kv, need.state, need.compute, need.fixed, need.prompt_cache, need.checkpoints]
    assert all(type(part) is int and part >= 0 for part in parts)
    assert need.total >= need.weights > 0


@given(st.dictionaries(st.sampled_from(["embedding_length", "image_size", "patch_size"]), _number))
def test_any_projector_gives_an_estimate_or_bad_model(numbers: dict[str, Any]) -> None:
    metadata = {f"clip.vision.{key}": value for key, value in numbers.items()}
    projector = Summary(metadata, {}, (Tensor("v.patch", "F16", (64, 100)),))
    try:
        shape = Shape.of(header("llama", {}), projectors=[projector])
    except BadModel:
        return
    assert shape.projector >= 12_800
