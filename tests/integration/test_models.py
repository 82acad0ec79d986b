"""The models of a running daemon: pulled, listed, shown, deleted, and refused with one sentence."""

import json
import struct
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.daemon import ScriptedDaemon
from tests.fakes.gguf_files import NOT_MODELS, Raw, claims_huge_array, gguf
from tests.integration.conftest import MakeDaemon

BAD_FILES = {**NOT_MODELS, "huge array": (claims_huge_array(), "array")}


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "my model.gguf"
    path.write_bytes(gguf({"general.name": "Mine"}))
    return path


async def pull(daemon: ScriptedDaemon, source: str, **more: Any) -> list[dict[str, Any]]:
    async with daemon.client() as client:
        response = await client.post("/api/pull", json={"model": source, **more})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


async def names(daemon: ScriptedDaemon) -> set[str]:
    async with daemon.client() as client:
        return {model["name"] for model in (await client.get("/api/tags")).json()["models"]}


async def test_a_pulled_file_can_be_listed_shown_asked_and_deleted(
    make_daemon: MakeDaemon, model_file: Path
) -> None:
    daemon = make_daemon().start()
    progress = await pull(daemon, model_file.as_uri(), **{"as": "mine"})
    assert progress[0] == {"status": "pulling manifest"}
    assert progress[-1] == {"status": "success", "model": "mine:latest"}
    async with daemon.client() as client:
        [listed] = (await client.get("/api/tags")).json()["models"]
        shown = (await client.post("/api/show", json={"model": "MINE"})).json()
        [openai] = (await client.get("/v1/models")).json()["data"]
        one = (await client.get("/v1/models/mine")).json()
        answer = await client.post("/api/generate", json={"model": "mine", "prompt": "hi", "stream": False})
        deleted = await client.request("DELETE", "/api/delete", json={"model": "mine"})
        gone = await client.post("/api/show", json={"model": "mine"})
    assert listed["name"] == listed["model"] == "mine:latest"
    assert listed["size"] > model_file.stat().st_size
    assert len(listed["digest"]) == 64
    assert listed["details"]["format"] == "gguf"
    assert listed["details"]["family"] == "llama"
    assert listed["capabilities"] == ["completion"]
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["model_info"]["llama.context_length"] == 128
    assert shown["model_info"]["tokenizer.ggml.tokens"] is None
    assert shown["details"] == listed["details"]
    assert shown["modelfile"].splitlines()[-1] == "FROM mine:latest"
    assert str(daemon.folder) not in json.dumps(shown)
    assert openai["id"] == "mine:latest"
    assert (one["id"], one["object"]) == ("mine", "model")
    assert answer.json()["response"] == "Hello, world!"
    assert (deleted.status_code, deleted.content) == (200, b"")
    assert (gone.status_code, gone.json()["error"]) == (404, "model 'mine' not found")
    assert model_file.exists()


async def test_show_with_more_and_with_other_texts(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model(
        "m", **{"llama.list": [1, 2], "tokenizer.ggml.scores": Raw(9, struct.pack("<IQ2f", 6, 2, 0.5, inf))}
    )
    daemon.start()
    async with daemon.client() as client:
        plain = (await client.post("/api/show", json={"model": "m"})).json()
        verbose = (await client.post("/api/show", json={"name": "m", "verbose": True})).json()
        changed = await client.post(
            "/api/show",
            json={"model": "m", "system": "Be kind.", "options": {"top_k": 3, "stop": ["a", "b"]}},
        )
        copilot = await client.post(
            "/api/show", json={"model": "m"}, headers={"User-Agent": "GitHubCopilotChat/1"}
        )
    arrays = {
        "llama.list": [1, 2],
        "tokenizer.ggml.scores": [0.5, None],
        "tokenizer.ggml.tokens": ["a", "bc", ""],
    }
    assert {key: plain["model_info"][key] for key in arrays} == dict.fromkeys(arrays)
    assert verbose["model_info"] == {**plain["model_info"], **arrays}
    assert "system" not in plain
    assert changed.json()["system"] == "Be kind."
    assert changed.json()["parameters"].splitlines() == [
        f'{"stop":<30} "a"',
        f'{"stop":<30} "b"',
        f"{'top_k':<30} 3",
    ]
    assert "PARAMETER top_k 3\n" in changed.json()["modelfile"]
    assert copilot.json()["model_info"]["general.basename"] == "m"


async def test_models_as_openai_lists_them(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("m", "user/mine:1", "hf.co/them/theirs:q4")
    daemon.start()
    async with daemon.client() as client:
        listed = (await client.get("/v1/models")).json()
        [mine] = [entry for entry in listed["data"] if entry["id"] == "user/mine:1"]
        one = (await client.get("/v1/models/hf.co/them/theirs:q4")).json()
        missing = await client.get("/v1/models/user/absent")
        tags = (await client.get("/api/tags")).json()["models"]
    modified = {entry["name"]: datetime.fromisoformat(entry["modified_at"]) for entry in tags}
    assert listed["object"] == "list"
    assert mine == {
        "id": "user/mine:1",
        "object": "model",
        "created": int(modified["user/mine:1"].timestamp()),
        "owned_by": "user",
        "context_length": 8192,
    }
    assert (one["id"], one["owned_by"]) == ("hf.co/them/theirs:q4", "them")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "model 'user/absent' not found"


@pytest.mark.parametrize(("data", "words"), BAD_FILES.values(), ids=BAD_FILES)
async def test_a_file_that_is_no_model_is_refused_and_no_engine_started(
    make_daemon: MakeDaemon, tmp_path: Path, data: bytes, words: str
) -> None:
    """Must hold: a file that is not GGUF, an empty one, a truncated one, a git-lfs pointer are refused at pull with
    one clear sentence, and no engine is started."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    daemon = make_daemon().start()
    progress = await pull(daemon, path.as_uri())
    assert set(progress[-1]) == {"error"}
    assert words in progress[-1]["error"]
    assert "\n" not in progress[-1]["error"]
    assert await names(daemon) == set()
    assert [blob for blob in (daemon.models / "blobs").iterdir() if blob.is_file()] == []
    assert daemon.events("start") == []


async def test_a_failure_without_a_stream_has_its_own_status(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"hello")
    daemon = make_daemon().start()
    async with daemon.client() as client:
        reply = await client.post("/api/pull", json={"model": path.as_uri(), "stream": False})
        missing = await client.post("/api/pull", json={"model": "nobody-knows-it"})
        empty = await client.post("/api/pull", json={})
    assert reply.status_code == 422
    assert missing.status_code == 404
    assert "no known short name" in missing.json()["error"]
    assert (empty.status_code, empty.json()) == (400, {"error": "model is required"})


async def test_a_name_in_use_is_kept_unless_it_is_to_be_replaced(
    make_daemon: MakeDaemon, model_file: Path
) -> None:
    daemon = make_daemon()
    daemon.model("mine")
    daemon.start()
    refused = await pull(daemon, model_file.as_uri(), **{"as": "mine"})
    assert "exists with other content" in refused[-1]["error"]
    replaced = await pull(daemon, model_file.as_uri(), **{"as": "mine", "replace": True})
    assert replaced[-1]["status"] == "success"


@pytest.mark.parametrize("header", ["Origin", "X-Forwarded-For", "Forwarded"])
async def test_files_of_the_server_are_only_for_programs_on_it(
    make_daemon: MakeDaemon, model_file: Path, header: str
) -> None:
    """Not for a page, even one that may call, nor for whoever is behind a proxy; and the sentence does not tell
    whether the file is there."""
    daemon = make_daemon(ORIGINS="https://friend.example").start()
    told = set()
    async with daemon.client() as client:
        for path in (model_file, model_file.with_name("absent.gguf")):
            reply = await client.post(
                "/api/pull", json={"model": path.as_uri()}, headers={header: "https://friend.example"}
            )
            assert reply.status_code == 403
            told.add(reply.json()["error"])
    assert len(told) == 1
    assert await names(daemon) == set()


async def test_a_model_that_vanished_from_the_disk_is_an_error_and_not_the_end(
    make_daemon: MakeDaemon,
) -> None:
    daemon = make_daemon()
    daemon.model("a", "b")
    daemon.start()
    async with daemon.client() as client:
        manifests = daemon.models / "manifests/registry.ollama.ai/library"
        (manifests / "a/latest").write_text("{broken")
        assert await names(daemon) == {"b:latest"}
        broken = await client.post("/api/chat", json={"model": "a", "messages": []})
        assert broken.status_code in {422, 507}
        assert str(daemon.folder) not in broken.text
        assert (await client.post("/api/generate", json={"model": "b"})).status_code == 200
