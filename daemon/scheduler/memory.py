"""How much memory does an engine need with this model and these settings? Pure: shape in, bytes out.

Sources: llama.cpp (b11311), `llama_context` and `llama_kv_cache_iswa` for sizes and padding; what is said to be
measured was measured with SmolLM2 on it and on the wheel.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from daemon.runner.launch import CACHE_RAM_MIB, CHECKPOINTS
from daemon.scheduler.shape import F16, F32, Layer, Shape

MIB = 1024 * 1024

_PADDING = 256  # of the window, and of a sliding window's cache
_LARGEST_BATCH = 512  # --ubatch-size, which mgr leaves alone
_CELL = 80  # what is noted of each token's place in the cache (measured: 77)
_DEVICE = 400 * MIB  # what a GPU's driver takes for each program


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes by part. `correction` is what measuring has taught (`learned.corrected`), and may be negative.

    `total` is what is used once a request has filled the window. `prompt_cache` (earlier conversations) and
    `checkpoints` (places to return to in a model that cannot forget its last tokens) grow with use, up to these bounds.
    """

    weights: int = 0
    kv: int = 0
    state: int = 0
    compute: int = 0
    projector: int = 0
    adapters: int = 0
    fixed: int = 0
    correction: int = 0
    prompt_cache: int = 0
    checkpoints: int = 0

    @property
    def total(self) -> int:
        return self.most - self.prompt_cache - self.checkpoints

    @property
    def most(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))


class Division(NamedTuple):
    """What is needed of the machine's memory, and of the GPU's."""

    host: Need
    device: Need


def estimate(
    shape: Shape,
    *,
    window: int,
    slots: int,
    batch: int,
    embedding: bool = False,
    cache_ram: int = CACHE_RAM_MIB * MIB,
) -> Need:
    """What an engine on the CPU needs that is started as `launch.arguments` says. `window` in tokens for each slot;
    `embedding`: for vectors or for comparing texts, where the window is one batch and texts wait for each other."""
    sizes = _sizes(shape, window, slots, batch, embedding)
    state = sum(layer.state for layer in shape.layers)
    remembered = state + sum(layer.kv for layer in shape.layers if layer.slides) * sizes.sliding
    generates = shape.cached and not embedding
    return Need(
        weights=shape.weights,
        kv=_cache(shape.layers, sizes),
        state=sizes.slots * state,
        compute=_answers(shape, sizes) + _graph(shape, sizes),
        projector=shape.projector,
        adapters=shape.adapters,
        fixed=shape.fixed + _CELL * sizes.cells * sizes.slots,
        prompt_cache=cache_ram if generates else 0,
        checkpoints=CHECKPOINTS * sizes.slots * remembered if generates else 0,
    )


def divide(
    shape: Shape,
    gpu_layers: int,
    *,
    window: int,
    slots: int,
    batch: int,
    embedding: bool = False,
    cache_ram: int = CACHE_RAM_MIB * MIB,
) -> Division:
    """The same with the last `gpu_layers` layers on a GPU (`--n-gpu-layers`), the output being the very last: all of
    them are one more than there are layers. A model whose output is its embedding then has it twice; as long as some
    layer stays, both sides compute."""
    whole = estimate(shape, window=window, slots=slots, batch=batch, embedding=embedding, cache_ram=cache_ram)
    if gpu_layers <= 0:
        return Division(whole, Need())
    sizes = _sizes(shape, window, slots, batch, embedding)
    everything = gpu_layers > len(shape.layers)
    moved = shape.layers[max(len(shape.layers) + 1 - gpu_layers, 0) :]
    device = Need(
        weights=sum(layer.weights for layer in moved) + (shape.output or shape.embedding),
        kv=_cache(moved, sizes),
        state=sizes.slots * sum(layer.state for layer in moved),
        compute=_graph(shape, sizes),
        projector=shape.projector,
        adapters=shape.adapters,
        fixed=_DEVICE,
    )
    twice = 0 if shape.output else shape.embedding
    host = replace(
        whole,
        weights=whole.weights - device.weights + twice,
        kv=whole.kv - device.kv,
        state=whole.state - device.state,
        compute=whole.compute - (device.compute if everything else 0),
        projector=0,
        adapters=0,
    )
    return Division(host, device)


def occupied(shape: Shape, need: Need, anonymous: int, mapped: int) -> int:
    """What the memory of an engine on the CPU (`usage.of`) comes to, comparable with `need.total`: weights that the
    engine has copied into an order of its own count once, as the file's pages are given back when memory is short."""
    copied = anonymous - (need.total - need.weights)
    if 2 * copied <= shape.repackable:
        return anonymous + mapped
    return anonymous + mapped - min(copied, mapped, shape.repackable)


# ---- parts


class _Sizes(NamedTuple):
    """Tokens: in a batch, in a slot's cache, in a slot's cache of a layer that slides; and the answers of a batch."""

    slots: int
    batch: int
    cells: int
    sliding: int
    window: int
    answers: int


def _sizes(shape: Shape, window: int, slots: int, batch: int, embedding: bool) -> _Sizes:
    if embedding:
        slots, batch = 1, window
    else:
        batch = min(batch, _LARGEST_BATCH, window * slots)
    caches = shape.cached and any(layer.kv for layer in shape.layers)
    cells = _padded(_padded(window * slots) // slots) if caches else 0
    sliding = _padded(min(cells, shape.sliding + batch)) if shape.sliding else 0
    return _Sizes(slots, batch, cells, sliding, window, batch if embedding else slots)


def _cache(layers: Iterable[Layer], sizes: _Sizes) -> int:
    one = sum(layer.kv * (sizes.sliding if layer.slides else sizes.cells) for layer in layers)
    return sizes.slots * one


def _answers(shape: Shape, sizes: _Sizes) -> int:
    """The output buffer: the probabilities after each token that is asked for. For a vector of a text that is every
    token, although nobody looks at them (measured)."""
    return F32 * sizes.answers * shape.vocabulary


def _graph(shape: Shape, sizes: _Sizes) -> int:
    """The compute buffer, with flash attention. Measured: 27 KiB for each token of a batch (`Shape.activation`), and
    2 bytes for each token that it looks at; the room is used again for the answers."""
    attended = (sizes.cells if shape.cached else sizes.window) + sizes.sliding
    attending = sizes.batch * (shape.activation + F16 * attended)
    return max(attending, _answers(shape, sizes) + 2 * F32 * sizes.batch * shape.width)


def _padded(tokens: int) -> int:
    return -(-tokens // _PADDING) * _PADDING
