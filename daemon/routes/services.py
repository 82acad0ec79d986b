"""What every route is given, composed once in `app.py`."""

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from daemon.engines.watch import EngineWatch
from daemon.errors import BodyTooLarge
from daemon.middleware.access import MAX_BODY_BYTES
from daemon.pull.puller import Puller
from daemon.scheduler.scheduler import Scheduler
from daemon.store.models import Store


@dataclass(frozen=True, slots=True)
class Services:
    """`identity` is how the command line tells this daemon from another server and finds its process;
    `default_model` is what a client gets that asks for a model of Anthropic's, "" for none."""

    store: Store
    scheduler: Scheduler
    puller: Puller
    engine: EngineWatch
    identity: dict[str, Any]
    default_model: str = ""


async def read_body(request: Request) -> bytes:
    """The whole body. Raises BodyTooLarge as soon as it is."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"the request body is larger than {MAX_BODY_BYTES} bytes")
    return bytes(body)
