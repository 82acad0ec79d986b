"""When does an idle model go? Pure arithmetic on a monotonic clock, in seconds."""

import math


def after_use(current: float, asked: float | None) -> float:
    """The keep-alive that holds once a request has asked for one: without a wish, the one before stays."""
    return current if asked is None else asked


def expires_at(idle_since: float, keep_alive: float) -> float:
    """The timer starts at the last byte. Infinity means never."""
    return idle_since + keep_alive if math.isfinite(keep_alive) else math.inf
