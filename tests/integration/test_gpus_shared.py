"""Models on GPUs: the scripted engine pretends to have two, each with room for one small model."""

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.daemon import ScriptedDaemon
from tests.integration.conftest import MakeDaemon

# A model takes 400 MiB for the driver and next to nothing for itself; a twentieth stays free.
MIB_OF_EACH = 600


def with_gpus(daemon: ScriptedDaemon, free: int = MIB_OF_EACH) -> ScriptedDaemon:
    """The first one has only so many MiB free."""
    engine = Path(str(daemon.settings["ENGINE"]))
    start = engine.read_text().removeprefix("#!/bin/sh\n")
    engine.write_text(f"""#!/bin/sh
case "$*" in
--help) echo "  --list-devices" ;;
--list-devices)
    echo "Available devices:"
    echo "  CUDA0: NVIDIA Pretender ({MIB_OF_EACH} MiB, {free} MiB free)"
    echo "  CUDA1: NVIDIA Pretender ({MIB_OF_EACH} MiB, {MIB_OF_EACH} MiB free)"
    exit ;;
esac
{start}""")
    return daemon


async def ask(daemon: ScriptedDaemon, model: str, **options: Any) -> Any:
    async with daemon.client() as client:
        body = {"model": model, "prompt": "Hi", "stream": False, "options": options}
        return await client.post("/api/generate", json=body)


def argument(daemon: ScriptedDaemon, model: str, flag: str) -> str | None:
    """What the model's engine was last started with."""
    words = daemon.events("start", model)[-1]["argv"]
    return str(words[words.index(flag) + 1]) if flag in words else None


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> ScriptedDaemon:
    daemon = make_daemon()
    daemon.model("a", "b", "c", "d")
    return daemon


async def test_each_gpu_gets_one_and_the_next_takes_the_place_of_one_that_is_idle(
    daemon: ScriptedDaemon,
) -> None:
    with_gpus(daemon).start()
    for model in ("a", "b"):
        assert (await ask(daemon, model)).status_code == 200
    assert [argument(daemon, model, "--device") for model in ("a", "b")] == ["CUDA0", "CUDA1"]
    assert argument(daemon, "a", "--n-gpu-layers") == "2"  # one layer, and the output
    assert argument(daemon, "a", "--fit") == "off"

    assert (await ask(daemon, "c")).status_code == 200
    assert argument(daemon, "c", "--device") == "CUDA0"
    shown = {model["name"]: model for model in daemon.loaded()}
    assert {name: model["devices"] for name, model in shown.items()} == {
        "b:latest": ["CUDA1"],
        "c:latest": ["CUDA0"],
    }
    assert all(model["size_vram"] == model["size"] > 0 for model in shown.values())


async def test_what_shall_not_lie_on_a_gpu_takes_nobodys_place_there(daemon: ScriptedDaemon) -> None:
    with_gpus(daemon).start()
    for model in ("a", "b"):
        await ask(daemon, model)
    assert (await ask(daemon, "c", num_gpu=0)).status_code == 200
    assert argument(daemon, "c", "--device") == "none"
    shown = {model["name"]: model["size_vram"] for model in daemon.loaded()}
    assert len(shown) == 3
    assert shown["c:latest"] == 0


async def test_a_gpu_that_is_full_of_others_is_left_to_them(daemon: ScriptedDaemon) -> None:
    with_gpus(daemon, free=100).start()
    for model in ("a", "b"):
        assert (await ask(daemon, model)).status_code == 200
    assert [argument(daemon, model, "--device") for model in ("a", "b")] == ["CUDA1", "CUDA1"]
    assert len(daemon.loaded()) == 1


async def test_a_gpu_that_is_not_there(daemon: ScriptedDaemon) -> None:
    with_gpus(daemon).start()
    reply = await ask(daemon, "a", main_gpu=1)
    assert (reply.status_code, argument(daemon, "a", "--device")) == (200, "CUDA1")
    reply = await ask(daemon, "b", main_gpu=5)
    assert (reply.status_code, reply.json()["error"]) == (
        400,
        "main_gpu is 5, and there are 2 GPUs here, numbered from 0; choose one of them",
    )
