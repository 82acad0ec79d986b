"""The shell: actions are carried out, and whatever becomes of a load, nobody waits for ever and nothing is left."""

import asyncio

import pytest

from daemon.errors import Busy, LoadFailed
from daemon.scheduler.fairness import Caller
from daemon.scheduler.lease import Lease
from daemon.scheduler.state import RAM, Phase
from tests.unit.scheduler.shell import World, settle


async def test_a_lease_is_given_when_the_load_is_ready_and_kept_until_it_is_released() -> None:
    world = World()
    task = world.asking("a")
    await settle()
    assert not task.done()
    world.now = 3
    world.runners[0].ready.set_result(None)
    lease = await task
    assert lease.waited == 3
    [view] = world.scheduler.snapshot().loaded
    assert (view.leases, view.expires_in) == (1, None)
    lease.release()
    lease.release()
    [view] = world.scheduler.snapshot().loaded
    assert (view.leases, view.expires_in) == (0, 300)


async def test_a_queue_behind_a_failed_load_moves_on() -> None:
    world = World()
    first, second = world.asking("a"), world.asking("b")
    await settle()
    assert len(world.runners) == 1
    world.runners[0].ready.set_exception(LoadFailed("no memory"))
    await settle()
    world.runners[1].ready.set_result(None)
    (await second).release()
    assert isinstance(first.exception(), LoadFailed)


async def test_a_cancelled_waiter_leaves_no_trace_and_its_load_is_aborted() -> None:
    world = World()
    task = world.asking("a")
    await settle()
    task.cancel()
    await asyncio.wait({task})
    await settle()
    assert world.runners[0].aborted
    assert world.scheduler.snapshot().loaded == ()
    assert world.scheduler.snapshot().waiting == 0


async def test_a_waiter_cancelled_in_the_moment_of_its_grant_gives_the_lease_back() -> None:
    world = World()
    task = world.asking("a")
    await settle()
    world.runners[0].ready.set_result(None)
    while world.scheduler.snapshot().waiting:
        await asyncio.sleep(0)
    task.cancel()  # the grant is there, the task has not run yet
    await asyncio.wait({task})
    assert task.cancelled()
    [view] = world.scheduler.snapshot().loaded
    assert view.leases == 0


async def test_a_load_cancelled_in_the_moment_it_is_ready_is_not_granted() -> None:
    world = World()
    task = world.asking("a")
    await settle()
    task.cancel()
    world.runners[0].ready.set_result(None)
    await asyncio.wait({task})
    await settle()
    assert world.phases() in ({}, {"a": Phase.READY})
    lease = world.asking("a")
    await settle()
    if not world.runners[-1].ready.done():
        world.runners[-1].ready.set_result(None)
    (await lease).release()


async def test_many_waiters_that_leave_in_the_turn_of_a_release_disturb_nobody() -> None:
    world = World(waiting=1000)
    leases = [await world.loaded("a"), await world.ask("a")]
    leaving = [world.asking("a") for _ in range(500)]
    await settle()
    staying = world.asking("a")
    await settle()
    for task in leaving:
        task.cancel()
    leases[0].release()
    (await staying).release()
    leases[1].release()
    assert all(task.cancelled() for task in leaving)
    [view] = world.scheduler.snapshot().loaded
    assert (view.leases, world.scheduler.snapshot().waiting) == (0, 0)


async def test_one_of_three_leaves_as_their_load_becomes_ready() -> None:
    world = World()
    tasks = [world.asking("a") for _ in range(3)]
    await settle()
    tasks[0].cancel()
    world.runners[0].ready.set_result(None)
    leases = await asyncio.gather(*tasks[1:])
    assert world.scheduler.snapshot().loaded[0].leases == 2
    for lease in leases:
        lease.release()
    assert world.scheduler.snapshot().loaded[0].leases == 0


async def test_eviction_waits_for_the_stop_then_loads() -> None:
    world = World()
    (await world.loaded("a")).release()
    other = world.asking("b")
    await settle()
    assert world.runners[0].stopped == ["its place is needed"]
    world.runners[1].ready.set_result(None)
    (await other).release()
    assert world.phases() == {"b": Phase.READY}


async def test_the_keep_alive_of_a_request_holds_until_another_says_otherwise() -> None:
    world = World()
    (await world.loaded("a")).release()
    (await world.ask("a", keep_alive=10)).release()
    assert world.scheduler.snapshot().loaded[0].expires_in == 10
    (await world.ask("a")).release()
    assert world.scheduler.snapshot().loaded[0].expires_in == 10
    (await world.ask("a", keep_alive=float("inf"))).release()
    assert world.scheduler.snapshot().loaded[0].expires_in == float("inf")
    (await world.ask("a", keep_alive=0)).release()
    await settle()
    assert world.phases() == {}


async def test_unload_takes_an_idle_model_now_and_a_busy_one_when_it_is_done() -> None:
    world = World()
    lease = await world.loaded("a")
    world.scheduler.unload("a")
    await settle()
    assert world.phases() == {"a": Phase.READY}
    lease.release()
    await settle()
    assert world.phases() == {}
    world.scheduler.unload("nobody")


async def test_full_means_refused_at_once_and_a_free_place_is_found_again() -> None:
    world = World(queue=1)
    busy = await world.loaded("a")
    waiting = world.asking("b")
    await settle()
    with pytest.raises(Busy, match="1 requests wait"):
        await world.ask("c")
    waiting.cancel()
    await asyncio.wait({waiting})
    replacement = world.asking("c")
    await settle()
    assert not replacement.done()
    busy.release()
    await settle()
    world.runners[-1].ready.set_result(None)
    (await replacement).release()


async def test_close_refuses_drains_and_stops() -> None:
    world = World(loaded=2)
    lease = await world.loaded("a")
    loading = world.asking("b")
    await settle()
    closing = asyncio.create_task(world.scheduler.close(60))
    await settle()
    assert isinstance(loading.exception(), Busy)
    with pytest.raises(Busy, match="shutting down"):
        await world.ask("a")
    assert world.runners[0].stopped == []
    lease.release()
    await closing
    assert world.runners[0].stopped == ["mgr is shutting down"]
    assert world.scheduler.snapshot().loaded == ()


async def test_close_cuts_what_does_not_end_in_time() -> None:
    world = World()
    lease = await world.loaded("a")
    await world.scheduler.close(0)
    assert world.runners[0].stopped == ["mgr is shutting down"]
    lease.release()


async def test_a_bad_window_is_clamped_to_the_trained_one() -> None:
    world = World()
    (await world.loaded("a")).release()
    assert world.runners[0].launch.window == 4096
    task = world.asking("a", window=100_000)
    await settle()
    world.runners[1].ready.set_result(None)
    (await task).release()
    assert world.runners[1].launch.window == 8192


async def test_another_client_is_next_after_at_most_one_of_thirty() -> None:
    world = World(waiting=100)
    busy, other = Caller("busy"), Caller("other")
    running = [await world.loaded("a"), await world.ask("a")]
    jobs = [world.asking("a", caller=busy) for _ in range(30)]
    await settle()
    asked = world.asking("a", caller=other)
    await settle()
    running.pop().release()
    await settle()
    assert [job.done() for job in jobs] == [True, *[False] * 29]
    running.pop().release()
    assert isinstance(await asked, Lease)
    assert sum(job.done() for job in jobs) == 1
    for job in jobs:
        job.cancel()


async def test_interactive_requests_come_before_a_batch() -> None:
    world = World(waiting=100)
    running = [await world.loaded("a"), await world.ask("a")]
    batch = [world.asking("a", caller=Caller("one", batch=True)) for _ in range(3)]
    await settle()
    interactive = world.asking("a", caller=Caller("one"))
    await settle()
    running.pop().release()
    (await interactive).release()
    await settle()
    assert [job.done() for job in batch] == [True, False, False]
    for job in batch:
        job.cancel()


async def test_a_batch_lets_others_keep_their_model_for_longer() -> None:
    world = World()
    lease = await world.loaded("a")
    batch = world.asking("b", caller=Caller("one", batch=True))
    await settle()
    for now, served in ((30, True), (60, False)):
        world.now = now
        asked = world.asking("a")
        await settle()
        assert asked.done() is served
        if served:
            (await asked).release()
        asked.cancel()
    lease.release()
    await settle()
    world.runners[-1].ready.set_result(None)
    (await batch).release()


async def test_a_decision_that_is_late_is_seen() -> None:
    world = World()
    lease = await world.loaded("a")
    waits = world.asking("b")
    await settle()
    assert world.scheduler.troubles() == []
    world.now += 17  # its patience was over after 10 s, and nothing decided
    world.runners[0].last_progress = 0.0
    assert world.scheduler.troubles() == ["the scheduler is 7 s late"]
    waits.cancel()
    lease.release()


async def test_memory_that_another_program_gives_back_is_seen() -> None:
    world = World(loaded=3)
    world.capacity[RAM] = 150
    lease = await world.loaded("a")
    waits = world.asking("b")
    await settle()
    assert (len(world.runners), world.scheduler._due) == (1, 5.0)
    world.capacity[RAM] = 250
    world.now = 5
    world.scheduler._decide()
    await settle()
    assert world.phases() == {"a": Phase.READY, "b": Phase.LOADING}
    waits.cancel()
    lease.release()


async def test_a_file_that_is_read_ahead_does_not_hold_up_the_end() -> None:
    world = World()
    lease = await world.loaded("a")
    world.accounts.endless = True
    waits = world.asking("b")
    await settle()
    assert world.accounts.read == ["b"]  # a was started at once
    lease.release()
    waits.cancel()
    async with asyncio.timeout(60):
        await world.scheduler.close(0.0)
