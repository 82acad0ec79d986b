"""Manifests: strict reading, durable writing, names without regard to case."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from daemon.errors import StorageFailed
from daemon.names import ModelName
from daemon.store.blobs import Digest
from daemon.store.manifests import CONFIG_TYPE, LAYER_TYPE, BadManifest, Layer, Manifests, decode, encode

A, B = Digest.of(b"a"), Digest.of(b"b")
CONFIG, MODEL = Layer("config", A, 2), Layer("model", B, 7)
GOOD = encode(CONFIG, (MODEL,))


@pytest.fixture
def manifests(tmp_path: Path) -> Manifests:
    (tmp_path / "manifests").mkdir()
    return Manifests(tmp_path)


def test_the_bytes_of_a_manifest() -> None:
    assert json.loads(GOOD) == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "digest": str(A),
            "size": 2,
        },
        "layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": str(B), "size": 7}],
    }
    assert GOOD.endswith(b"}\n")
    assert decode(GOOD) == (Layer(CONFIG_TYPE, A, 2), (MODEL,))


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(GOOD) | changes).encode()


LAYER = {"mediaType": LAYER_TYPE + "model", "digest": str(B), "size": 7}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (GOOD[:-20], "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "not an image manifest"),
        (b"[" * 100_000, "nested too deeply"),
        (GOOD.replace(b'"size":7', b'"size":7,"size":8'), "key twice"),
        (changed(manifests=[]), "not an image manifest"),
        (changed(layers=None), "1 to 64 layers"),
        (changed(layers=[]), "1 to 64 layers"),
        (changed(layers=[LAYER] * 65), "1 to 64 layers"),
        (changed(layers=[None]), "not an object"),
        (changed(config=None), "not an object"),
        (changed(layers=[LAYER | {"size": "7"}]), "no valid size"),
        (changed(layers=[LAYER | {"size": True}]), "no valid size"),
        (changed(layers=[LAYER | {"size": -1}]), "no valid size"),
        (changed(layers=[LAYER | {"mediaType": 1}]), "no media type"),
        (changed(layers=[LAYER | {"digest": None}]), "no digest"),
        (changed(layers=[LAYER | {"digest": "sha256:../x"}]), "not a sha256"),
    ],
)
def test_a_broken_manifest_is_refused(manifests: Manifests, data: bytes, reason: str) -> None:
    name = ModelName.parse("broken:1")
    manifests.write(name, data)
    with pytest.raises(BadManifest, match="'broken:1' cannot be used") as caught:
        manifests.read(name)
    assert reason in caught.value.message


def test_the_file_of_a_name(manifests: Manifests, tmp_path: Path) -> None:
    manifests.write(ModelName.parse("hf.co/user/Repo:Q4"), GOOD)
    path = tmp_path / "manifests" / "hf.co" / "user" / "Repo" / "Q4"
    assert path.read_bytes() == GOOD
    assert os.listdir(path.parent) == ["Q4"]
    manifest = manifests.read(ModelName.parse("hf.co/user/Repo:Q4"))
    assert (manifest.digest, manifest.size) == (Digest.of(GOOD), 9)
    assert manifest.blobs == {A, B}
    assert manifest.modified_at.timestamp() == pytest.approx(path.stat().st_mtime, abs=1e-5)


def test_names_are_found_without_regard_to_case(manifests: Manifests) -> None:
    stored = ModelName.parse("Llama:Q4")
    manifests.write(stored, GOOD)
    assert manifests.find(ModelName.parse("llama:q4")) == stored
    assert manifests.find(ModelName.parse("llama:q5")) is None


def test_a_broken_manifest_does_not_hide_the_others(
    manifests: Manifests, caplog: pytest.LogCaptureFixture
) -> None:
    manifests.write(ModelName.parse("good"), GOOD)
    manifests.write(ModelName.parse("bad"), b"{")
    with caplog.at_level(logging.WARNING):
        assert [str(m.name) for m in manifests.readable()] == ["good:latest"]
        assert [str(m.name) for m in manifests.readable()] == ["good:latest"]
    assert [record.getMessage() for record in caplog.records] == [
        "left out model 'bad:latest': the manifest of 'bad:latest' cannot be used: it is not JSON"
    ]


def test_what_is_no_manifest_is_passed_over(manifests: Manifests, tmp_path: Path) -> None:
    manifests.write(ModelName.parse("good"), GOOD)
    folder = tmp_path / "manifests"
    (folder / "stray").write_text("x")
    (folder / "registry.ollama.ai" / "library" / "good" / ".hidden").write_text("x")
    (folder / "registry.ollama.ai" / "library" / "good" / "link").symlink_to("latest")
    (folder / "linked.host").symlink_to(folder / "registry.ollama.ai")
    assert [str(name) for name in manifests.names()] == ["good:latest"]


def test_links_are_not_followed(manifests: Manifests, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "manifests" / "evil").symlink_to(outside)
    name = ModelName.parse("evil/library/x:1")
    with pytest.raises(StorageFailed, match="through a link"):
        manifests.write(name, GOOD)
    with pytest.raises(StorageFailed, match="through a link"):
        manifests.find(name)
    assert list(outside.iterdir()) == []


def test_deleting_removes_empty_folders_only(manifests: Manifests, tmp_path: Path) -> None:
    one, two = ModelName.parse("m:1"), ModelName.parse("n:1")
    manifests.write(one, GOOD)
    manifests.write(two, GOOD)
    manifests.delete(one)
    assert sorted(os.listdir(tmp_path / "manifests" / "registry.ollama.ai" / "library")) == ["n"]
    manifests.delete(two)
    assert os.listdir(tmp_path / "manifests") == []


def test_a_failed_write_keeps_the_old_manifest(manifests: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    name = ModelName.parse("m")
    manifests.write(name, GOOD)

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(
            StorageFailed, match="cannot write the manifest of 'm:latest': Input/output error"
        ):
            manifests.write(name, b"{}")
    assert manifests.read(name).digest == Digest.of(GOOD)
    assert os.listdir(manifests.path(name).parent) == ["latest"]
