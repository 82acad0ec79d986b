"""What becomes of the engines: loads that fail, stops that do not end, deaths. Seen through the scheduler."""

import asyncio

import pytest

from daemon.chat import CompletionRequest
from daemon.errors import Busy, EngineDied, EngineFailed, LoadFailed, OutOfMemory
from daemon.scheduler.state import RAM, Phase
from tests.unit.scheduler.shell import World, settle


async def test_one_failed_load_fails_all_who_waited_and_the_next_tries_again() -> None:
    world = World()
    tasks = [world.asking("a") for _ in range(3)]
    await settle()
    world.runners[0].ready.set_exception(LoadFailed("no memory"))
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, LoadFailed)
    assert world.phases() == {}
    world.now += 1
    (await world.loaded("a")).release()
    assert len(world.runners) == 2


async def test_an_unforeseen_failure_of_a_load_is_a_load_failure_too() -> None:
    world = World()
    task = world.asking("a")
    await settle()
    world.runners[0].ready.set_exception(KeyError("bug"))
    with pytest.raises(LoadFailed, match="see mgr's log"):
        await task
    assert world.phases() == {}


async def test_a_process_that_does_not_go_keeps_its_place() -> None:
    world = World()
    (await world.loaded("a")).release()
    world.runners[0].stuck = True
    world.scheduler.unload("a")
    await settle()
    assert world.phases() == {"a": Phase.STOPPING}
    await world.scheduler.close(0)
    assert world.phases() == {"a": Phase.STOPPING}


async def test_an_engine_that_dies_is_forgotten_and_old_leases_do_no_harm() -> None:
    world = World()
    lease = await world.loaded("a")
    world.runners[0].on_exit(EngineFailed("signal 9"))
    assert world.phases() == {}
    world.now += 1
    again = await world.loaded("a")
    lease.release()
    [view] = world.scheduler.snapshot().loaded
    assert view.leases == 1
    again.release()


async def test_an_engine_that_dies_again_and_again_is_not_started_at_once_and_then_refused_for_a_while() -> (
    None
):
    world = World()
    for deaths in range(1, 5):
        (await world.loaded("a")).release()
        world.runners[-1].on_exit(EngineFailed("signal 9"))
        waits = world.asking("a")
        await settle()
        assert len(world.runners) == deaths  # the next start waits for a moment
        waits.cancel()
        await settle()
        world.now += 20
    (await world.loaded("a")).release()
    world.runners[-1].on_exit(EngineFailed("signal 9"))
    with pytest.raises(
        Busy, match="the model is not started for another 600 s, as its last 5 starts failed: signal 9"
    ):
        await world.ask("a")
    (await world.loaded("b")).release()
    world.now += 600
    (await world.loaded("a")).release()


async def test_no_engine_at_all_is_no_fault_of_the_model() -> None:
    world = World()
    for _ in range(9):
        failing = world.asking("a")
        await settle()
        world.runners[-1].engine = None
        world.runners[-1].ready.set_exception(LoadFailed("no engine was found", permanent=True))
        with pytest.raises(LoadFailed, match="no engine was found"):
            await failing


async def test_a_model_that_ran_out_of_memory_is_tried_once_more_without_others() -> None:
    world = World(loaded=3)
    (await world.loaded("a")).release()
    (await world.loaded("b")).release()
    world.capacity["RAM"] = 1000
    asked = world.asking("c")
    await settle()
    world.runners[2].ready.set_exception(OutOfMemory("there is not enough memory for it"))
    await settle()
    assert [runner.stopped for runner in world.runners[:2]] == [["its place is needed"]] * 2
    assert world.phases() == {"c": Phase.LOADING}
    world.runners[3].ready.set_exception(OutOfMemory("there is not enough memory for it"))
    world.capacity[RAM] = 1024**3
    with pytest.raises(OutOfMemory) as failure:
        await asked
    assert failure.value.message.endswith(
        "0.0 GiB of RAM were expected to be needed; 1.0 GiB are there for models."
    )
    assert world.phases() == {}


@pytest.mark.parametrize(("crashed", "refused"), [(False, False), (True, True)])
async def test_an_engine_that_worked_and_was_killed_is_no_crash_loop(crashed: bool, refused: bool) -> None:
    world = World()
    for _ in range(6):
        (await world.loaded("a")).release()
        held = await world.ask("a")
        world.runners[-1].on_exit(EngineDied("the engine ended with signal 9", crashed=crashed))
        held.release()
        world.now += 20
        if refused and len(world.runners) == 5:
            break
    asking = world.asking("a")
    await settle()
    assert (asking.done() and isinstance(asking.exception(), Busy)) is refused
    asking.cancel()


async def test_an_engine_that_somebody_killed_makes_nobody_a_suspect() -> None:
    world = World()
    asked = CompletionRequest(model="a", prompt="hi")
    for _ in range(2):
        asking = asyncio.create_task(world.ask("a", request=asked))
        await settle()
        world.runners[-1].ready.set_result(None)
        held = await asking
        world.runners[-1].on_exit(EngineDied("the engine ended with signal 9", crashed=False))
        held.release()
        world.now += 5
    asking = asyncio.create_task(world.ask("a", request=asked))
    await settle()
    world.runners[-1].ready.set_result(None)
    (await asking).release()
