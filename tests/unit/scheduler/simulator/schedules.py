"""Random schedules from a seed, made to meet at the corners: few models, few places, many things at one instant."""

import math
from random import Random

from tests.unit.scheduler.simulator.script import Ask, Close, Engine, Input, Kill, Schedule, Squeeze, Unload

INPUTS = 50
MODELS = ("a", "b", "c", "d")
WINDOWS = ((None,), (None, 512, 1024), (None, 1024, 8192, 16384))
THREADS = ((None,), (None, None, 2), (None, 2, 4))
SERVICES = ((0.5, 1.0), (0.0, 1.0, 5.0), (2.0, 20.0))
KEEP_ALIVES = ((None,), (None, 0.0, 3.0), (None, 1.0, math.inf))
GAPS = ((1.0,), (0.0, 0.0, 0.0, 0.0, 5.0), (0.0, 0.1, 0.3), (0.5, 1.0), (0.0, 0.0, 2.0, 30.0))
CANCELS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 12.0)


def make(seed: int) -> Schedule:
    """The schedule of a seed: the same on each machine."""
    random = Random(seed)
    pick = random.choice
    return Schedule(
        inputs=tuple(_inputs(random)),
        engines=tuple(_engines(random)),
        loaded=pick((1, 1, 1, 2, 2, 3)),
        memory=pick((8, 12, 20, 1000, 1000)),
        queue=pick((0, 1, 3, 10, 100, 100, 100, 100)),
        waiting=pick((0, 1, 4, 100, 100, 100)),
        patience=pick((0.0, 0.7, 2.0, 10.0)),
        residence=pick((0.0, 0.0, 1.0, 5.0)),
        wait_timeout=pick((3.0, 20.0, 600.0, 10_000.0)),
        slots=pick((1, 2, 2, 3)),
        window=pick((1024, 4096)),
        keep_alive=pick((0.0, 1.0, 30.0, math.inf, math.inf)),
        timer_first=random.random() < 0.5,
        gpus=pick(((), (), (8,), (8, 12), (20, 20))),
    )


def _inputs(random: Random) -> list[Input]:
    pick, chance = random.choice, random.random
    models = MODELS[: pick((1, 2, 2, 3, 4))]
    windows, threads, services = pick(WINDOWS), pick(THREADS), pick(SERVICES)
    keep_alives, gaps = pick(KEEP_ALIVES), pick(GAPS)
    stays, leaves, disturbs = pick((0.0, 0.5, 0.9)), pick((0.0, 0.2, 0.5)), pick((0.0, 0.1, 0.2))
    batches = pick((0.0, 0.0, 0.1, 0.5))
    inputs: list[Input] = []
    now, model = 0.0, models[0]
    for number in range(INPUTS):
        now = round(now + pick(gaps), 1)
        if chance() >= stays:
            model = pick(models)
        if number and chance() < disturbs:
            inputs.append(Kill(now, model) if chance() < 0.7 else Unload(now, model))
        else:
            leaving = pick(CANCELS) if chance() < leaves else None
            client = "one" if chance() < 0.8 else "two"
            inputs.append(
                Ask(
                    now,
                    model,
                    pick(windows),
                    pick(threads),
                    client,
                    pick(keep_alives),
                    pick(services),
                    leaving,
                    batch=chance() < batches,
                )
            )
    if chance() < 0.2:
        middle = inputs[len(inputs) // 2].at
        inputs += [Squeeze(middle, memory=pick((4, 8))), Squeeze(middle + 30.0, memory=12)]
    if chance() < 0.2:
        close = Close(pick((now, now / 2)), drain=pick((0.0, 3.0, 30.0)))
        inputs.append(close)
    return inputs


def _engines(random: Random) -> list[Engine]:
    pick, chance = random.choice, random.random
    loads, stops = pick(((0.0, 0.5), (2.0,), (1.0, 10.0))), pick(((0.1,), (0.5, 3.0)))
    fails, dies, leaks = pick((0.0, 0.0, 0.2, 0.5)), pick((0.0, 0.0, 0.3)), pick((0.0, 0.0, 0.0, 0.2))
    return [
        Engine(
            load=pick(loads),
            fails=chance() < fails,
            dies_after=pick((0.0, 1.0, 4.0)) if chance() < dies else None,
            stop=pick(stops),
            leaks=chance() < leaks,
        )
        for _ in range(5)
    ]
