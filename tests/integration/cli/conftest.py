"""A home, a server with the API, and the command."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.api_server import ApiServer, Body, Reply, Route, chat_lines, serving
from tests.integration.cli.command import GUARD, MGR, Completed, Mgr

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """No setting of the machine, a home of its own, and a proxy that would fail every request."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MGR_", "OLLAMA_", "XDG_"))
    }
    dead = "http://127.0.0.1:1"
    return {
        **kept,
        "HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "MGR_MODELS": str(tmp_path / "models"),
        "HTTP_PROXY": dead,
        "http_proxy": dead,
        "ALL_PROXY": dead,
        "TERM": "xterm",
    }


@pytest.fixture
def api(environment: dict[str, str]) -> Iterator[ApiServer]:
    """A server with one model, "m", that says "Hi there"."""
    routes: dict[str, Route] = {
        "GET /api/version": Reply({"version": "0.12.0"}),
        "GET /api/tags": Reply(
            {"models": [{"name": "m:latest", "digest": "abcdef0123456789", "size": 2000}]}
        ),
        "GET /api/ps": Reply({"models": [{"name": "a"}, {"name": "b"}]}),
        "POST /api/show": _show,
        "POST /api/chat": Reply(lines=chat_lines("Hi", " there", "\n", eval_count=2, eval_duration=10**9)),
        "POST /api/generate": _generate,
        "POST /api/pull": Reply(
            lines=[
                {"status": "pulling manifest"},
                {"status": "pulling aabbcc", "digest": "sha256:aabbcc", "total": 100, "completed": 40},
                {"status": "pulling aabbcc", "digest": "sha256:aabbcc", "total": 100, "completed": 100},
                {"status": "success", "model": "stored:135m"},
            ]
        ),
        "DELETE /api/delete": _show,
    }
    with serving(routes) as server:
        environment["MGR_HOST"] = server.address
        yield server


def _show(body: Body) -> Reply:
    if body["model"] in ("m", "stored:135m"):
        return Reply({"modelfile": "FROM x\n", "details": {"family": "llama"}, "model_info": {}})
    return Reply({"error": f"model '{body['model']}' not found"}, 404)


def _generate(body: Body) -> Reply:
    return _show(body) if body["model"] == "unknown" else Reply({"done": True})


@pytest.fixture
def mgr(environment: dict[str, str], tmp_path: Path) -> Mgr:
    def run(*arguments: str, stdin: bytes = b"", **more: str) -> Completed:
        return subprocess.run(
            [*MGR, *arguments],
            input=stdin,
            capture_output=True,
            env={**environment, **more},
            cwd=tmp_path,
            timeout=GUARD,
            check=False,
        )

    return run
