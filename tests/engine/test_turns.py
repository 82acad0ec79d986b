"""With the real engine: models that are asked for in turn, and windows that clients ask for in turn, cost few loads."""

import asyncio
import re

from tests.engine.conftest import MakeEngineDaemon
from tests.fakes.daemon import DaemonProcess

MODEL, OTHER = "smollm2", "other"


def loads(daemon: DaemonProcess) -> int:
    return len(re.findall(r"engine .* has pid \d+", daemon.log_text()))


async def test_twenty_alternating_requests_queued_at_once_make_two_loads(
    make_engine_daemon: MakeEngineDaemon,
) -> None:
    daemon = make_engine_daemon(MAX_LOADED_MODELS=1, CONTEXT_LENGTH=512, PATIENCE="10m")
    async with daemon.client() as client:
        bodies = [
            {"model": model, "prompt": "Hi", "stream": False, "options": {"num_predict": 1}}
            for model in [MODEL, OTHER] * 10
        ]
        replies = await asyncio.gather(*[client.post("/api/generate", json=body) for body in bodies])
    assert [reply.status_code for reply in replies] == [200] * 20
    assert loads(daemon) == 2


async def test_windows_in_turn_make_one_load(make_engine_daemon: MakeEngineDaemon) -> None:
    daemon = make_engine_daemon(CONTEXT_LENGTH=2048)
    async with daemon.client() as client:
        for options in [{"num_ctx": 1024}, {"num_ctx": 512}, {}] * 7:
            body = {
                "model": MODEL,
                "prompt": "Hi",
                "stream": False,
                "options": {"num_predict": 1, **options},
            }
            reply = await client.post("/api/generate", json=body)
            assert reply.status_code == 200, reply.text
    [shown] = daemon.loaded()
    assert (loads(daemon), shown["context_length"]) == (1, 1024)
