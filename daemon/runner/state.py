"""The states of one engine process, and every legal change between them.

Two rules: all transitions are in this table, and `runner.py` is the only place that applies them. A pair that is
not in the table is illegal: it raises and changes nothing.
"""

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Stage(StrEnum):
    """How far the end of an engine has come: its requests may end, TERM, TERM again, KILL."""

    DRAINING = "draining"
    ASKED = "asked"
    ASKED_AGAIN = "asked again"
    KILLED = "killed"


class Event(StrEnum):
    START = "start"
    HEALTHY = "healthy"
    EXITED = "exited"
    STOP = "stop"


TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.STOPPED: {Event.START: State.STARTING},
    State.STARTING: {
        Event.HEALTHY: State.READY,
        Event.EXITED: State.STOPPED,
        Event.STOP: State.STOPPING,
    },
    State.READY: {Event.EXITED: State.STOPPED, Event.STOP: State.STOPPING},
    State.STOPPING: {Event.EXITED: State.STOPPED},
}


class IllegalTransition(RuntimeError):
    """A bug in mgr: an event came in a state that does not know it."""


def after(state: State, event: Event) -> State:
    """The state that follows. Raises IllegalTransition."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(f"{event} is illegal while {state}") from None
