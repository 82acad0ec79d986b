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

from daemon.app import ROUTERS
from tests.fakes.daemon import GUARD_SECONDS, ScriptedDaemon

# What each of them is allowed to answer with beyond 500; a plain 500 never is.
_DECLARED_5XX = {502, 503, 507}
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
    daemon = ScriptedDaemon(tmp_path_factory.mktemp("openapi"))
    daemon.model("m")
    daemon.start()
    yield daemon
    assert daemon.stop() == 0


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


def test_the_document_is_served_and_tells_of_every_route(server: ScriptedDaemon) -> None:

    document = httpx.get(f"{server.url}/openapi.json", trust_env=False).json()
    described = {
        (method.upper(), path) for path, operations in document["paths"].items() for method in operations
    }
    services: Any = type("Services", (), {"identity": {"version": "1"}})()
    served = set()
    for router in ROUTERS:
        for route in router(services).routes:
            path = re.sub(r":path}", "}", route.path)
            methods = route.methods - ({"HEAD"} if "GET" in route.methods else set())
            served |= {(method, path) for method in methods}
    assert described == served - {("GET", "/openapi.json")}


@pytest.mark.timeout(GUARD_SECONDS * 4)
def test_schemathesis_finds_nothing(server: ScriptedDaemon, tmp_path: Path) -> None:
    found = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
            *("--checks", _CHECKS, "--phases", "examples,coverage,fuzzing"),
            *("--max-examples", "25", "--seed", "1", "--generation-allow-x00", "true"),
            *("--exclude-path", "/api/pull", "--request-timeout", "60", "--no-color"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS * 4,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
    assert "No issues found" in found.stdout


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
def test_bodies_that_no_schema_can_say(server: ScriptedDaemon, path: str, body: bytes) -> None:
    for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"content-type": kind} if kind else {}
        checked(httpx.post(server.url + path, content=body, headers=headers, trust_env=False), path)


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_json_is_read_whatever_the_content_type(server: ScriptedDaemon, path: str) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}  # what `curl -d` sends
    answer = httpx.post(server.url + path, content=json.dumps(GOOD), headers=headers, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert "Hello, world!" in answer.text


@pytest.mark.parametrize("path", POSTS)
def test_every_field_of_the_wrong_type_is_a_4xx(server: ScriptedDaemon, path: str) -> None:
    for name in GOOD:
        for wrong in (5, True, "x", [], {}, [[]], [{}], None, -1, 1e300):
            body = json.dumps(GOOD | {name: wrong})
            checked(httpx.post(server.url + path, content=body, trust_env=False, timeout=60), path)


def test_the_daemon_is_alive_after_all_that(server: ScriptedDaemon) -> None:
    assert httpx.get(f"{server.url}/health/live", trust_env=False).json() == {"status": "ok"}
    assert "Traceback" not in server.log_text()
