"""With what is a model started? Pure."""

from dataclasses import dataclass

from daemon.chat import LoadOptions
from daemon.runner.launch import Launch
from daemon.scheduler.state import ENGINES, Plan, Purpose, Weights

AUTO_WINDOW = 4096
AUTO_SLOTS = 2
AUTO_LOADED = 3


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a request says nothing; 0 is automatic. `window` in tokens, `keep_alive` in seconds."""

    window: int = 0
    slots: int = 0
    keep_alive: float = 300.0


def grown(window: int) -> int:
    """The window to load for a request that the loaded one is too small for: the next power of two, so that a
    conversation that gets longer with each turn costs few loads."""
    return 1 << (window - 1).bit_length()


def plans(weights: Weights, window: int | None, defaults: Defaults) -> tuple[Plan, ...]:
    """The ways to load these weights, the best first. The window is each request's own; slots never divide it."""
    tokens = weights.clamp(window or defaults.window or AUTO_WINDOW)
    return (Plan(tokens, defaults.slots or AUTO_SLOTS, {ENGINES: 1}),)


def launch(weights: Weights, plan: Plan, options: LoadOptions) -> Launch:
    """How an engine for these weights is started."""
    return Launch(
        model=weights.path,
        alias=weights.name,
        window=plan.window,
        slots=plan.slots,
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
