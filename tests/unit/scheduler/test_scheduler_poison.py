"""The shell: a request that engines crash on."""

import asyncio
from dataclasses import replace

import pytest

from daemon.chat import CompletionRequest, LoadOptions
from daemon.errors import EngineDied, Poisonous
from tests.unit.scheduler.shell import World, settle, weights


async def test_a_request_that_engines_crash_on_is_refused_and_its_model_is_not() -> None:
    world = World()
    poison = CompletionRequest(model="a", prompt="boom")
    lease = world.scheduler.lease
    for _ in range(2):
        asking = asyncio.create_task(world.ask("a", request=poison))
        await settle()
        world.runners[-1].ready.set_result(None)
        held = await asking
        world.runners[-1].on_exit(EngineDied("the engine ended with signal 11", crashed=True))
        held.release()
        world.now += 1
    with pytest.raises(Poisonous, match="refused for another 599 s, as the engine crashed on it repeatedly"):
        async with lease(weights("a"), LoadOptions(), None, request=poison):
            pass
    # Nothing is held against the model: it starts at once.
    (await world.loaded("a")).release()
    (await world.ask("a", request=replace(poison, prompt="harmless"))).release()


async def test_of_two_suspects_of_a_crash_only_one_is_in_work_at_a_time() -> None:
    world = World()
    poison = CompletionRequest(model="a", prompt="boom")
    suspects = [poison, replace(poison, prompt="harmless")]
    first = asyncio.create_task(world.ask("a", request=suspects[0]))
    await settle()
    world.runners[-1].ready.set_result(None)
    in_flight = [await first, await world.ask("a", request=suspects[1])]
    world.runners[-1].on_exit(EngineDied("the engine ended with signal 11", crashed=True))
    for lease in in_flight:
        lease.release()
    world.now += 1
    (await world.loaded("a")).release()

    order: list[str] = []

    async def ask(request: CompletionRequest, until: asyncio.Event) -> None:
        async with world.scheduler.lease(weights("a"), LoadOptions(), None, request=request):
            order.append(str(request.prompt))
            await until.wait()

    ends = [asyncio.Event() for _ in range(3)]
    unknown = replace(poison, prompt="unknown")
    asking = [
        asyncio.create_task(ask(request, end))
        for request, end in zip([*suspects, unknown], ends, strict=True)
    ]
    await settle()
    assert order == ["boom", "unknown"]
    ends[0].set()
    await settle()
    assert order == ["boom", "unknown", "harmless"]
    for end in ends:
        end.set()
    await asyncio.gather(*asking)
