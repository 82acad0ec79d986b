"""Who may call: decided from the request's head, on every route, before a byte of the body is read. Pure ASGI.

A web page must not drive the daemon: its requests carry a foreign `Origin` or `Sec-Fetch-Site`, or, with a name that
was pointed at this machine, a foreign `Host`. Because of this gate a body may be read as JSON whatever its content
type says. Sources: the Fetch standard (Origin), Fetch Metadata Request Headers (Sec-Fetch-Site).
"""

import hashlib
import hmac
import ipaddress
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daemon.errors import BodyTooLarge, Forbidden, MgrError, Unauthorized
from daemon.middleware.dialect import Reply

log = logging.getLogger("mgr.access")

# Answered without a key: what a load balancer and Ollama's clients ask to see whether somebody is there.
PUBLIC_PATHS = frozenset({"/", "/health/live"})

MAX_BODY_BYTES = 64 * 1024 * 1024

# Origins of programs on this machine. No web page can have them: the names resolve to this machine only, and the
# schemes belong to desktop shells.
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_LOCAL_SCHEMES = frozenset({"app", "tauri", "vscode-webview", "vscode-file"})

_METHODS = "GET, POST, DELETE, HEAD, OPTIONS"


@dataclass(frozen=True, slots=True)
class Policy:
    """`hosts`: names that a Host header may carry. `any_ip`: the daemon listens beyond loopback, so any address may
    be its own. `any_host`: it listens on a Unix socket, which no browser reaches. `key_digests`: SHA-256 of the API
    keys; empty means no key is asked for."""

    hosts: frozenset[str] = frozenset()
    any_ip: bool = False
    any_host: bool = False
    origins: frozenset[str] = frozenset()
    key_digests: tuple[bytes, ...] = ()

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raises Forbidden, Unauthorized or BodyTooLarge, each with a sentence."""
        host = self._check_host(headers)
        self._check_origin(headers, host)
        if method != "OPTIONS":
            self._check_key(path, headers)
        _check_length(headers)

    def allows_origin(self, origin: str) -> bool:
        """An origin is a scheme, a host and a port; "null" never is one of ours."""
        if "*" in self.origins or origin.lower() in self.origins:
            return True
        try:
            parts = urlsplit(origin)
            host = parts.hostname
        except ValueError:
            return False
        if parts.scheme in _LOCAL_SCHEMES:
            return True
        return parts.scheme in {"http", "https"} and host in _LOCAL_HOSTS

    def _check_host(self, headers: Headers) -> str:
        values = headers.getlist("host")
        if len(values) != 1:
            raise Forbidden(f"the request has {len(values)} Host headers; exactly one is needed")
        host = values[0]
        if not (self.any_host or self._allows_host(host)):
            raise Forbidden("the Host header names another machine; add the name to MGR_HOSTS to allow it")
        return host

    def _allows_host(self, host: str) -> bool:
        name = _host_name(host)
        if name is None:
            return False
        if name in self.hosts or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_ip or address.is_loopback

    def _check_origin(self, headers: Headers, host: str) -> None:
        origins = headers.getlist("origin")
        if len(origins) > 1:
            raise Forbidden("the request has more than one Origin header")
        if origins:
            own = {f"http://{host}", f"https://{host}"}
            if origins[0] not in own and not self.allows_origin(origins[0]):
                raise Forbidden("web pages of this origin may not call; add it to MGR_ORIGINS to allow it")
        elif headers.get("sec-fetch-site", "none").lower() not in {"none", "same-origin"}:
            raise Forbidden("web pages of another site may not call")

    def _check_key(self, path: str, headers: Headers) -> None:
        if not self.key_digests or path in PUBLIC_PATHS:
            return
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = key_digest(key)
        # All are compared, always, so that the time tells nothing.
        matches = [hmac.compare_digest(digest, known) for known in self.key_digests]
        if not any(matches):
            raise Unauthorized("a valid API key is needed: send it as `Authorization: Bearer KEY`")


def key_digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _host_name(host: str) -> str | None:
    """The name or address in a Host header, without port and brackets; None when it is neither."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018 - raises for a port that is none
    except ValueError:
        return None
    if parts.netloc != host or parts.username is not None or parts.path or not parts.hostname:
        return None
    return parts.hostname.removesuffix(".").lower()


def _check_length(headers: Headers) -> None:
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
        raise BodyTooLarge(f"the request body is larger than {MAX_BODY_BYTES} bytes")


class Access:
    """The outermost layer: gives a request its id, applies the policy, answers preflights, logs."""

    def __init__(self, app: ASGIApp, policy: Policy, reply: Callable[[str, MgrError], Reply]) -> None:
        """`reply` gives the answer to an error on a path, in the dialect that is spoken there."""
        self._app = app
        self._policy = policy
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        started = time.monotonic()
        request_id = secrets.token_hex(8)
        origin = headers.get("origin")
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                marked = MutableHeaders(scope=message)
                marked["X-Request-Id"] = request_id
                if origin is not None and status != 403:
                    marked["Access-Control-Allow-Origin"] = origin
                    marked.add_vary_header("Origin")
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id
        try:
            self._policy.check(scope["method"], scope["path"], headers)
        except MgrError as error:
            reply = self._reply(scope["path"], error)
            await to_response(reply)(scope, receive, send_marked)
        else:
            if scope["method"] == "OPTIONS":
                await _preflight(headers)(scope, receive, send_marked)
            else:
                await self._app(scope, receive, send_marked)
        finally:
            # repr, because the path is a stranger's text.
            log.debug(
                "%s %s %r %d %.0f ms",
                request_id,
                scope["method"],
                scope["path"],
                status,
                (time.monotonic() - started) * 1000,
            )


def _preflight(headers: Headers) -> Response:
    wanted = headers.get("access-control-request-headers", "")
    allowed = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": "600"}
    if wanted:
        allowed["Access-Control-Allow-Headers"] = wanted
    return Response(status_code=204, headers=allowed)


def to_response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, dict(reply.headers), reply.media_type)


def read_keys(lines: Iterable[str]) -> tuple[bytes, ...]:
    """Digests of the keys in a file: one a line, blank lines and lines that start with # are left out."""
    keys = (line.strip() for line in lines)
    return tuple(key_digest(key) for key in keys if key and not key.startswith("#"))
