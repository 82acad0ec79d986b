"""Runs schedules; of one that breaks a rule it makes a small one that does, and tells it step by step."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

from tests.unit.scheduler.simulator import invariants
from tests.unit.scheduler.simulator.invariants import Violation
from tests.unit.scheduler.simulator.schedules import make
from tests.unit.scheduler.simulator.script import Input, Schedule
from tests.unit.scheduler.simulator.world import World

T = TypeVar("T", bound=Any)  # a dataclass


def simulate(schedule: Schedule, world_type: type[World] = World, log: list[str] | None = None) -> World:
    """The world after all that ever happens in it. Raises Violation."""
    world = world_type(schedule, log)
    world.run()
    invariants.drained(world)
    return world


def violation(schedule: Schedule, world_type: type[World] = World) -> Violation | None:
    """The rule that a schedule breaks."""
    try:
        simulate(schedule, world_type)
    except Violation as found:
        return found
    return None


def check(seed: int, world_type: type[World] = World) -> World:
    """Runs the schedule of a seed. Raises AssertionError with a short schedule that breaks the same rule."""
    schedule = make(seed)
    try:
        return simulate(schedule, world_type)
    except Violation as found:
        small = shrink(schedule, found.rule, world_type)
        raise AssertionError(f"seed {seed}: {found}. In short:\n\n{tell(small, world_type)}") from None


def tell(schedule: Schedule, world_type: type[World] = World) -> str:
    """What happens in a schedule, a line for each event and action, and the rule that it breaks."""
    log: list[str] = []
    try:
        simulate(schedule, world_type, log)
    except Violation as found:
        log.append(f"broken: {found}")
    return "\n".join([brief(replace(schedule, inputs=())), *(map(brief, schedule.inputs)), "", *log])


def brief(value: Any) -> str:
    """What is not as it is by default."""
    told = (f"{name}={getattr(value, name)!r}" for name, _ in _peculiar(value))
    return f"{type(value).__name__}({', '.join(told)})"


# ---- a small schedule


def shrink(schedule: Schedule, rule: str, world_type: type[World] = World) -> Schedule:
    """A schedule with fewer inputs and plainer values that breaks the same rule."""

    def breaks(candidate: Schedule) -> bool:
        found = violation(candidate, world_type)
        return found is not None and found.rule == rule

    for _ in range(2):
        schedule = _shorter(schedule, breaks)
        schedule = _plainer(schedule, breaks)
        for place in range(len(schedule.inputs)):
            schedule = _plainer_at(schedule, place, breaks)
    return schedule


def _shorter(schedule: Schedule, breaks: Callable[[Schedule], bool]) -> Schedule:
    size = len(schedule.inputs)
    while size:
        start = 0
        while start < len(schedule.inputs):
            inputs = schedule.inputs[:start] + schedule.inputs[start + size :]
            if breaks(candidate := replace(schedule, inputs=inputs)):
                schedule = candidate
            else:
                start += size
        size //= 2
    return schedule


def _plainer(value: T, breaks: Callable[[T], bool]) -> T:
    for name, default in _peculiar(value):
        if default is not MISSING and breaks(candidate := replace(value, **{name: default})):
            value = candidate
    return value


def _plainer_at(schedule: Schedule, place: int, breaks: Callable[[Schedule], bool]) -> Schedule:
    before, item, after = schedule.inputs[:place], schedule.inputs[place], schedule.inputs[place + 1 :]

    def within(other: Input) -> Schedule:
        return replace(schedule, inputs=(*before, other, *after))

    return within(_plainer(item, lambda other: breaks(within(other))))


def _peculiar(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields that are not as they are by default, and their defaults."""
    return ((f.name, f.default) for f in fields(value) if getattr(value, f.name) != f.default)
