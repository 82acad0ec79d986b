"""The gate in front of a real daemon, in the bytes that a browser or a stranger sends."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from daemon.app import ROUTERS, build
from daemon.protocol import MAX_HEAD_BYTES
from daemon.settings import Settings
from tests.fakes.daemon import GUARD_SECONDS, ScriptedDaemon, eventually

Headers = list[tuple[str, str]]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedDaemon]:
    """With the models a and b; a is loaded."""
    daemon = ScriptedDaemon(tmp_path_factory.mktemp("open"))
    daemon.model("a", "b")
    daemon.start()
    httpx.post(f"{daemon.url}/api/generate", json={"model": "a"}, timeout=GUARD_SECONDS).raise_for_status()
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedDaemon]:
    """One that asks for a key."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "keys").write_text("secret\n")
    daemon = ScriptedDaemon(folder, {"API_KEYS_FILE": folder / "keys"}).start()
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Every method and path, from what the application is made of."""
    folder = tmp_path_factory.mktemp("routes")
    composed = build(Settings(models=folder / "models", shortnames=folder / "none"), "")
    found = [
        (method, route.path.replace("{model:path}", "a"))
        for router in ROUTERS
        for route in router(composed.services).routes
        if isinstance(route, Route)
        for method in sorted(route.methods or ())
    ]
    composed.release()
    assert {("POST", "/api/pull"), ("DELETE", "/api/delete"), ("POST", "/v1/messages")} < {*found}
    return found


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def send(daemon: ScriptedDaemon, request: bytes, *, head_only: bool = False) -> Answer:
    """Sends bytes and reads what comes first: `100 Continue` would be taken for the answer."""
    host, port = daemon.url.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), GUARD_SECONDS)) as wire:
        wire.sendall(request)
        reader = wire.makefile("rb")
        status = int(reader.readline().split()[1])
        headers: dict[str, str] = {}
        while line := reader.readline().rstrip():
            name, _, value = line.decode("latin-1").partition(": ")
            headers[name.lower()] = value
        length = 0 if head_only else int(headers.get("content-length", 0))
        return Answer(status, headers, reader.read(length))


def request(method: str, path: str, headers: Headers, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def world(daemon: ScriptedDaemon) -> tuple[Any, Any, int]:
    """What a request could have changed: the store, what is loaded, what engines were asked."""
    listed = httpx.get(f"{daemon.url}/api/tags", trust_env=False).json()
    loaded = [{**model, "expires_at": ""} for model in daemon.loaded()]
    return listed, loaded, len(daemon.events())


HOST = ("Host", "127.0.0.1:11434")
ATTACKS: dict[str, Headers] = {
    "foreign host": [("Host", "evil.example:11434")],
    "host that begins like ours": [("Host", "127.0.0.1.evil.example")],
    "two hosts": [HOST, HOST],
    "two hosts, one foreign": [HOST, ("Host", "evil.example")],
    "no host": [],
    "foreign origin": [HOST, ("Origin", "http://evil.example")],
    "origin null": [HOST, ("Origin", "null")],
    "two origins": [HOST, ("Origin", "http://localhost"), ("Origin", "http://evil.example")],
    "cross-site": [HOST, ("Sec-Fetch-Site", "cross-site")],
    "same-site": [HOST, ("Sec-Fetch-Site", "same-site")],
}
CONTENT_TYPES: list[Headers] = [
    [("Content-Type", "application/json")],
    [("Content-Type", "text/plain;charset=UTF-8")],
    [("Content-Type", "application/x-www-form-urlencoded")],
    [],
]
# On any route that read it, it would load, unload or delete a model, or start a pull.
HARM = json.dumps(
    {"model": "a", "prompt": "", "messages": [], "keep_alive": 0, "stream": False, "max_tokens": 1}
).encode()


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_web_page_can_do_nothing(
    daemon: ScriptedDaemon, routes: list[tuple[str, str]], attack: str
) -> None:
    """Must hold: foreign Host, two Hosts, foreign Origin, `Origin: null`, `Sec-Fetch-Site: cross-site`, with JSON,
    text and form content types, on every route: 403 and nothing changed."""
    before = world(daemon)
    for method, path in routes:
        for content_type in CONTENT_TYPES:
            headers = [*ATTACKS[attack], *content_type, ("Content-Length", str(len(HARM)))]
            answer = send(daemon, request(method, path, headers, HARM), head_only=method == "HEAD")
            assert answer.status == 403, (method, path, content_type)
            assert "access-control-allow-origin" not in answer.headers
            assert "x-request-id" in answer.headers
    assert world(daemon) == before


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_of_the_body_is_read(
    daemon: ScriptedDaemon, routes: list[tuple[str, str]], attack: str
) -> None:
    """Must hold: the gate decides before the body is read: it is not asked for, and the 403 does not wait for it."""
    for method, path in routes:
        headers = [*ATTACKS[attack], ("Content-Length", "60000000"), ("Expect", "100-continue")]
        answer = send(daemon, request(method, path, headers), head_only=method == "HEAD")
        assert answer.status == 403, (method, path)


def test_the_same_without_an_attack_is_read(daemon: ScriptedDaemon) -> None:
    """What the two tests above rest on: a body that is allowed is asked for, whatever its content type."""
    before = world(daemon)
    asked = send(
        daemon, request("POST", "/api/show", [HOST, ("Content-Length", "14"), ("Expect", "100-continue")])
    )
    assert asked.status == 100
    body = b'{"model": "a"}'
    for content_type in CONTENT_TYPES:
        headers = [HOST, *content_type, ("Content-Length", str(len(body)))]
        assert send(daemon, request("POST", "/api/show", headers, body)).status == 200
    assert world(daemon) == before


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /api/tags HTTP/1.0", 403),
        ("GET /api/tags HTTP/1.0\r\nHost: localhost", 200),
        ("GET http://evil.example/api/tags HTTP/1.1\r\nHost: 127.0.0.1", 400),
        ("GET http://evil.example HTTP/1.1\r\nHost: 127.0.0.1", 400),
        ("OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1", 400),
        ("GET /api/tags HTTP/1.1\r\nHost: localhost.", 200),
        ("GET /api/tags HTTP/1.1\r\nHost: [::1]:p", 403),
        ("GET /api/tags HTTP/1.1\r\nHost: 127.0.0.1/?x", 403),
        ("GET /api/tags HTTP/1.1\r\nHost: user@127.0.0.1", 403),
        ("GET /api/tags HTTP/1.1\r\nHost : 127.0.0.1", 400),
        ("GET /api/tags HTTP/1.1\r\nHost: 127.0.0.1\r\n continued", 400),
        ("GET /api/tags HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\x1b[31m", 400),
        ("GET /api/tags HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: upgrade", 200),
        ("GET /api/tags HTTP/1.1\r\nHost: evil.example\r\nUpgrade: websocket\r\nConnection: upgrade", 403),
        ("POST /api/show HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2", 400),
        ("POST /api/show HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1", 400),
        ("POST /api/show HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999999", 400),
        ("POST /api/show HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 70000000", 413),
        (
            "POST /api/show HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked",
            400,
        ),
    ],
)
def test_heads(daemon: ScriptedDaemon, head: str, status: int) -> None:
    assert send(daemon, f"{head}\r\n\r\n".encode("latin-1")).status == status


def test_a_trailer_is_no_header(daemon: ScriptedDaemon) -> None:
    head = "POST /api/show HTTP/1.1\r\nHost: evil.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert send(daemon, f"{head}0\r\nHost: 127.0.0.1\r\n\r\n".encode()).status == 403


async def test_a_body_that_never_said_how_long_it_is(daemon: ScriptedDaemon) -> None:
    async def endless() -> Any:
        for _ in range(80):
            yield b" " * 1_000_000

    async with daemon.client() as client:
        response = await client.post("/api/show", content=endless())
    assert response.status_code == 413


def test_a_head_has_a_bound(daemon: ScriptedDaemon) -> None:
    """1 MB more makes no difference: it is not kept."""
    for size in (MAX_HEAD_BYTES + 1, 1_000_000):
        answer = send(daemon, request("GET", "/", [HOST, ("X", "a" * size)]))
        assert answer.status == 400


def test_a_local_page_may_call(daemon: ScriptedDaemon) -> None:
    origin = ("Origin", "http://localhost:3000")
    wanted = [
        ("Access-Control-Request-Method", "DELETE"),
        ("Access-Control-Request-Headers", "authorization"),
    ]
    preflight = send(daemon, request("OPTIONS", "/api/delete", [HOST, origin, *wanted]))
    assert preflight.status == 204
    body = json.dumps(
        {"model": "a", "messages": [{"role": "user", "content": "hi"}], "stream": False}
    ).encode()
    answer = send(
        daemon,
        request("POST", "/api/chat", [HOST, origin, ("Content-Length", str(len(body)))], body),
    )
    assert answer.status == 200
    for each in (preflight, answer):
        assert each.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert each.headers["vary"] == "Origin"


async def test_a_program_sees_no_cors_header(daemon: ScriptedDaemon) -> None:
    body = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
    async with daemon.client() as client:
        for path in ("/api/chat", "/v1/chat/completions"):
            response = await client.post(path, json=body)
            assert response.status_code == 200
            assert [name for name in response.headers if name.startswith("access-control")] == []


async def test_a_stranger_writes_no_line_of_the_log(daemon: ScriptedDaemon) -> None:
    assert send(daemon, request("GET", "/%1b[31m%0aFAKE%e2%80%ae", [HOST])).status == 404
    await eventually(lambda: "FAKE" in daemon.log_text(), "the request is logged")
    log = daemon.log_text()
    [line] = [line for line in log.splitlines() if "FAKE" in line]
    assert re.match(
        r"\d{4}-\d\d-\d\d .* DEBUG mgr\.access: [0-9a-f]{16} GET '/\\x1b\[31m\\nFAKE\\u202e' 404", line
    )
    assert "\x1b" not in log


# ---- keys


@pytest.mark.parametrize(
    ("path", "envelope"),
    [
        ("/api/chat", ["error"]),
        ("/v1/chat/completions", ["error"]),
        ("/v1/messages", ["error", "request_id", "type"]),
    ],
)
def test_without_a_key_it_is_401_in_each_dialect(
    locked: ScriptedDaemon, path: str, envelope: list[str]
) -> None:
    for key in (
        [],
        [("Authorization", "Bearer cl\u00e9")],
        [("Authorization", "Bearer "), ("x-api-key", "")],
    ):
        answer = send(locked, request("POST", path, [HOST, *key, ("Content-Length", "60000000")]))
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert sorted(json.loads(answer.body)) == envelope


def test_with_a_key(locked: ScriptedDaemon) -> None:
    for header in (("Authorization", "Bearer secret"), ("x-api-key", "secret")):
        assert send(locked, request("GET", "/v1/models", [HOST, header])).status == 200
    assert "secret" not in locked.log_text()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/?x=/v1", 200),
        ("/health/live", 200),
        ("/v1/models", 401),
        ("//v1/models", 401),
        ("/v1/../v1/models", 401),
        ("/%2e%2e/v1/models", 401),
        ("/%2fv1/models", 401),
        ("/V1/models", 401),
        ("/health/live/../../v1/models", 401),
        ("/health/live%2f", 401),
        ("/health/live;/v1/models", 401),
        ("/openapi.json", 401),
        ("/docs", 401),
    ],
)
def test_what_needs_a_key(locked: ScriptedDaemon, path: str, status: int) -> None:
    assert send(locked, request("GET", path, [HOST])).status == status


def test_every_route_but_two_needs_a_key(locked: ScriptedDaemon, routes: list[tuple[str, str]]) -> None:
    """Must hold: default deny; exactly `/` and `/health/live` answer without a key."""
    for method, path in routes:
        answer = send(locked, request(method, path, [HOST]), head_only=True)
        assert answer.status == (200 if path in ("/", "/health/live") else 401), (method, path)
