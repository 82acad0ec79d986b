"""What happens in one simulated life of a daemon: plain values. Times and spans are seconds, windows tokens."""

import math
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. It is served for `service` seconds once it has an engine; its client leaves `cancel_after`
    seconds after it came. `window`, `threads` and `keep_alive` None: it does not say."""

    at: float
    model: str
    window: int | None = None
    threads: int | None = None
    client: str = "one"
    keep_alive: float | None = None
    service: float = 1.0
    cancel_after: float | None = None
    batch: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """The engine of a model dies, whether it loads or is ready."""

    at: float
    model: str


@dataclass(frozen=True, slots=True)
class Unload:
    at: float
    model: str


@dataclass(frozen=True, slots=True)
class Squeeze:
    """Other programs leave so much memory from now on."""

    at: float
    memory: int


@dataclass(frozen=True, slots=True)
class Close:
    """The daemon ends: streams have `drain` seconds."""

    at: float
    drain: float


Input: TypeAlias = Ask | Kill | Unload | Squeeze | Close


@dataclass(frozen=True, slots=True)
class Engine:
    """How one start goes. `leaks`: its process cannot be ended, so its place stays taken."""

    load: float = 2.0
    fails: bool = False
    dies_after: float | None = None
    stop: float = 0.5
    leaks: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """`inputs` in the order of time; the n-th start goes like the n-th of `engines`, over and over.
    `loaded` engines and `memory` (units of `weight`) are what there is, and the memory of each of `gpus`;
    `residence` as in `Limits`.
    `timer_first`: at the same instant the timer fires before what happens outside."""

    inputs: tuple[Input, ...]
    engines: tuple[Engine, ...] = (Engine(),)
    loaded: int = 1
    memory: int = 1000
    gpus: tuple[int, ...] = ()
    queue: int = 100
    waiting: int = 100
    patience: float = 10.0
    residence: float = 0.0
    wait_timeout: float = 600.0
    slots: int = 2
    window: int = 4096
    keep_alive: float = math.inf
    timer_first: bool = True


def weight(model: str, window: int, slots: int) -> int:
    """The memory that an engine takes: the later in the alphabet, the larger the model."""
    return 2 * (ord(model[0]) - ord("a") + 1) + slots * -(-window // 4096)
