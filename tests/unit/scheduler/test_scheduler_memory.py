"""Estimates, by arithmetic that is written out here for models with known numbers."""

from collections.abc import Mapping
from dataclasses import fields, replace

import pytest

from daemon.runner.launch import CACHE_RAM_MIB
from daemon.scheduler.memory import MIB, Need, divide, estimate, occupied
from daemon.scheduler.shape import Layer, Shape
from daemon.store.summary import Summary, Tensor, Value

_LLAMA_8B: Mapping[str, Value] = {"block_count": 32, "embedding_length": 4096, "feed_forward_length": 14336}
_SMOLLM: Mapping[str, Value] = {
    "block_count": 30,
    "embedding_length": 576,
    "feed_forward_length": 1536,
    "attention.head_count": 9,
    "attention.head_count_kv": 3,
}


def made_up(
    architecture: str, numbers: Mapping[str, Value], tensors: tuple[Tensor, ...] = (), **counts: int
) -> Summary:
    """A header of a model; `counts` are lengths of the tokenizer's arrays."""
    metadata: dict[str, Value] = {f"{architecture}.{key}": value for key, value in numbers.items()}
    metadata["general.architecture"] = architecture
    arrays = {f"tokenizer.ggml.{name}": count for name, count in counts.items()}
    embedding = Tensor("token_embd.weight", "F16", (64, 1000))
    return Summary(metadata, arrays, (embedding, *tensors))


def kv(summary: Summary, window: int, slots: int = 1, batch: int = 512) -> int:
    return estimate(Shape.of(summary), window=window, slots=slots, batch=batch).kv


def test_grouped_queries_cache_only_their_own_heads() -> None:
    model = made_up("llama", {**_LLAMA_8B, "attention.head_count": 32, "attention.head_count_kv": 8})
    assert kv(model, 8192) == 1024 * MIB  # what llama.cpp says for Llama 3 8B
    assert kv(model, 8192, slots=4) == 4096 * MIB


def test_smollm_needs_what_the_engine_says() -> None:
    """The lines "KV buffer size" and "compute buffer size" of b11311."""
    shape = Shape.of(made_up("llama", _SMOLLM))
    for window, slots, cache, compute in ((512, 1, 11.25, 7.01), (1024, 4, 90, 7.26), (8192, 4, 720, 10.76)):
        need = estimate(shape, window=window, slots=slots, batch=256)
        assert need.kv == cache * MIB
        assert need.compute == pytest.approx(compute * MIB, rel=0.02)


def test_every_head_is_cached_where_nothing_says_otherwise() -> None:
    model = made_up("llama", {**_LLAMA_8B, "attention.head_count": 32})
    assert kv(model, 1024) == 2 * 32 * 4096 * 2 * 1024


def test_heads_may_have_a_length_of_their_own() -> None:
    heads = {"attention.head_count": 16, "attention.head_count_kv": 2}
    model = made_up(
        "qwen3", {**_LLAMA_8B, **heads, "attention.key_length": 192, "attention.value_length": 64}
    )
    assert kv(model, 256) == 32 * 2 * (192 + 64) * 2 * 256


def test_layers_may_differ_in_their_heads() -> None:
    numbers = {"block_count": 3, "embedding_length": 64}
    model = made_up(
        "deci", {**numbers, "attention.head_count": (4, 4, 4), "attention.head_count_kv": (4, 0, 2)}
    )
    assert kv(model, 256) == (4 + 2) * 2 * 16 * 2 * 256


def test_a_window_is_padded_as_the_engine_pads_it() -> None:
    model = made_up("llama", _SMOLLM)
    assert kv(model, 1) == kv(model, 256)
    assert kv(model, 100, slots=3) == kv(model, 256, slots=3)
    assert kv(model, 300) == kv(model, 512)


def test_layers_with_a_sliding_window_cache_no_more_than_it() -> None:
    gemma = {"block_count": 12, "embedding_length": 1024, "attention.head_count": 4}
    model = made_up("gemma3", {**gemma, "attention.sliding_window": 1024})
    each = 2 * 1024 * 2
    assert kv(model, 32768, batch=256) == (2 * 32768 + 10 * 1280) * each
    assert kv(model, 512, batch=256) == 12 * 512 * each  # a short window is cached whole


def test_the_file_may_say_which_layers_slide() -> None:
    numbers = {"block_count": 4, "embedding_length": 64, "attention.head_count": 1}
    sliding: dict[str, Value] = {
        "attention.sliding_window": 256,
        "attention.sliding_window_pattern": (True, True, True, False),
    }
    each = 2 * 64 * 2
    expected = (4096 + 3 * 512) * each
    assert kv(made_up("gemma4", {**numbers, **sliding}), 4096, batch=256) == expected
    sliding["attention.sliding_window_pattern"] = 4
    assert kv(made_up("gemma2", {**numbers, **sliding}), 4096, batch=256) == expected
    # An architecture that is known to slide, without a word of where; and one that is not known to.
    assert kv(made_up("gemma4", {**numbers, "attention.sliding_window": 256}), 4096) == 4 * 4096 * each
    assert kv(made_up("phi3", {**numbers, **sliding}), 4096) == 4 * 4096 * each


def test_sliding_layers_may_have_shorter_heads() -> None:
    numbers: dict[str, Value] = {
        "block_count": 2,
        "embedding_length": 1024,
        "attention.head_count": 2,
        "attention.key_length": 512,
        "attention.value_length": 512,
        "attention.key_length_swa": 256,
        "attention.value_length_swa": 256,
        "attention.sliding_window": 256,
        "attention.sliding_window_pattern": (True, False),
    }
    assert kv(made_up("gemma4", numbers), 4096, batch=256) == 2 * 2 * (512 * 512 + 1024 * 4096)


def test_layers_that_share_a_cache_have_none_of_their_own() -> None:
    numbers = {"block_count": 6, "embedding_length": 64, "attention.head_count": 1}
    assert kv(made_up("gemma4", {**numbers, "attention.shared_kv_layers": 4}), 256) == 2 * 256 * 256
    assert kv(made_up("glm4moe", {**numbers, "nextn_predict_layers": 1}), 256) == 5 * 256 * 256


def test_latent_attention_caches_one_vector_and_no_values() -> None:
    """DeepSeek V3: 512 + 64 numbers for each token of 61 layers."""
    numbers = {
        "block_count": 61,
        "embedding_length": 7168,
        "attention.head_count": 128,
        "attention.head_count_kv": 1,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "attention.kv_lora_rank": 512,
    }
    assert kv(made_up("deepseek2", numbers), 4096) == 61 * 576 * 2 * 4096


def test_recurrent_models_have_a_state_for_each_slot_and_no_cache() -> None:
    mamba = {
        "block_count": 24,
        "embedding_length": 768,
        "attention.head_count": 0,
        "feed_forward_length": 0,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 1536,
        "ssm.state_size": 16,
    }
    state = 24 * 4 * (3 * 1536 + 16 * 1536)
    shape = Shape.of(made_up("mamba", mamba))
    short = estimate(shape, window=256, slots=1, batch=256)
    for window, slots in ((256, 1), (8192, 1), (8192, 4)):
        need = estimate(shape, window=window, slots=slots, batch=256)
        assert (need.kv, need.state) == (0, slots * state)
        assert need.compute - short.compute == (slots - 1) * 4 * shape.vocabulary  # nothing to look back at


def test_mamba_2_has_groups() -> None:
    numbers = {"block_count": 2, "embedding_length": 64, "ssm.conv_kernel": 4, "ssm.inner_size": 128}
    model = made_up("mamba2", {**numbers, "ssm.state_size": 32, "ssm.group_count": 8})
    need = estimate(Shape.of(model), window=256, slots=1, batch=256)
    assert need.state == 2 * 4 * (3 * (128 + 2 * 8 * 32) + 32 * 128)


def test_rwkv_shifts_two_tokens() -> None:
    numbers = {"block_count": 2, "embedding_length": 64, "attention.head_count": 0, "wkv.head_size": 64}
    need = estimate(Shape.of(made_up("rwkv7", numbers)), window=4096, slots=2, batch=256)
    assert (need.kv, need.state) == (0, 2 * 2 * 4 * 64 * (2 + 64))


@pytest.mark.parametrize(
    ("architecture", "numbers", "attending", "keeping"),
    [
        ("jamba", {"attention.head_count_kv": (0, 0, 0, 2)}, 1, 3),
        ("granitehybrid", {"attention.head_count_kv": (0, 2, 0, 2)}, 2, 2),
        ("qwen3next", {"attention.head_count_kv": 2}, 1, 3),
        ("qwen35", {"attention.head_count_kv": 2, "full_attention_interval": 2}, 2, 2),
        ("qwen35", {"attention.head_count_kv": 2, "attention.recurrent_layers": (1, 0, 0, 0)}, 3, 1),
        ("falcon-h1", {"attention.head_count_kv": 2}, 4, 4),
        (
            "nemotron_h",
            {"attention.head_count_kv": (0, 0, 2, 0), "feed_forward_length": (0, 9, 0, 9)},
            1,
            1,
        ),
    ],
)
def test_hybrids_attend_in_some_layers(
    architecture: str, numbers: Mapping[str, Value], attending: int, keeping: int
) -> None:
    hybrid = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4, "ssm.conv_kernel": 4}
    model = made_up(architecture, {**hybrid, "ssm.inner_size": 32, "ssm.state_size": 8, **numbers})
    need = estimate(Shape.of(model), window=256, slots=1, batch=256)
    assert need.kv == attending * 2 * 2 * 16 * 2 * 256
    assert need.state == keeping * 4 * (3 * 32 + 32 * 8)


def test_short_convolutions_are_a_state() -> None:
    numbers = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "shortconv.l_cache": 3}
    model = made_up("lfm2", {**numbers, "attention.head_count_kv": (0, 2)})
    need = estimate(Shape.of(model), window=256, slots=1, batch=256)
    assert (need.kv, need.state) == (2 * 2 * 16 * 2 * 256, 4 * 64 * 2)


def test_all_experts_are_weights_and_those_at_work_are_computed_with() -> None:
    numbers = {"block_count": 1, "embedding_length": 64, "attention.head_count": 1}
    experts = Tensor("blk.0.ffn_up_exps.weight", "Q8_0", (64, 32, 8))
    dense = Shape.of(made_up("qwen3moe", numbers, (experts,)))
    sparse = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
    shape = Shape.of(made_up("qwen3moe", {**numbers, **sparse}, (experts,)))
    assert shape.layers[0].weights == dense.layers[0].weights == 64 * 32 * 8 // 32 * 34
    assert shape.activation == 4 * (4 * 64 + 2 * (3 * 32 + 64))


def test_weights_are_counted_by_the_tensors() -> None:
    tensors = (
        Tensor("output.weight", "F32", (64, 1000)),
        Tensor("output_norm.weight", "F32", (64,)),
        Tensor("blk.0.ffn_up.weight", "Q4_K", (256, 10)),
        Tensor("blk.1.ffn_up.weight", "Q4_1", (64, 10)),
        Tensor("blk.2.ffn_up.weight", "F16", (64, 10)),  # a layer too many: weights all the same
    )
    model = made_up("llama", {"block_count": 2, "embedding_length": 64, "attention.head_count": 1}, tensors)
    shape = Shape.of(model)
    assert shape.output == 256_000
    assert [layer.weights for layer in shape.layers] == [1440, 400]
    assert shape.embedding == 128_000 + 256 + 1280
    assert shape.weights == shape.output + shape.embedding + 1840
    assert shape.repackable == 1440
    assert shape.vocabulary == 1000


def test_a_large_vocabulary_takes_memory_of_its_own() -> None:
    small = Shape.of(made_up("llama", _SMOLLM))
    large = Shape.of(made_up("llama", _SMOLLM, tokens=100_000, merges=200_000))
    assert large.fixed - small.fixed == 100_000 * 168 + 200_000 * 224


def test_vectors_of_texts_cost_the_probabilities_of_every_token() -> None:
    """Measured for SmolLM2: 854 MiB of anonymous memory at a window of 2048, although nobody asks for them."""
    model = made_up("llama", _SMOLLM, tokens=49152, merges=48900)
    shape = replace(Shape.of(model), vocabulary=49152)
    need = estimate(shape, window=2048, slots=4, batch=256, embedding=True)
    assert need.total - need.weights == pytest.approx(854 * MIB, rel=0.03)
    assert (need.prompt_cache, need.kv) == (0, 45 * MIB)


def test_encoders_have_no_cache_and_no_probabilities() -> None:
    bert = {"block_count": 12, "embedding_length": 768, "attention.head_count": 12}
    shape = Shape.of(made_up("bert", {**bert, "feed_forward_length": 3072}))
    need = estimate(shape, window=512, slots=1, batch=512, embedding=True)
    assert (need.kv, need.prompt_cache, shape.vocabulary) == (0, 0, 0)
    assert need.compute < 40 * MIB


def test_what_grows_with_use_is_named_apart() -> None:
    numbers = {**_SMOLLM, "attention.sliding_window": 256, "attention.sliding_window_pattern": 2}
    need = estimate(Shape.of(made_up("gemma2", numbers)), window=4096, slots=2, batch=256)
    assert need.prompt_cache == CACHE_RAM_MIB * MIB
    assert need.checkpoints == 4 * 2 * (15 * 768 * 512)  # 15 layers, 512 tokens, 4 for each slot
    assert need.most == need.total + need.prompt_cache + need.checkpoints
    parts = [part.name for part in fields(Need) if part.name not in ("prompt_cache", "checkpoints")]
    assert need.total == sum(getattr(need, part) for part in parts)
    assert estimate(Shape.of(made_up("llama", _SMOLLM)), window=4096, slots=2, batch=256).checkpoints == 0
    less = estimate(Shape.of(made_up("llama", _SMOLLM)), window=512, slots=1, batch=256, cache_ram=7)
    assert less.prompt_cache == 7


def test_more_of_anything_needs_no_less() -> None:
    shape = Shape.of(made_up("gemma3", {**_SMOLLM, "attention.sliding_window": 512}))
    totals = [
        estimate(shape, window=window, slots=slots, batch=batch).total
        for window, slots, batch in (
            (256, 1, 64),
            (512, 1, 64),
            (512, 2, 64),
            (512, 2, 512),
            (70_000, 4, 512),
        )
    ]
    assert totals == sorted(totals)


# ---- projectors and adapters


def test_a_projector_and_adapters_are_added() -> None:
    vision = {"clip.vision.embedding_length": 64, "clip.vision.feed_forward_length": 128}
    vision |= {
        "clip.vision.attention.head_count": 4,
        "clip.vision.image_size": 56,
        "clip.vision.patch_size": 14,
    }
    projector = Summary(vision, {}, (Tensor("v.patch", "F16", (64, 100)),))
    model = made_up("llama", _SMOLLM)
    shape = Shape.of(model, projectors=[projector], adapters=5000)
    need = estimate(shape, window=512, slots=1, batch=256)
    assert need.adapters == 5000
    assert need.projector == 12_800 + 4 * 16 * (4 * 64 + 2 * 128 + 16 * 4)
    bare = Summary({}, {}, (Tensor("a.conv", "F32", (100,)),))
    assert Shape.of(model, projectors=[bare]).projector == 500


# ---- on a GPU


def _three_layers(output: int = 300) -> Shape:
    return Shape(
        layers=(Layer(10, kv=1), Layer(20, kv=2, slides=True), Layer(30, state=7)),
        embedding=400, output=output, activation=4, width=1, vocabulary=1, sliding=256, fixed=0, repackable=0,
        cached=True, projector=5, adapters=6,
    )  # fmt: skip


def test_without_layers_on_the_gpu_all_is_needed_of_the_machine() -> None:
    shape = _three_layers()
    host, device = divide(shape, 0, window=1024, slots=2, batch=256)
    assert host == estimate(shape, window=1024, slots=2, batch=256)
    assert device == Need()


def test_the_output_goes_first_and_then_the_last_layers() -> None:
    shape = _three_layers()
    whole = estimate(shape, window=1024, slots=2, batch=256)
    moved = [divide(shape, layers, window=1024, slots=2, batch=256).device for layers in (1, 2, 3)]
    assert [device.weights for device in moved] == [300, 330, 350]
    assert [device.state for device in moved] == [0, 14, 14]
    assert [device.kv for device in moved] == [0, 0, 2 * 2 * 512]
    host, device = divide(shape, 3, window=1024, slots=2, batch=256)
    assert (host.weights, host.kv, host.state) == (whole.weights - 350, 2 * 1024, 0)
    assert (device.projector, device.adapters, host.projector, host.adapters) == (5, 6, 0, 0)
    assert host.compute == whole.compute
    assert host.prompt_cache == whole.prompt_cache
    assert device.fixed > 0


@pytest.mark.parametrize(("output", "moved"), [(300, 360), (0, 460)])
def test_all_layers_leave_the_embedding_where_it_is(output: int, moved: int) -> None:
    """A tied output is a second copy of the embedding."""
    host, device = divide(_three_layers(output), 99, window=1024, slots=2, batch=256)
    assert (device.weights, host.weights) == (moved, 400)
    assert host.kv == host.state == 0
    assert host.compute < device.compute


# ---- what is measured


def test_weights_that_were_copied_count_once() -> None:
    model = made_up("llama", _SMOLLM, (Tensor("blk.0.ffn_up.weight", "Q4_0", (4096, 4096)),))
    shape = Shape.of(model)
    need = estimate(shape, window=512, slots=1, batch=256)
    rest = need.total - need.weights
    assert occupied(shape, need, rest, need.weights) == need.total
    assert occupied(shape, need, rest + shape.repackable, need.weights) == need.total
    assert occupied(shape, need, rest + need.weights, 0) == need.total  # read, not mapped
    more = rest + shape.repackable // 4
    assert occupied(shape, need, more, need.weights) == more + need.weights  # no copy: the estimate was low
    plain = Shape.of(made_up("llama", _SMOLLM))
    assert occupied(plain, need, 10 * rest, 7) == 10 * rest + 7
