"""Who may call: decided from the request's head, on every route, before a byte of the body is read. Pure ASGI.

A web page must not drive the daemon: its requests carry a foreign `Origin` or `Sec-Fetch-Site`, or, with a name that
was pointed at this machine, a foreign `Host`. Because of this gate a body may be read as JSON whatever its content
type says. Sources: the Fetch standard (Origin, CORS), Fetch Metadata Request Headers (Sec-Fetch-Site), RFC 9110.
"""

import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daemon.errors import BodyTooLarge, Forbidden, MgrError, Unauthorized
from daemon.metrics import REQUESTS
from daemon.middleware.caller import name_of, wants_batch
from daemon.middleware.dialect import Reply

log = logging.getLogger("mgr.access")

# In an ASGI scope: the name of the client that asks, and whether it is a batch.
CALLER = "mgr.caller"

# Answered without a key: what a load balancer and Ollama's clients ask to see whether somebody is there.
PUBLIC_PATHS = frozenset({"/", "/health/live"})

MAX_BODY_BYTES = 64 * 1024 * 1024
UPLOADS = "/api/blobs/"  # straight to the disk, whose space is their limit

# `name`, `name:port`, `[v6]`, `[v6]:port`. No URL parser: each has its own idea of what else a host may be.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")

# Origins of programs on this machine. No page of another one can have them: the names resolve to this machine only,
# and the schemes belong to desktop shells.
_LOCAL_ORIGIN = re.compile(
    r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?|(?:app|tauri|vscode-webview|vscode-file)://[^/]*",
    re.IGNORECASE,
)

# The wildcard does not cover Authorization, which has to be named.
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE, HEAD, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, *",
    "Access-Control-Max-Age": "600",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """`hosts`: names that a Host header may carry. `any_ip`: the daemon listens beyond loopback, so any address may
    be its own. `any_host`: it listens on a Unix socket, which no browser reaches. `origins`: those that may call
    beside the local ones, each with at most one `*`, in lower case. `keys`: SHA-256 of the API keys, each with whether
    it is for a batch; empty means that no key is asked for."""

    hosts: frozenset[str] = frozenset()
    any_ip: bool = False
    any_host: bool = False
    origins: tuple[str, ...] = ()
    keys: Mapping[bytes, bool] = field(default_factory=dict)

    def check_source(self, headers: Headers) -> None:
        """Whether the request comes from where it may come from. Raises Forbidden."""
        host = self._check_host(headers)
        self._check_origin(headers, host)

    def check_key(self, path: str, headers: Headers) -> bytes | None:
        """The digest of the key that was sent, None where none is asked for. `path` is the decoded one that the router
        goes by. Raises Unauthorized."""
        if not self.keys or path in PUBLIC_PATHS:
            return None
        digest = key_digest(_sent_key(headers))
        # All are compared, always, so that the time tells nothing.
        matches = [hmac.compare_digest(digest, known) for known in self.keys]
        if not any(matches):
            raise Unauthorized("a valid API key is needed: send it as `Authorization: Bearer KEY`")
        return digest

    def allows_origin(self, origin: str) -> bool:
        """An origin is a scheme, a host and a port. A page that hides its own sends "null", which only `*` allows."""
        if _LOCAL_ORIGIN.fullmatch(origin):
            return True
        return any(_matches(origin.lower(), pattern) for pattern in self.origins)

    def _check_host(self, headers: Headers) -> str:
        values = headers.getlist("host")
        if len(values) != 1:
            raise Forbidden(f"the request has {len(values)} Host headers; exactly one is needed")
        host = values[0]
        if not (self.any_host or self._allows_host(host)):
            raise Forbidden("the Host header names another machine; add the name to MGR_HOSTS to allow it")
        return host

    def _allows_host(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match[1] or match[2]).removesuffix(".").lower()
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
        elif any(site.lower() not in {"none", "same-origin"} for site in headers.getlist("sec-fetch-site")):
            raise Forbidden("web pages of another site may not call")


def _matches(origin: str, pattern: str) -> bool:
    head, wildcard, tail = pattern.partition("*")
    if not wildcard:
        return origin == pattern
    return len(origin) >= len(head) + len(tail) and origin.startswith(head) and origin.endswith(tail)


def _sent_key(headers: Headers) -> bytes:
    """The bearer token, or else what `x-api-key` says; empty where there is none, or more than one."""
    credentials = [value.partition(" ") for value in headers.getlist("authorization")]
    bearers = [token for scheme, _, token in credentials if scheme.lower() == "bearer"]
    keys = bearers or headers.getlist("x-api-key")
    return keys[0].strip().encode("latin-1") if len(keys) == 1 else b""  # Headers decoded it as latin-1


def key_digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def read_keys(text: str) -> dict[bytes, bool]:
    """Digests of the keys in a file, and whether they are for a batch: a key a line, and the word `batch` after one
    whose requests let all others go first. Blank lines and lines that start with # are left out.

    Raises ValueError, which tells the line and never the key, for one that not every client could send.
    """
    keys = {}
    for number, line in enumerate(text.splitlines(), start=1):
        key, _, word = line.strip().partition(" ")
        if not key or key.startswith("#"):
            continue
        if not (key.isascii() and key.isprintable()) or word.strip() not in {"", "batch"}:
            raise ValueError(f"line {number} is not a key; a key is ASCII without spaces")
        keys[key_digest(key.encode("ascii"))] = bool(word)
    return keys


def _route(scope: Scope) -> str:
    """The path as the API has it, with names for its parts, once a router has seen the request."""
    return getattr(scope.get("route"), "path_format", "none")


def _check_length(path: str, headers: Headers) -> None:
    """Refuses early what announces itself as too long; who lies is stopped while the body is read."""
    if path.startswith(UPLOADS):
        return
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
        raise BodyTooLarge(f"the request body is larger than {MAX_BODY_BYTES} bytes")


class Access:
    """The outermost layer: gives a request its id, applies the policy, answers preflights, logs, counts."""

    def __init__(self, app: ASGIApp, policy: Policy, reply: Callable[[str, MgrError], Reply]) -> None:
        """`reply` gives the answer to an error on a path, in the dialect that is spoken there."""
        self._app = app
        self._policy = policy
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served: nothing passes the gate unchecked")
        exchange = _Marked(send)
        try:
            answer = self._decide(scope, exchange)
        except MgrError as error:
            answer = to_response(self._refusal(scope["path"], error))
        try:
            await answer(scope, receive, exchange.send)
        finally:
            REQUESTS.add(_route(scope), str(exchange.status or "none"))
            # repr, because the path is a stranger's text.
            log.debug(
                "%s %s %r %d %.0f ms",
                exchange.request_id,
                scope["method"],
                scope["path"],
                exchange.status,
                (time.monotonic() - exchange.started) * 1000,
            )

    def _decide(self, scope: Scope, exchange: "_Marked") -> ASGIApp:
        headers = Headers(scope=scope)
        self._policy.check_source(headers)
        exchange.origin = headers.get("origin")
        if scope["method"] == "OPTIONS":
            return Response(status_code=204, headers=_PREFLIGHT)
        key = self._policy.check_key(scope["path"], headers)
        scope[CALLER] = (
            name_of(scope, key),
            (key is not None and self._policy.keys[key]) or wants_batch(headers),
        )
        _check_length(scope["path"], headers)
        return self._app

    def _refusal(self, path: str, error: MgrError) -> Reply:
        reply = self._reply(path, error)
        if isinstance(error, Unauthorized):
            reply = replace(reply, headers={**reply.headers, "WWW-Authenticate": "Bearer"})
        return reply


class _Marked:
    """One request and what marks its answer: the id, and the origin that may read it, if one may."""

    def __init__(self, send: Send) -> None:
        self.request_id = secrets.token_hex(8)
        self.origin: str | None = None
        self.started = time.monotonic()
        self.status = 0
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.request_id
            # Decided here alone, whatever an engine behind us says.
            del headers["Access-Control-Allow-Origin"]
            del headers["Access-Control-Allow-Credentials"]
            if self.origin is not None:
                headers["Access-Control-Allow-Origin"] = self.origin
                headers.add_vary_header("Origin")
        await self._send(message)


def to_response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, dict(reply.headers), reply.media_type)
