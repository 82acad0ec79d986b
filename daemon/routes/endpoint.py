"""Endpoints for everything that is not a question to a model."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from daemon.middleware.access import to_response
from daemon.middleware.dialect import Dialect
from daemon.routes.services import Services
from daemon.routes.streaming import known

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Work: TypeAlias = Callable[[Services, Request], Awaitable[Response]]


def answering(services: Services, dialect: Dialect, work: Work) -> Endpoint:
    """An endpoint whose errors are in the dialect's envelope."""

    async def endpoint(request: Request) -> Response:
        try:
            return await work(services, request)
        except ClientDisconnect:
            raise
        except Exception as error:
            return to_response(dialect.error(known(error)))

    return endpoint
