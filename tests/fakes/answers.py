"""Whole answers for tests."""

from collections.abc import Iterable

from daemon.chat import Answer, Assembly, Event


def assemble(events: Iterable[Event]) -> Answer:
    """One Answer from all events of it."""
    assembly = Assembly()
    for event in events:
        assembly.feed(event)
    return assembly.answer()
