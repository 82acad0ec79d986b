"""The command line and the environment of an engine. Pure: values in, values out.

Every argument is made here from a typed field; no text of a user becomes a flag. Only flags that the engine's own
help lists are passed, in the first spelling it knows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from daemon.errors import LoadFailed

# MiB of RAM in which the engine may keep the state of earlier conversations. Its own default is 8192, which a
# machine that runs for months would lose to every loaded model.
CACHE_RAM_MIB = 1024

# Places to return to that the engine keeps for each slot of a model that cannot forget its last tokens (one with a
# sliding window, or recurrent). Its own default is 32, each as large as the cache, and beside `CACHE_RAM_MIB`.
CHECKPOINTS = 4

# A cancelled prefill ends with its batch, so a batch should be short in time. On a CPU 256 is as fast as 512
# (measured: 240 and 233 tokens/s, medians of 6) and ends in half the time; a GPU wants more at once.
CPU_BATCH = 256
GPU_BATCH = 512


@dataclass(frozen=True, slots=True)
class Offload:
    """How many layers of a model lie on which GPUs, `layers` of `of`: counted from the last, the output being one more,
    as `--n-gpu-layers` does. `devices` are named as the engine lists them, and `shares` say how several divide them."""

    layers: int
    of: int
    devices: tuple[str, ...]
    shares: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What one engine is started with. `window` is in tokens for each of `slots` requests at once; `cache_mib` of RAM
    are for the state of earlier conversations.

    `template` is a chat template in Jinja that is used instead of the model's own, `projector` makes embeddings of
    images or sound, `adapters` are LoRAs. Without `offload` the engine places the layers itself, as far as `gpu_layers`
    and `main_gpu` do not say. With `embedding` it makes vectors of texts; `pooling` is how, for a model
    that was not made for it ("mean"). With `reranking` it compares texts.
    """

    model: Path
    alias: str
    window: int
    slots: int
    cache_mib: int = CACHE_RAM_MIB
    batch: int | None = None
    offload: Offload | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    main_gpu: int | None = None
    mmap: bool | None = None
    template: Path | None = None
    projector: Path | None = None
    adapters: tuple[Path, ...] = ()
    embedding: bool = False
    pooling: str | None = None
    reranking: bool = False


@dataclass(frozen=True, slots=True)
class _Flag:
    """Spellings in the order of preference; each with its own values. `needed`: without it nothing works."""

    spellings: Sequence[tuple[str, ...]]
    needed: bool = False


def arguments(launch: Launch, socket: Path, known: frozenset[str], *, cpu_only: bool) -> list[str]:
    """The engine's arguments. `known` are the flags of its help. Raises LoadFailed where a needed one is missing."""
    batch = launch.batch or (CPU_BATCH if cpu_only else GPU_BATCH)
    if launch.embedding or launch.reranking:
        batch = (
            launch.window
        )  # a text that gives one vector is not split, and one beyond the batch is refused
    chosen: list[str] = []
    for flag in _flags(launch, socket, batch):
        spelling = next((s for s in flag.spellings if s[0] in known), None)
        if spelling is not None:
            chosen.extend(spelling)
        elif flag.needed:
            raise LoadFailed(f"this engine does not know {flag.spellings[0][0]}; use another", permanent=True)
    return chosen


def not_taken(known: frozenset[str]) -> list[str]:
    """The flags that mgr may pass and that an engine with these flags knows in no spelling."""
    everything = Launch(
        model=Path(),
        alias="",
        window=0,
        slots=0,
        offload=Offload(0, 1, (), (1, 1)),
        gpu_layers=0,
        threads=0,
        main_gpu=0,
        mmap=False,
        template=Path(),
        projector=Path(),
        adapters=(Path(),),
        embedding=True,
        pooling="mean",
        reranking=True,
    )
    flags = [
        *_flags(everything, Path(), CPU_BATCH),
        *_flags(replace(everything, offload=None), Path(), CPU_BATCH),
    ]
    lacks = [flag.spellings[0][0] for flag in flags if not any(s[0] in known for s in flag.spellings)]
    return list(dict.fromkeys(lacks))


def _flags(launch: Launch, socket: Path, batch: int) -> Iterable[_Flag]:
    yield _Flag([("--model", str(launch.model)), ("-m", str(launch.model))], needed=True)
    yield _Flag([("--host", str(socket))], needed=True)
    # Texts that are worked on together change each other's vectors (measured: 0.002 in a component with two slots, 0
    # with one), so the engine lets them wait for each other.
    slots = 1 if launch.embedding or launch.reranking else launch.slots
    total = str(launch.window * slots)
    yield _Flag([("--ctx-size", total), ("-c", total)], needed=True)
    yield _Flag([("--parallel", str(slots)), ("-np", str(slots))], needed=True)
    yield _Flag([("--batch-size", str(batch)), ("-b", str(batch))])
    yield _Flag([("--alias", launch.alias)])
    yield from _task(launch, batch)
    yield _Flag([("--no-ui",), ("--no-webui",)])
    yield _Flag([("--slots",)])
    yield _Flag([("--metrics",)])
    yield _Flag([("--offline",)])
    yield _Flag([("--cache-ram", str(launch.cache_mib))])
    yield _Flag([("--ctx-checkpoints", str(CHECKPOINTS)), ("--swa-checkpoints", str(CHECKPOINTS))])
    yield from _gpus(launch)
    if launch.threads is not None:
        yield _Flag([("--threads", str(launch.threads)), ("-t", str(launch.threads))])
    if launch.mmap is not None:
        mode = "mmap" if launch.mmap else "none"
        yield _Flag([("--load-mode", mode), ("--mmap" if launch.mmap else "--no-mmap",)])


def _gpus(launch: Launch) -> Iterable[_Flag]:
    where = launch.offload
    layers = launch.gpu_layers if where is None else where.layers
    if layers is not None:
        yield _Flag([("--n-gpu-layers", str(layers)), ("-ngl", str(layers))])
    if where is None:
        if launch.main_gpu is not None:
            yield _Flag([("--main-gpu", str(launch.main_gpu))])
        return
    yield _Flag([("--device", ",".join(where.devices) or "none")])
    yield _Flag([("--fit", "off")])  # newer engines would move layers to where they see more room
    if where.shares:
        yield _Flag([("--tensor-split", ",".join(map(str, where.shares)))])
    if where.layers == 0 and launch.projector is not None:
        yield _Flag([("--no-mmproj-offload",)])


def _task(launch: Launch, batch: int) -> Iterable[_Flag]:
    """What the engine is for. Without one of these flags it would give a wrong answer, so each is needed."""
    if launch.embedding or launch.reranking:
        yield _Flag([("--ubatch-size", str(batch)), ("-ub", str(batch))], needed=True)
    if launch.embedding:
        yield _Flag([("--embedding",), ("--embeddings",)], needed=True)
    if launch.pooling is not None:
        yield _Flag([("--pooling", launch.pooling)], needed=True)
    if launch.reranking:
        yield _Flag([("--reranking",), ("--rerank",)], needed=True)
    if launch.template is not None:
        yield _Flag([("--jinja",)])
        yield _Flag([("--chat-template-file", str(launch.template))], needed=True)
    if launch.projector is not None:
        yield _Flag([("--mmproj", str(launch.projector)), ("-mm", str(launch.projector))], needed=True)
    for adapter in launch.adapters:
        yield _Flag([("--lora", str(adapter))], needed=True)


# What an engine may know of this machine. Everything else (tokens, keys, proxies, preloads, LLAMA_ARG_* that would
# change its flags behind our back) stays out.
_PASSED = frozenset(
    {
        "PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "TZ",
        "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
        "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "GPU_DEVICE_ORDINAL",
        "GGML_VK_VISIBLE_DEVICES", "GGML_CUDA_ENABLE_UNIFIED_MEMORY", "ONEAPI_DEVICE_SELECTOR",
        "OMP_NUM_THREADS", "SystemRoot",
    }
)  # fmt: skip

KEY_VARIABLE = "LLAMA_API_KEY"


def environment(parent: Mapping[str, str], key: str, home: Path) -> dict[str, str]:
    """The engine's whole environment, built from nothing. `key` travels here because an argument list is public."""
    kept = {name: value for name, value in parent.items() if name in _PASSED}
    return {**kept, "HOME": str(home), KEY_VARIABLE: key}
