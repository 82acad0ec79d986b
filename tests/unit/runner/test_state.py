"""The whole table: every legal pair, and every other pair raises and changes nothing."""

import itertools

import pytest

from daemon.runner.state import Event, IllegalTransition, State, after

LEGAL = {
    (State.STOPPED, Event.START): State.STARTING,
    (State.STARTING, Event.HEALTHY): State.READY,
    (State.STARTING, Event.EXITED): State.STOPPED,
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.READY, Event.EXITED): State.STOPPED,
    (State.READY, Event.STOP): State.STOPPING,
    (State.STOPPING, Event.EXITED): State.STOPPED,
}


@pytest.mark.parametrize(("state", "event"), [*itertools.product(State, Event)])
def test_every_pair(state: State, event: Event) -> None:
    if (state, event) in LEGAL:
        assert after(state, event) is LEGAL[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"{event} is illegal while {state}"):
            after(state, event)
