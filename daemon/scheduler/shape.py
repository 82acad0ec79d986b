"""What a model's header says of the memory that it needs. Pure, and none of its numbers is trusted.

Source of every rule: llama.cpp (b11311), which has them under the names given here: the keys and their defaults in
`llama_model_base::load_hparams` and each `load_arch_hparams`, which layers cache what in `llama_model::create_memory`.
An architecture that is not named here is taken to attend to its whole window in every layer, which is the most.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

from daemon.errors import BadModel
from daemon.store.ggml import TENSOR_TYPES
from daemon.store.summary import Summary, Tensor

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_MOST = 2**31 - 1

F16, F32 = 2, 4  # bytes of a number in the cache, and in what is computed

_PROGRAM = 13 * 1024 * 1024  # native 5, the wheel 21 (measured)
_TOKEN, _MERGE = 168, 224  # of the vocabulary, in bytes (measured)
_MOST_PATCHES = 16384  # what an image is cut into
_USUAL_PATCHES = 4096  # ... where a projector does not say

_BLOCKS = {name: (block, size) for name, block, size in TENSOR_TYPES.values()}
_LAYER = re.compile(r"blk\.(\d{1,4})\.")
# Types that an engine on some CPU copies into another order (ggml-cpu/repack.cpp).
_REPACKED = frozenset({"Q4_0", "Q2_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"})
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_ENCODERS = frozenset(
    {
        "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert", "modern-bert",
        "gemma-embedding", "wavtokenizer-dec",
    }
)  # fmt: skip
_NOT_CACHED = _ENCODERS | {"dream", "llada", "llada-moe", "rnd1"}
# Hybrids whose every n-th layer attends; the others of a hybrid are those without heads for keys.
_ATTENDS_EVERY = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}


class _Slides(NamedTuple):
    """`period` n: of n layers, one attends to everything (the first of them with `first`, else the last); 0: a layer
    does when the file says so. `tokens`: the sliding window where the file does not say, 0 for none."""

    period: int
    first: bool = False
    tokens: int = 0


_SLIDING: Mapping[str, _Slides] = {
    "afmoe": _Slides(4),
    "cohere2": _Slides(4),
    "cohere2moe": _Slides(4, True),
    "exaone-moe": _Slides(4, tokens=128),
    "exaone4": _Slides(4),
    "gemma2": _Slides(2, tokens=4096),
    "gemma3": _Slides(6),
    "gemma3n": _Slides(5),
    "gemma4": _Slides(0),
    "gpt-oss": _Slides(2),
    "granite_swa": _Slides(0),
    "laguna": _Slides(4, True),
    "llama4": _Slides(4, tokens=8192),
    "maple": _Slides(0),
    "mellum": _Slides(4),
    "mimo2": _Slides(0),
    "muse-glimmer": _Slides(4),
    "olmo2": _Slides(4),
    "plamo3": _Slides(8),
    "smallthinker": _Slides(4, True),
    "spark2_5": _Slides(0),
    "step35": _Slides(0),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """Bytes of one layer: of its weights, of its cache for each token, of its state for each slot. With `slides` it
    caches only the tokens of the sliding window."""

    weights: int
    kv: int = 0
    state: int = 0
    slides: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """What an estimate needs to know of a model. `embedding` (of tokens), `output` and `projector` are the bytes of
    their weights, `activation` the bytes that a batch takes for each of its tokens, `width` the numbers of one
    embedding, `vocabulary` the numbers of one answer's probabilities (0: the model has none), `sliding` tokens.
    `repackable`: bytes of weights that an engine on a CPU may copy into an order of its own.
    """

    layers: tuple[Layer, ...]
    embedding: int
    output: int
    activation: int
    width: int
    vocabulary: int
    sliding: int
    fixed: int
    repackable: int
    cached: bool
    projector: int
    adapters: int

    @property
    def weights(self) -> int:
        return self.embedding + self.output + sum(layer.weights for layer in self.layers)

    @classmethod
    def of(
        cls, summary: Summary, size: int = 0, projectors: Sequence[Summary] = (), adapters: int = 0
    ) -> "Shape":
        """`size` and `adapters` are bytes of files, `size` 0 where it is not known. Raises BadModel."""
        head = _Header(summary)
        weights = _Weights(summary.tensors, head.layers, size)
        layers, sliding = _layers(head, weights)
        return cls(
            layers=layers,
            embedding=weights.embedding,
            output=weights.output,
            activation=_activation(head),
            width=head.width,
            vocabulary=0 if summary.architecture in _ENCODERS else weights.vocabulary,
            sliding=sliding,
            fixed=_fixed(summary),
            repackable=weights.repackable,
            cached=summary.architecture not in _NOT_CACHED,
            projector=sum(map(projector_bytes, projectors)),
            adapters=adapters,
        )


def projector_bytes(summary: Summary) -> int:
    """What a projector needs: its weights, and what it computes with for one image. Raises BadModel."""
    weights = sum(_bytes(tensor) for tensor in summary.tensors)
    head = _Numbers(summary, "clip.vision.")
    width = head.number("embedding_length", 0)
    if not width:
        return weights + weights // 4
    inner, heads = head.number("feed_forward_length", 4 * width), head.number("attention.head_count", 16)
    across = head.number("image_size", 0) // head.number("patch_size", 14, least=1)
    patches = min(across * across or _USUAL_PATCHES, _MOST_PATCHES)
    return weights + F32 * patches * (4 * width + 2 * inner + patches * heads)


def _activation(head: "_Header") -> int:
    """Bytes for each token of a batch: the residual stream, and the widest thing that a layer makes of it."""
    experts = max(head.each("expert_used_count", 0)) if head.number("expert_count", 0) else 0
    inner = max(head.each("feed_forward_length", 0))
    expert = max(head.each("expert_feed_forward_length", 0)) or inner
    routed = experts * (3 * expert + head.width)
    attention = 2 * max(head.heads) * max(head.key, head.value)
    recurrent = 4 * head.number("ssm.inner_size", 0)
    return F32 * (4 * head.width + max(3 * inner, routed, attention, recurrent))


def _fixed(summary: Summary) -> int:
    """The program and its vocabulary."""
    counts = summary.array_counts
    words = counts.get("tokenizer.ggml.tokens", 0) * _TOKEN
    return _PROGRAM + words + counts.get("tokenizer.ggml.merges", 0) * _MERGE


def _layers(head: "_Header", weights: "_Weights") -> tuple[tuple[Layer, ...], int]:
    """The layers, and the sliding window of those that have one, in tokens."""
    state = head.state()
    recurs = head.recurring() if state else (False,) * head.layers
    slides, sliding = head.sliding()
    # The last layers may only guess ahead, or use the caches of earlier ones.
    guessing = head.number("nextn_predict_layers", 0)
    shared = head.number("attention.shared_kv_layers", 0)
    own = max(head.layers - max(guessing, shared), 0) if guessing < head.layers else head.layers
    if head.summary.architecture == "gemma3n":
        own = min(own, 20)
    layers = []
    for index in range(head.layers):
        attends = index < own and (not recurs[index] or head.summary.architecture == "falcon-h1")
        layers.append(
            Layer(
                weights.layers[index],
                head.kv(index, slides[index]) if attends else 0,
                state if recurs[index] else 0,
                slides[index],
            )
        )
    return tuple(layers), sliding if any(slides) else 0


# ---- what a header says


def _bytes(tensor: Tensor) -> int:
    """Raises BadModel."""
    if tensor.type not in _BLOCKS:
        raise BadModel(f"the tensor {tensor.name[:100]!r} has a type that this version does not know")
    if not all(_is_whole(size, 1) for size in tensor.shape):
        raise BadModel(f"the tensor {tensor.name[:100]!r} has a size that is not a whole number from 1 on")
    block, size = _BLOCKS[tensor.type]
    return math.prod(tensor.shape) // block * size


def _is_whole(value: object, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST


class _Weights:
    """The tensors, in bytes. Raises BadModel."""

    def __init__(self, tensors: Sequence[Tensor], layers: int, size: int) -> None:
        self.layers = [0] * layers
        self.embedding = self.output = self.repackable = self.vocabulary = 0
        for tensor in tensors:
            self._add(tensor, _bytes(tensor))
        total = self.embedding + self.output + sum(self.layers)
        if 0 < size < total:
            raise BadModel(f"the model's tensors take {total} bytes and its file has {size}; get it again")

    def _add(self, tensor: Tensor, size: int) -> None:
        found = _LAYER.match(tensor.name)
        matrix = len(tensor.shape) > 1
        if found and int(found[1]) < len(self.layers):
            self.layers[int(found[1])] += size
            self.repackable += size if matrix and tensor.type in _REPACKED else 0
        elif tensor.name == "output.weight":
            self.output += size
        else:
            self.embedding += size
        if matrix and tensor.name in ("token_embd.weight", "output.weight"):
            self.vocabulary = max(self.vocabulary, tensor.shape[1])


class _Numbers:
    """Whole numbers of a header, none of them trusted."""

    def __init__(self, summary: Summary, prefix: str) -> None:
        self.summary = summary
        self._prefix = prefix

    def number(self, name: str, default: int | None = None, least: int = 0) -> int:
        """Raises BadModel for anything but a number from `least` on, and where it is missing without a default."""
        value = self._value(name, default)
        return self._checked(name, value, least)

    def _value(self, name: str, default: object) -> object:
        key = self._prefix + name
        if key in self.summary.array_counts:
            raise BadModel(f"the model's {key[:100]} is a list that is too long or not of whole numbers")
        value = self.summary.metadata.get(key, default)
        if value is None:
            raise BadModel(f"the model does not say its {key[:100]}, without which its memory is not known")
        return value

    def _checked(self, name: str, value: object, least: int) -> int:
        if not _is_whole(value, least):
            key = self._prefix + name
            raise BadModel(f"the model's {key[:100]} is not a whole number between {least} and {_MOST}")
        return value


class _Header(_Numbers):
    """The numbers of a language model. `heads`, `kv_heads` are for each layer; `key`, `value` numbers of one head."""

    def __init__(self, summary: Summary) -> None:
        super().__init__(summary, f"{summary.architecture}.")
        self.layers = self.number("block_count", least=1)
        if self.layers > MAX_LAYERS:
            raise BadModel(f"the model claims {self.layers} layers; an engine takes at most {MAX_LAYERS}")
        self.width = self.number("embedding_length", least=1)
        self.heads: tuple[int, ...] = (0,)
        self.kv_heads: tuple[int, ...] = (0,) * self.layers
        self.key = self.value = 0
        if summary.architecture not in _RECURRENT:
            self._read_heads()

    def _read_heads(self) -> None:
        self.heads = self.each("attention.head_count", None, least=1)
        if not any(self.heads):
            raise BadModel("the model claims to have no attention heads in any layer")
        self.kv_heads = self.each("attention.head_count_kv", self.heads, least=1)
        usual = self.width // max(self.heads)
        self.key = self.number("attention.key_length", usual, least=1)
        self.value = self.number("attention.value_length", usual, least=1)

    def each(self, name: str, default: int | tuple[int, ...] | None, least: int = 0) -> tuple[int, ...]:
        """The numbers of a key that has one for all layers, from `least` on, or one for each, from 0 on.

        Raises BadModel."""
        value = self._value(name, default)
        if not isinstance(value, tuple):
            return (self._checked(name, value, least),) * self.layers
        if len(value) != self.layers:
            raise BadModel(
                f"the model's {self._prefix}{name} has {len(value)} numbers for {self.layers} layers"
            )
        return tuple(self._checked(name, item, 0) for item in value)

    def kv(self, layer: int, slides: bool) -> int:
        """Bytes for each cached token of a layer that attends (`n_embd_k_gqa`, `n_embd_v_gqa`)."""
        key, value = self.key, self.value
        if slides:
            key = self.number("attention.key_length_swa", key, least=1)
            value = self.number("attention.value_length_swa", value, least=1)
        # Multi-head latent attention: values are made from what is cached as the key.
        if self.number("attention.key_length_mla", 0) and self.number("attention.value_length_mla", 0):
            value = 0
        indexed = self.number("attention.indexer.key_length", 0) if self.kv_heads[layer] else 0
        return F16 * (self.kv_heads[layer] * (key + value) + indexed)

    def sliding(self) -> tuple[tuple[bool, ...], int]:
        """Which layers slide, and the size of the window in tokens."""
        none = (False,) * self.layers, 0
        kind = _SLIDING.get(self.summary.architecture)
        if kind is None:
            return none
        tokens = self.number("attention.sliding_window", kind.tokens)
        if not tokens:
            return none
        name = "attention.sliding_window_pattern"
        pattern = self._value(name, kind.period)
        if isinstance(pattern, tuple):
            # Booleans in most files, which count as 0 and 1.
            return tuple(map(bool, self._flags(name, pattern))), tokens
        period = self._checked(name, pattern, 0)
        if not period:
            return none
        full = 0 if kind.first else period - 1
        return tuple(index % period != full for index in range(self.layers)), tokens

    def _flags(self, name: str, values: tuple[object, ...]) -> tuple[object, ...]:
        if len(values) != self.layers or any(value not in (0, 1) for value in values):
            raise BadModel(f"the model's {self._prefix}{name} is not 0 or 1 for each of {self.layers} layers")
        return values

    def recurring(self) -> tuple[bool, ...]:
        """Which layers keep a state, in a model that has one (`is_recr`)."""
        architecture = self.summary.architecture
        if architecture in _RECURRENT or architecture == "falcon-h1":
            return (True,) * self.layers
        name = "attention.recurrent_layers"
        flags = self._value(name, 0)
        if isinstance(flags, tuple):
            return tuple(map(bool, self._flags(name, flags)))
        self._checked(name, flags, 0)
        every = self.number("full_attention_interval", _ATTENDS_EVERY.get(architecture, 0))
        if every:
            return tuple((index + 1) % every != 0 for index in range(self.layers))
        inner = self.each("feed_forward_length", 0)
        # A layer that is nothing but a feed-forward network (Nemotron-H) has neither.
        alone = isinstance(self.summary.metadata.get(f"{self._prefix}feed_forward_length"), tuple)
        layers = zip(self.kv_heads, inner, strict=True)
        return tuple(not heads and not (alone and size) for heads, size in layers)

    def state(self) -> int:
        """Bytes of one layer's state for one slot (`n_embd_r`, `n_embd_s`); 0 for a model without one."""
        kernel = max(self.number("ssm.conv_kernel", 0) - 1, 0)
        if head := self.number("wkv.head_size", 0):
            numbers = self.width * (self.number("token_shift_count", 2) + head)
        elif short := self.number("shortconv.l_cache", 0):
            numbers = self.width * (short - 1)
        elif head := self.number("kda.head_dim", 0):
            numbers = max(self.heads) * head * (3 * (kernel or 3) + head)
        elif self.summary.architecture == "minimax-01":
            numbers = max(self.heads) * self.key * self.key
        else:
            inner, size = self.number("ssm.inner_size", 0), self.number("ssm.state_size", 0)
            groups = self.number("ssm.group_count", 0)
            numbers = inner * size + kernel * (inner + 2 * groups * size)
        return F32 * numbers
