"""Models that are made by a running daemon: from models, from uploaded files, with texts over them; and copied."""

import asyncio
import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from tests.fakes.daemon import ScriptedDaemon
from tests.fakes.gguf_files import TensorInfo, gguf
from tests.integration.conftest import MakeDaemon

JINJA = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools }}{% endif %}"
GO = "{{ .System }} {{ .Prompt }}"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def post(daemon: ScriptedDaemon, path: str, body: Any) -> httpx.Response:
    async with daemon.client() as client:
        if isinstance(body, bytes):
            return await client.post(path, content=body)
        return await client.post(path, json=body)


async def upload(daemon: ScriptedDaemon, data: bytes) -> str:
    reply = await post(daemon, f"/api/blobs/{digest_of(data)}", data)
    assert reply.status_code in {200, 201}, reply.text
    return digest_of(data)


async def show(daemon: ScriptedDaemon, model: str, **more: Any) -> dict[str, Any]:
    reply = await post(daemon, "/api/show", {"model": model, **more})
    assert reply.status_code == 200, reply.text
    shown = reply.json()
    assert isinstance(shown, dict)
    return shown


async def create(daemon: ScriptedDaemon, **body: Any) -> list[str]:
    """The statuses of a creation that succeeds."""
    reply = await post(daemon, "/api/create", body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert lines[-1] == {"status": "success"}
    return [line["status"] for line in lines]


async def refused(daemon: ScriptedDaemon, body: dict[str, Any], status: int = 400) -> str:
    """The sentence of a creation that fails; nothing is written then."""
    before = contents(daemon)
    reply = await post(daemon, "/api/create", body)
    assert (reply.status_code, set(reply.json())) == (status, {"error"}), reply.text
    assert contents(daemon) == before
    assert str(daemon.folder) not in reply.text
    return str(reply.json()["error"])


def contents(daemon: ScriptedDaemon) -> set[Path]:
    return {path for name in ("blobs", "manifests") for path in (daemon.models / name).rglob("*")}


# ---- with the official client


async def test_the_official_client_uploads_creates_copies_and_shows(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    daemon = make_daemon().start()
    path = tmp_path / "mine.gguf"
    path.write_bytes(gguf({"general.name": "Mine"}))
    async with ollama.AsyncClient(host=daemon.url) as client:
        digest = await client.create_blob(path)
        assert digest == digest_of(path.read_bytes())
        made = await client.create(
            model="made",
            files={"mine.gguf": digest},
            system="Be brief.",
            license=["MIT", "Apache"],
            parameters=ollama.Options(temperature=0.5, stop=["END"], mirostat=0),
            messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
        )
        assert made.status == "success"
        statuses = [
            part.status
            async for part in await client.create(model="child", from_="made", system="X", stream=True)
        ]
        assert statuses[-2:] == ["writing manifest", "success"]
        assert (await client.copy("child", "a/copy:1")).status == "success"
        shown = await client.show("a/copy:1")
        assert (shown.parameters or "").split("\n") == [
            f'{"stop":<30} "END"',
            f"{'temperature':<30} 0.5",
        ]
        assert shown.license == "MIT\nApache"
        assert shown.details is not None
        assert shown.details.parent_model == "made:latest"
        assert "SYSTEM X" in (shown.modelfile or "")
        assert {model.model for model in (await client.list()).models} == {
            "made:latest",
            "child:latest",
            "a/copy:1",
        }
        await client.chat("child", messages=[{"role": "user", "content": "again"}])
        sent = daemon.events("request", "child")[-1]["body"]["messages"]
        assert [(message["role"], message["content"]) for message in sent] == [
            ("system", "X"),
            ("user", "hi"),
            ("assistant", "hello"),
            ("user", "again"),
        ]


# ---- blobs


async def test_an_upload(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    data = b"x" * 3_000_000
    name = digest_of(data)
    async with daemon.client() as client:
        assert (await client.head(f"/api/blobs/{name}")).status_code == 404
        assert (await client.post(f"/api/blobs/{name}", content=data)).status_code == 201
        assert (await client.head(f"/api/blobs/{name}")).status_code == 200
        assert (await client.head(f"/api/blobs/{name.replace(':', '-')}")).status_code == 200
        assert (await client.post(f"/api/blobs/{name}", content=data)).status_code == 200
        for wrong in ("sha256:1", "md5:" + "0" * 32, name.upper(), name + "0"):
            reply = await client.post(f"/api/blobs/{wrong}", content=data)
            assert reply.status_code == 400
            assert "invalid digest format" in reply.json()["error"]
            assert (await client.head(f"/api/blobs/{wrong}")).status_code == 400
        assert (await client.get(f"/api/blobs/{name}")).status_code == 405
    blob = daemon.models / "blobs" / name.replace(":", "-")
    assert blob.read_bytes() == data
    assert list(blob.parent.iterdir()) == [blob]


@pytest.mark.parametrize("chunked", [False, True])
async def test_of_bytes_with_another_digest_nothing_is_kept(make_daemon: MakeDaemon, chunked: bool) -> None:
    daemon = make_daemon().start()
    asked = digest_of(b"right")

    async def pieces() -> Any:
        yield b"wr"
        yield b"ong"

    async with daemon.client() as client:
        reply = await client.post(f"/api/blobs/{asked}", content=pieces() if chunked else b"wrong")
    assert reply.status_code == 400
    assert reply.json() == {"error": f'digest mismatch, expected "{asked}" got "{digest_of(b"wrong")}"'}
    assert list((daemon.models / "blobs").iterdir()) == []


async def test_the_disk_alone_limits_an_upload(make_daemon: MakeDaemon) -> None:
    """What announces itself as larger than the disk is refused before its first byte."""
    daemon = make_daemon().start()
    url = httpx.URL(daemon.url)
    assert url.port is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        f"POST /api/blobs/{digest_of(b'')} HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: {2**60}\r\n\r\n".encode()
    )
    answer = b""
    while b"}" not in answer:
        answer += await reader.read(1000)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 507 ")
    assert b"not enough space in the model store" in answer
    assert list((daemon.models / "blobs").iterdir()) == []


# ---- create


async def test_texts_are_laid_over_those_of_the_base(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("base")
    daemon.start()
    await create(
        daemon,
        model="one",
        template=JINJA,
        system="S1",
        license="L1",
        parameters={"temperature": 0.1, "top_k": 5},
        messages=[{"role": "user", "content": "m1"}],
        **{"from": "base"},
    )
    await create(daemon, model="two", license="L2", parameters={"top_k": 7, "stop": "x"}, **{"from": "one"})
    two = await show(daemon, "two")
    assert (two["system"], two["template"], two["license"]) == ("S1", JINJA, "L1\nL2")
    assert two["messages"] == [{"role": "user", "content": "m1"}]
    assert [line.split() for line in two["parameters"].splitlines()] == [
        ["stop", '"x"'],
        ["temperature", "0.1"],
        ["top_k", "7"],
    ]
    assert two["details"]["parent_model"] == "one:latest"
    await create(
        daemon, model="two", system="S2", messages=[{"role": "user", "content": "m2"}], **{"from": "two"}
    )
    again = await show(daemon, "two")
    assert (again["system"], again["license"]) == ("S2", "L1\nL2")
    assert again["messages"] == [{"role": "user", "content": "m2"}]


async def test_what_a_replaced_model_had_alone_is_deleted(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("base")
    daemon.start()
    await create(daemon, model="one", system="old text", **{"from": "base"})
    old = daemon.models / "blobs" / digest_of(b"old text").replace(":", "-")
    assert old.exists()
    statuses = await create(daemon, model="one", system="new text", **{"from": "base"})
    assert f"creating new layer {digest_of(b'new text')}" in statuses
    assert not old.exists()
    assert (await show(daemon, "one"))["system"] == "new text"


async def test_a_template_in_jinja_decides_what_the_model_can_do(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("base")
    daemon.start()
    assert (await show(daemon, "base"))["capabilities"] == ["completion"]
    await create(daemon, model="one", template=JINJA, **{"from": "base"})
    assert (await show(daemon, "one"))["capabilities"] == ["completion", "tools"]


async def test_a_template_in_go_is_kept_and_said_not_to_be_used(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("bare")
    daemon.model("templated", **{"tokenizer.chat_template": JINJA})
    daemon.start()
    statuses = await create(daemon, model="one", template=GO, **{"from": "templated"})
    assert statuses[0].startswith("warning: the template is in Go's language")
    one = await show(daemon, "one")
    assert one["template"] == GO
    assert one["capabilities"] == ["completion", "tools"]
    assert "Go's template language" in await refused(daemon, {"model": "two", "template": GO, "from": "bare"})


async def test_projectors_and_adapters_are_told_by_their_headers(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    projector = gguf({"general.architecture": "clip", "general.type": "mmproj"})
    adapter = gguf({"general.type": "adapter"}, [TensorInfo("blk.0.lora_a")])
    files = {"model.gguf": await upload(daemon, gguf()), "mmproj.gguf": await upload(daemon, projector)}
    lora = await upload(daemon, adapter)
    await create(daemon, model="seeing", files=files, adapters={"lora.gguf": lora})
    seeing = await show(daemon, "seeing")
    assert seeing["capabilities"] == ["completion", "vision"]
    assert seeing["projector_info"]["general.architecture"] == "clip"
    manifest = json.loads((daemon.models / "manifests/registry.ollama.ai/library/seeing/latest").read_text())
    assert [layer["mediaType"].rpartition(".")[2] for layer in manifest["layers"]] == [
        "model",
        "projector",
        "adapter",
    ]
    wrong = await refused(daemon, {"model": "x", "files": files, "adapters": {"a": files["model.gguf"]}})
    assert wrong == "adapters['a'] is no adapter: its header says model"


async def test_what_is_refused(daemon: ScriptedDaemon) -> None:
    files = {
        name: await upload(daemon, data)
        for name, data in {
            "part": gguf({"split.count": 3}),
            "imatrix": gguf({"general.type": "imatrix"}),
            "hostile": gguf({"llama.context_length": 0}),
            "page": b"<html></html>",
        }.items()
    }
    for status, body, words in (
        (400, {"from": "a"}, "model is required"),
        (400, {"model": "x"}, "neither 'from' or 'files' was specified"),
        (404, {"model": "x", "from": "absent"}, "model 'absent' not found; pull it first"),
        (400, {"model": "x", "from": "/etc/passwd"}, "invalid model name '/etc/passwd'"),
        (501, {"model": "x", "from": "gpt-oss:120b-cloud"}, "run on another server"),
        (400, {"model": "x", "files": {"a": digest_of(b"no")}}, "upload it first"),
        (400, {"model": "x", "from": "a", "parameters": {"top_p": "x"}}, "parameter top_p must be"),
        (400, {"model": "x", "files": {"m": files["part"]}}, "one of 3 parts of a model"),
        (400, {"model": "x", "files": {"m": files["imatrix"]}}, "neither model, adapter nor projector"),
        (400, {"model": "x", "files": {"m": files["hostile"]}}, "llama.context_length"),
        (
            400,
            {"model": "x", "files": {"m": files["page"]}},
            "files['m'] cannot be used: the file is a web page",
        ),
    ):
        assert words in await refused(daemon, body, status)


async def test_two_models_are_not_one(daemon: ScriptedDaemon) -> None:
    other = await upload(daemon, gguf({"general.name": "Other"}))
    error = await refused(daemon, {"model": "x", "files": {"m.gguf": other}, "from": "a"})
    assert error == "a model needs exactly one model file, and this would have 2"


# ---- quantize


def quantizer(daemon: ScriptedDaemon, script: str) -> None:
    """A program beside the engine that is called like llama-quantize: SOURCE TARGET TYPE THREADS."""
    tool = daemon.folder / "llama-quantize"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


async def test_quantize_runs_the_program_beside_the_engine(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    daemon.model("big")
    small = tmp_path / "small.gguf"
    small.write_bytes(gguf({"general.file_type": 7}))
    quantizer(daemon, f'echo "$3" > {tmp_path}/asked; cp {small} "$2"')
    daemon.start()
    statuses = await create(daemon, model="small", quantize="q8_0", **{"from": "big"})
    assert statuses[0] == "quantizing F32 model to Q8_0"
    assert (tmp_path / "asked").read_text() == "Q8_0\n"
    assert (await show(daemon, "small"))["details"]["quantization_level"] == "Q8_0"
    assert (await show(daemon, "big"))["details"]["quantization_level"] == "F32"
    assert list((daemon.models / "mgr/scratch").iterdir()) == []
    again = await refused(daemon, {"model": "smaller", "quantize": "Q4_K_M", "from": "small"})
    assert again == "quantize is only supported for F16, BF16 and F32 models, and this one is Q8_0"


async def test_an_upload_that_was_quantized_does_not_stay(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    small = tmp_path / "small.gguf"
    small.write_bytes(gguf({"general.file_type": 7}))
    quantizer(daemon, f'cp {small} "$2"')
    daemon.start()
    big = await upload(daemon, gguf())
    await create(daemon, model="small", quantize="Q8_0", files={"big.gguf": big})
    blobs = {path.name for path in (daemon.models / "blobs").iterdir()}
    assert digest_of(small.read_bytes()).replace(":", "-") in blobs
    assert big.replace(":", "-") not in blobs


async def test_quantize_that_cannot_be(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("big")
    daemon.start()
    body = {"model": "small", "quantize": "Q8_0", "from": "big"}
    assert "`mgr engine build`" in await refused(daemon, body)
    quantizer(daemon, 'echo "cannot read $1"; exit 3')
    before = contents(daemon)
    reply = await post(daemon, "/api/create", body)
    error = json.loads(reply.text.splitlines()[-1])["error"]
    assert error.startswith("llama-quantize ended with status 3")
    assert str(daemon.folder) not in error
    assert contents(daemon) == before


# ---- copy


async def test_a_copy_has_the_same_manifest(daemon: ScriptedDaemon) -> None:
    async with daemon.client() as client:
        reply = await client.post("/api/copy", json={"source": "a", "destination": "x/y:z"})
        assert (reply.status_code, reply.content) == (200, b"")
        again = await client.post("/api/copy", json={"source": "A", "destination": "a"})
        assert again.status_code == 200
        models = {model["name"]: model for model in (await client.get("/api/tags")).json()["models"]}
        missing = await client.post("/api/copy", json={"source": "absent", "destination": "x"})
        bad = await client.post("/api/copy", json={"source": "a", "destination": "../x"})
        deleted = await client.request("DELETE", "/api/delete", json={"model": "a"})
        answer = await client.post("/api/generate", json={"model": "x/y:z", "prompt": "hi", "stream": False})
    assert models["x/y:z"]["digest"] == models["a:latest"]["digest"]
    assert (missing.status_code, missing.json()["error"]) == (404, "model 'absent' not found")
    assert (bad.status_code, bad.json()["error"]) == (400, "invalid model name '../x'")
    assert deleted.status_code == 200
    assert answer.json()["response"] == "Hello, world!"


# ---- what needs somebody else's server


async def test_what_needs_another_server_is_not_built(daemon: ScriptedDaemon) -> None:
    async with daemon.client() as client:
        for method, path in (
            ("POST", "/api/me"),
            ("POST", "/api/signout"),
            ("DELETE", "/api/user/keys/abc"),
            ("POST", "/api/experimental/web_search"),
            ("GET", "/api/experimental/model-recommendations"),
            ("POST", "/api/push"),
        ):
            reply = await client.request(method, path, json={"model": "a"})
            assert (reply.status_code, set(reply.json())) == (501, {"error"}), path
        status = (await client.get("/api/status")).json()
    assert status == {"cloud": {"disabled": True, "source": "none"}}
