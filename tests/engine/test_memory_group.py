"""In a control group with room for two of three small models, asking for three in turn never ends in a kill."""

import shutil

from tests.engine.conftest import MakeEngineDaemon, RealEngine
from tests.fakes.cgroup import memory_group
from tests.fakes.daemon import GUARD_SECONDS

MIB = 1024 * 1024
# One model with the window of below and one slot was seen to use 300 MiB with the wheel's engine, its file included,
# and 206 with one that was compiled.
LIMIT_OF_WHEEL, LIMIT = 900 * MIB, 750 * MIB


async def test_three_models_in_turn_with_memory_for_two(
    make_engine_daemon: MakeEngineDaemon, engine: RealEngine
) -> None:
    """Must hold: never an out-of-memory kill, and each request is answered."""
    daemon = make_engine_daemon(CONTEXT_LENGTH=4096)
    async with daemon.client() as client:
        copy = daemon.folder / "third.gguf"
        shutil.copyfile(max((daemon.models / "blobs").iterdir(), key=lambda blob: blob.stat().st_size), copy)
        copy.chmod(0o644)
        with copy.open("ab") as file:
            file.write(b"\0" * 64)
        made = await client.post("/api/pull", json={"model": copy.as_uri(), "as": "third", "stream": False})
        assert made.status_code == 200, made.text
    daemon.stop()
    with memory_group(LIMIT_OF_WHEEL if engine.name == "wheel" else LIMIT) as group:
        daemon.command = group.inside(daemon.command)
        daemon.start()
        most = 0
        async with daemon.client() as client:
            for model in ["smollm2", "other", "third"] * 3:
                body = {
                    "model": model,
                    "prompt": "Once upon a time",
                    "stream": False,
                    "options": {"num_predict": 8},
                }
                reply = await client.post("/api/generate", json=body, timeout=GUARD_SECONDS)
                assert reply.status_code == 200, reply.text
                most = max(most, len(daemon.engines()))
        assert group.oom_kills == 0
        assert most == 2
        daemon.stop()
