"""The API as its description says: schemathesis over all of it, and bodies that no description can say."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from daemon.app import ROUTERS
from daemon.middleware.access import MAX_BODY_BYTES
from tests.fakes.daemon import GUARD_SECONDS, ScriptedDaemon

# What a route is allowed to answer with beyond 500; a plain 500 never is.
_DECLARED_5XX = {501, 502, 503, 507, 529}
_TELLS_TOO_MUCH = re.compile(r"Traceback|\.py\b|site-packages|0x[0-9a-f]{6,}|/tmp/|/home/|/root/")

_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"

POSTS = [
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
    "/api/show",
    "/api/create",
    "/api/copy",
    "/api/pull",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
]
GOOD: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
    "query": "hi",
    "documents": ["hi"],
    "max_tokens": 5,
    "stream": False,
    "source": "m",
    "destination": "other",
    "from": "m",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedDaemon]:
    daemon = ScriptedDaemon(tmp_path_factory.mktemp("openapi"), {"HUB_ENDPOINT": "http://127.0.0.1:9"})
    daemon.model("m")
    daemon.start()
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture(scope="module")
def api(server: ScriptedDaemon) -> Iterator[httpx.Client]:
    """Each request has a connection of its own, as the daemon closes some after an error."""
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=server.url, limits=limits, timeout=GUARD_SECONDS, trust_env=False) as client:
        yield client


def checked(response: httpx.Response, path: str) -> None:
    """No 500, and every error in the envelope of its API, which tells nothing about our inside."""
    assert response.status_code < 500 or response.status_code in _DECLARED_5XX, response.text
    if response.status_code < 400:
        return
    error = response.json()["error"]
    message = error if path.startswith("/api/") else error["message"]
    assert isinstance(message, str)
    assert message
    assert not _TELLS_TOO_MUCH.search(response.text), response.text


def test_the_document_is_served_and_tells_of_every_route(api: httpx.Client) -> None:
    document = api.get("/openapi.json").json()
    described = {
        (method.upper(), path) for path, operations in document["paths"].items() for method in operations
    }
    services: Any = type("Services", (), {"identity": {"version": "1"}})()
    served = set()
    for router in ROUTERS:
        for route in router(services).routes:
            assert isinstance(route, Route)
            path = re.sub(r":path}", "}", route.path)
            methods = set(route.methods or ())
            methods -= {"HEAD"} if "GET" in methods else set()
            served |= {(method, path) for method in methods}
    assert described == served - {("GET", "/openapi.json")}


# A declared status of 501 and above is an answer; 500 never is.
_CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501, 502, 503, 507, 529]
"""


# Only a request that uses the one model that there is gets further than a 404; that model must not be lost.
_NAMES = {"/api/create": "made", "/api/delete": "made", "/api/push": "made"}


def with_names(document: dict[str, Any]) -> dict[str, Any]:
    """The document with names of models where it says that any string is one."""
    for path, operations in document["paths"].items():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {})
            properties = content.get("application/json", {}).get("schema", {}).get("properties", {})
            names = {"model": _NAMES.get(path, "m"), "from": "m", "source": "m", "destination": "made"}
            for field in properties.keys() & names.keys():
                properties[field] = {"type": "string", "enum": [names[field]]}
    return document


@pytest.mark.timeout(GUARD_SECONDS * 4)
def test_schemathesis_finds_nothing(server: ScriptedDaemon, api: httpx.Client, tmp_path: Path) -> None:
    document = api.get("/openapi.json").json()
    (tmp_path / "openapi.json").write_text(json.dumps(with_names(document)))
    (tmp_path / "schemathesis.toml").write_text(_CONFIG)
    found = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", server.url),
            *("--checks", _CHECKS, "--phases", "examples,coverage,fuzzing"),
            *("--max-examples", "10", "--seed", "1", "--generation-allow-x00", "true"),
            *("--generation-database", "none", "--request-timeout", "60", "--no-color"),
            *("--exclude-path", "/api/pull"),  # it would ask the network
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS * 4,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]


RAW = {
    "nan": b'{"model":"m","temperature":NaN}',
    "infinity": b'{"model":"m","temperature":Infinity}',
    "minus-zero": b'{"model":"m","temperature":-0}',
    "beyond-a-double": b'{"model":"m","temperature":1e400}',
    "digits": b'{"model":"m","seed":' + b"9" * 10_000 + b"}",
    "surrogate": b'{"model":"m","prompt":"\\ud800"}',
    "nul": b'{"model":"m\\u0000"}',
    "twice": b'{"model":"m","model":"n"}',
    "bom": b'\xef\xbb\xbf{"model":"m"}',
    "utf-16": '{"model":"m"}'.encode("utf-16"),
    "deep-arrays": b"[" * 100_000 + b"]" * 100_000,
    "deep-objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "trailing": b'{"model":"m"} x',
    "empty": b"",
    "gzip": gzip.compress(b'{"model":"m"}'),
    "true-for-integers": json.dumps(GOOD | {"max_tokens": True, "seed": True, "dimensions": True}).encode(),
    "form": b"model=m&prompt=hi",
    "array": b"[]",
    "null": b"null",
    "bytes": bytes(range(256)),
}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", RAW.values(), ids=RAW)
def test_bodies_that_no_schema_can_say(api: httpx.Client, path: str, body: bytes) -> None:
    for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"content-type": kind} if kind else {}
        checked(api.post(path, content=body, headers=headers), path)


@pytest.mark.parametrize("path", POSTS)
def test_a_body_beyond_the_limit_is_413(api: httpx.Client, path: str) -> None:
    answer = api.post(path, content=b" " * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413
    checked(answer, path)


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_json_is_read_whatever_the_content_type(api: httpx.Client, path: str) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}  # what `curl -d` sends
    answer = api.post(path, content=json.dumps(GOOD), headers=headers)
    assert answer.status_code == 200, answer.text
    assert "Hello, world!" in answer.text


@pytest.mark.parametrize("path", POSTS)
def test_every_field_of_the_wrong_type_is_a_4xx(api: httpx.Client, path: str) -> None:
    values: tuple[Any, ...] = (5, True, "x", [], {}, [[]], [{}], None, -1, 1e300)
    for name in GOOD:
        for wrong in values:
            body = json.dumps(GOOD | {name: wrong})
            checked(api.post(path, content=body), path)


def test_the_daemon_is_alive_after_all_that(server: ScriptedDaemon, api: httpx.Client) -> None:
    assert api.get("/health/live").json() == {"status": "ok"}
    assert "Traceback" not in server.log_text()
