"""Engines that crash again and again: because of themselves, or because of one request."""

from tests.fakes.dialects import WAYS
from tests.integration.faults.conftest import MakeFaultDaemon
from tests.integration.faults.invariants import SAID, invariants

REFUSED = "is not started for another"


async def test_f25_a_model_whose_engine_always_crashes(make: MakeFaultDaemon) -> None:
    """After five crashes it is given up for a while: refused at once with the reason, and no engine is started."""
    daemon = make()
    daemon.model("a")
    daemon.script(a={"crash_after": 0})
    daemon.start()
    async with invariants(daemon) as watch:
        ending = await watch.ask("a")
        while REFUSED not in ending.error:
            assert ending.status in (500, 502, 503), ending
            assert len(daemon.events("start", "a")) <= 5
            ending = await watch.ask("a")
        assert len(daemon.events("start", "a")) == 5
        for way in WAYS:
            ending = await watch.ask("a", way)
            assert ending.status == (529 if way.name == "anthropic" else 503)
            assert REFUSED in ending.error
            assert "signal 11" in ending.error
            assert int(ending.retry_after or 0) > 500
        assert len(daemon.events("start", "a")) == 5


async def test_f26_a_request_that_crashes_the_engine(make: MakeFaultDaemon) -> None:
    """Once, it may be chance. After the second time it is refused, and the model stays for all others."""
    daemon = make()
    daemon.model("a")
    daemon.script(a={"crash_on": "poison"})
    daemon.start()
    async with invariants(daemon) as watch:
        assert (await watch.ask("a")).text == SAID
        first = await watch.ask("a", prompt="poison")
        assert (first.status, "engine stopped" in first.error) == (502, True)
        assert (await watch.ask("a")).text == SAID
        await watch.ask("a", prompt="poison")
        starts = len(daemon.events("start", "a"))
        for _ in range(3):
            refused = await watch.ask("a", prompt="poison")
            assert refused.status in (400, 422)
            assert "crashed on it" in refused.error
        assert (await watch.ask("a", prompt="another")).text == SAID
        assert len(daemon.events("start", "a")) <= starts + 1
