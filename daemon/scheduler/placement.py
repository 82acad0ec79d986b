"""With what is a model started? Pure. Placement by memory will decide here; until then the numbers are fixed."""

from dataclasses import dataclass

from daemon.chat import LoadOptions
from daemon.runner.launch import Launch
from daemon.scheduler.queue import Purpose, Weights

AUTO_WINDOW = 4096
AUTO_SLOTS = 2
AUTO_LOADED = 3


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a request says nothing; 0 is automatic. `window` in tokens, `keep_alive` in seconds."""

    window: int = 0
    slots: int = 0
    keep_alive: float = 300.0


def place(weights: Weights, window: int | None, options: LoadOptions, defaults: Defaults) -> Launch:
    """How an engine for these weights is started. The window is each request's own; slots never divide it."""
    return Launch(
        model=weights.path,
        alias=weights.name,
        window=weights.clamp(window or defaults.window or AUTO_WINDOW),
        slots=defaults.slots or AUTO_SLOTS,
        batch=options.batch,
        gpu_layers=options.gpu_layers,
        threads=options.threads,
        main_gpu=options.main_gpu,
        mmap=options.mmap,
        template=weights.template,
        projector=weights.projector,
        adapters=weights.adapters,
        embedding=weights.purpose is Purpose.EMBED,
        pooling=weights.pooling,
        reranking=weights.purpose is Purpose.RERANK,
    )
