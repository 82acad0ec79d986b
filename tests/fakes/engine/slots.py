"""The engine's slots: who works in which, and what the engine tells of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Slot:
    """`task` is the number of the request, None while it is idle; `prompt` and `decoded` are tokens."""

    id: int
    task: int | None = None
    prompt: int = 0
    decoded: int = 0


class Slots:
    def __init__(self, count: int, window: int) -> None:
        self._all = [Slot(number) for number in range(count)]
        self._window = window
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def one(self, task: int, prompt: int) -> AsyncIterator[Slot]:
        """A free slot, waited for in turn."""
        async with self._free:
            slot = next(slot for slot in self._all if slot.task is None)
            slot.task, slot.prompt, slot.decoded = task, prompt, 0
            try:
                yield slot
            finally:
                slot.task = None

    def view(self) -> list[dict[str, Any]]:
        """What `/slots` answers, without the parameters of the request."""
        return [
            {
                "id": slot.id,
                "n_ctx": self._window,
                "speculative": False,
                "is_processing": slot.task is not None,
                "id_task": -1 if slot.task is None else slot.task,
                "n_prompt_tokens": slot.prompt,
                "n_prompt_tokens_processed": slot.prompt,
                "n_prompt_tokens_cache": 0,
                "next_token": [
                    {
                        "has_next_token": slot.task is not None,
                        "has_new_line": False,
                        "n_remain": -1,
                        "n_decoded": slot.decoded,
                    }
                ],
            }
            for slot in self._all
        ]
