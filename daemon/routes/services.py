"""What every route is given, composed once in `app.py`."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from daemon import chat
from daemon.chat import LoadOptions
from daemon.engines.watch import EngineWatch
from daemon.errors import BodyTooLarge
from daemon.middleware.access import CALLER, MAX_BODY_BYTES
from daemon.pull.puller import Puller
from daemon.scheduler.fairness import Caller
from daemon.scheduler.lease import Lease
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.state import NOBODY, Weights
from daemon.store.models import Store


@dataclass(frozen=True, slots=True)
class Services:
    """`identity` is how the command line tells this daemon from another server and finds its process;
    `default_model` is what a client gets that asks for a model of Anthropic's, "" for none; `drain` are the seconds
    that a model has to end its answers when it is to go; `caller` is who asks."""

    store: Store
    scheduler: Scheduler
    puller: Puller
    engine: EngineWatch
    identity: dict[str, Any]
    default_model: str = ""
    drain: float = 5.0
    caller: Caller = NOBODY

    def asked_by(self, scope: Scope) -> "Services":
        """The same for one request: its client gets the turns."""
        return replace(self, caller=Caller(*scope[CALLER]))

    def lease(
        self,
        weights: Weights,
        options: LoadOptions,
        keep_alive: float | None,
        request: chat.Request | None = None,
    ) -> AbstractAsyncContextManager[Lease]:
        """See Scheduler.lease."""
        return self.scheduler.lease(weights, options, keep_alive, self.caller, request)


async def read_body(request: Request) -> bytes:
    """The whole body. Raises BodyTooLarge as soon as it is."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"the request body is larger than {MAX_BODY_BYTES} bytes")
    return bytes(body)
