"""Estimates, measurements and free memory, brought together."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.chat import LoadOptions
from daemon.errors import BadModel, LoadFailed
from daemon.runner.engine import Engine
from daemon.runner.launch import Launch
from daemon.scheduler.devices import Device, Memory, Pool
from daemon.scheduler.learned import Learned
from daemon.scheduler.ledger import Ledger
from daemon.scheduler.machine import Machine
from daemon.scheduler.memory import MIB
from daemon.scheduler.placement import Defaults
from daemon.scheduler.state import ENGINES, RAM, Weights
from daemon.store.gguf import read_summary
from tests.fakes.gguf_files import gguf

ANY = LoadOptions()
SOME = Pool(1000 * MIB, 400 * MIB)


class FakeMachine(Machine):
    """`gpus` are what its engine's lines stand for."""

    def __init__(self, ram: Pool | None, gpus: tuple[Device, ...] = ()) -> None:
        self.pool = ram
        self.gpus = gpus
        self.looked = 0

    def ram(self) -> Pool | None:
        return self.pool

    async def memory(self, lines: Iterable[str]) -> Memory:
        self.looked += 1
        return Memory(self.pool, self.gpus)


class FakeEngines:
    """An engine with these devices is found when it is looked for."""

    def __init__(self, devices: tuple[str, ...] | None) -> None:
        self.found: Engine | None = None
        self._engine = Engine("wheel", ("engine",), "b1", frozenset(), devices)

    async def find(self) -> Engine:
        self.found = self._engine
        return self._engine


async def ledger(
    folder: Path, ram: Pool | None = SOME, loaded: int = 0, devices: tuple[str, ...] | None = ()
) -> Ledger:
    books = Ledger(FakeMachine(ram), Learned(folder), Defaults(), loaded, FakeEngines(devices))
    await books.prepare({}, settled=True)
    return books


def weights(folder: Path, **metadata: int) -> Weights:
    path = folder / "m.gguf"
    path.write_bytes(gguf({"llama.context_length": 8192, **metadata}))
    return Weights("m", path, "m:latest", 8192, path.stat().st_size, summary=read_summary(path))


async def test_what_is_free_and_what_engines_have_is_what_there_is(tmp_path: Path) -> None:
    books = await ledger(tmp_path)
    assert books.capacity([]) == {RAM: 350 * MIB}  # a twentieth of the memory stays free
    assert 350 * MIB < books.capacity([os.getpid()])[RAM] <= 1000 * MIB
    assert books.capacity([2**31 - 1]) == {RAM: 350 * MIB}  # no such process
    assert (await ledger(tmp_path, loaded=2)).capacity([])[ENGINES] == 2


async def test_nothing_left_is_zero_and_nothing_known_is_three_models(tmp_path: Path) -> None:
    assert (await ledger(tmp_path, Pool(1000 * MIB, 10 * MIB))).capacity([]) == {RAM: 0}
    unknown = await ledger(tmp_path, None)
    assert unknown.capacity([]) == {ENGINES: 3}
    assert unknown.plans(weights(tmp_path), None, ANY)[0].takes == {ENGINES: 1}


async def test_what_was_measured_changes_the_plans(tmp_path: Path) -> None:
    books, model = await ledger(tmp_path), weights(tmp_path)
    before = books.plans(model, 1024, ANY)
    assert books.plans(model, 1024, ANY) is before  # worked out once
    launch = Launch(model=model.path, alias="m", window=1024, slots=4)
    await books.measure(model, launch, ANY, os.getpid(), {})  # far more than such a model needs
    assert books.plans(model, 1024, ANY)[0].takes[RAM] > before[0].takes[RAM]
    # Other settings are others.
    other = LoadOptions(gpu_layers=0)
    assert books.plans(model, 1024, other)[0].takes == before[0].takes
    # It is remembered by the next daemon.
    assert (await ledger(tmp_path)).plans(model, 1024, ANY) == books.plans(model, 1024, ANY)


async def test_a_process_that_is_gone_teaches_nothing(tmp_path: Path) -> None:
    books, model = await ledger(tmp_path), weights(tmp_path)
    before = books.plans(model, 1024, ANY)
    await books.measure(model, Launch(model=model.path, alias="m", window=1024, slots=4), ANY, 2**31 - 1, {})
    assert books.plans(model, 1024, ANY) == before


async def test_a_header_that_cannot_be_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="block_count"):
        (await ledger(tmp_path)).plans(weights(tmp_path, **{"llama.block_count": 0}), None, ANY)


async def test_a_file_that_is_gone(tmp_path: Path) -> None:
    books, model = await ledger(tmp_path), weights(tmp_path)
    model.path.unlink()
    with pytest.raises(LoadFailed, match="the model 'm:latest' was deleted before it was loaded"):
        books.plans(model, None, ANY)


@pytest.mark.parametrize("devices", [("CUDA0: NVIDIA H200",), None])
async def test_where_a_gpu_does_not_say_how_large_it_is_memory_is_the_engines_business(
    tmp_path: Path, devices: tuple[str, ...] | None
) -> None:
    books = await ledger(tmp_path, devices=devices)
    assert books.capacity([]) == {ENGINES: 3}
    [plan] = books.plans(weights(tmp_path), None, ANY)
    assert (plan.takes, plan.slots) == ({ENGINES: 1}, 2)


CARD = Device("CUDA0", "NVIDIA L4", 1000 * MIB, 600 * MIB, live=True)


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_layers_lie_on_a_gpu_and_what_others_have_of_it_is_theirs(tmp_path: Path) -> None:
    machine, engines, clock = FakeMachine(SOME, (CARD,)), FakeEngines(("CUDA0: NVIDIA L4",)), Time()
    books = Ledger(machine, Learned(tmp_path), Defaults(), 0, engines, clock)
    await books.prepare({}, settled=True)
    assert books.capacity([]) == {RAM: 350 * MIB, "CUDA0": 550 * MIB}
    plan = books.plans(weights(tmp_path), 1024, ANY)[0]
    assert plan.offload is not None
    assert (plan.offload.devices, plan.offload.layers) == (("CUDA0",), plan.offload.of)
    assert 0 < plan.takes["CUDA0"] < 550 * MIB

    # Another program ends, and 100 MiB are ours: seen when a second has passed and no model comes or goes.
    machine.gpus = (replace(CARD, free=900 * MIB),)
    await books.prepare({"CUDA0": 100 * MIB}, settled=True)
    clock.now = 2.0
    await books.prepare({"CUDA0": 100 * MIB}, settled=False)
    assert (machine.looked, books.capacity([])["CUDA0"]) == (1, 550 * MIB)
    await books.prepare({"CUDA0": 100 * MIB}, settled=True)
    assert (machine.looked, books.capacity([])["CUDA0"]) == (2, 950 * MIB)

    # Another engine has no GPU.
    engines.found = Engine("wheel", ("engine",), "b1", frozenset(), ())
    await books.prepare({}, settled=False)
    assert books.capacity([]) == {RAM: 350 * MIB}
    assert {plan.offload for plan in books.plans(weights(tmp_path), 1024, ANY)} == {None}


@pytest.mark.parametrize(
    ("others", "live", "believed"), [(0, True, True), (50 * MIB, True, False), (0, False, False)]
)
async def test_what_lies_on_a_gpu_is_measured_there_where_it_is_alone_and_the_numbers_are_new(
    tmp_path: Path, others: int, live: bool, believed: bool
) -> None:
    machine = FakeMachine(SOME, (replace(CARD, live=live),))
    books = Ledger(machine, Learned(tmp_path), Defaults(), 0, FakeEngines(("CUDA0: NVIDIA L4",)))
    await books.prepare({}, settled=True)
    model = weights(tmp_path)
    before = books.plans(model, 1024, ANY)
    machine.gpus = (replace(CARD, live=live, free=CARD.free - before[0].takes["CUDA0"] - 30 * MIB),)
    launch = Launch(model=model.path, alias="m", window=1024, slots=4, offload=before[0].offload)
    await books.measure(model, launch, ANY, os.getpid(), {"CUDA0": others})
    now = books.plans(model, 1024, ANY)
    assert now[0].takes["CUDA0"] - before[0].takes["CUDA0"] == (30 * MIB if believed else 0)
    assert (now[0].takes[RAM], now[-1].takes) == (before[0].takes[RAM], before[-1].takes)
