"""Routes of Ollama's API that need a server of somebody else: its accounts, its cloud, its registry."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Router

from daemon.errors import NotSupported
from daemon.middleware import ollama
from daemon.middleware.access import to_response
from daemon.routes.endpoint import Endpoint
from daemon.routes.services import Services

_ACCOUNT = "mgr has no accounts: it runs models on this machine only, and nothing has to be signed in or out"
_CLOUD = "mgr asks no server of Ollama's; this is not supported"
_PUSH = "pushing a model to a registry is not supported yet; copy the file, or use `mgr pull` on the other machine"

_ROUTES = (
    ("/api/me", ["POST"], _ACCOUNT),
    ("/api/signout", ["POST"], _ACCOUNT),
    ("/api/user/keys/{key}", ["DELETE"], _ACCOUNT),
    ("/api/experimental/{rest:path}", ["GET", "POST"], _CLOUD),
    ("/api/push", ["POST"], _PUSH),
)


def router(services: Services) -> Router:
    routes = Router()
    for path, methods, reason in _ROUTES:
        routes.add_route(path, _refusing(reason), methods=methods)
    routes.add_route("/api/status", _status, methods=["GET"])
    return routes


def _refusing(reason: str) -> Endpoint:
    reply = ollama.CHAT.error(NotSupported(reason))

    async def endpoint(request: Request) -> Response:
        return to_response(reply)

    return endpoint


async def _status(request: Request) -> Response:
    return JSONResponse({"cloud": {"disabled": True, "source": "none"}})
