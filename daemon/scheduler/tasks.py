"""Tasks that go on in the background. The event loop alone would let them be collected before they end."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any


class Tasks:
    """Those that have not ended yet."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> "Iterator[asyncio.Task[None]]":
        return iter(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """Must be called inside a running event loop."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
