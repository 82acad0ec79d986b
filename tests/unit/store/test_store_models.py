"""The store: what is listed, how names resolve, what may be overwritten and deleted."""

import errno
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from daemon.errors import BadModel, Conflict, Forbidden, Misconfigured, ModelNotFound, StorageFailed
from daemon.names import BadName, ModelName
from daemon.store import summaries
from daemon.store.blobs import Digest
from daemon.store.gguf import read_summary
from daemon.store.ledger import Ledger
from daemon.store.manifests import LAYER_TYPE, Layer
from daemon.store.models import RESOLVED_SECONDS, AmbiguousTag, Model, Store, StoreLocked, human_number
from daemon.store.summary import Summary
from tests.fakes.gguf_files import Meta, gguf


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with closing(Store(root).open(lock=True)) as opened:
        yield opened


def put(store: Store, name: str, metadata: dict[str, Meta] | None = None, *, replace: bool = False) -> Model:
    digest = store.blobs.put(gguf(metadata))
    return store.add(ModelName.parse(name), digest, store.summary(digest), replace=replace)


def foreign_library(root: Path, name: str = "theirs", layers: dict[str, bytes] | None = None) -> bytes:
    """A library as another program writes it; returns the manifest."""
    contents = {"model": gguf(), **(layers or {})}
    config = json.dumps(
        {"model_format": "gguf", "model_family": "llama", "capabilities": ["tools", 7]}
    ).encode()
    (root / "blobs").mkdir(parents=True, exist_ok=True)

    def entry(media_type: str, data: bytes) -> dict[str, Any]:
        (root / "blobs" / f"sha256-{Digest.of(data).hex}").write_bytes(data)
        return {"mediaType": media_type, "digest": str(Digest.of(data)), "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "config": entry("application/vnd.docker.container.image.v1+json", config),
        "layers": [entry(LAYER_TYPE + kind.partition("#")[0], data) for kind, data in contents.items()],
    }
    path = root / "manifests" / ModelName.parse(name).path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(manifest).encode())
    return path.read_bytes()


def blob_names(root: Path) -> set[str]:
    return set(os.listdir(root / "blobs"))


# ---- what a model says


def test_a_model_of_ones_own(store: Store, root: Path) -> None:
    model = put(store, "tiny:1")
    manifest = (root / "manifests/registry.ollama.ai/library/tiny/1").read_bytes()
    assert str(model.name) == "tiny:1"
    assert model.digest == Digest.of(manifest).hex
    assert model.model_digest == Digest.of(gguf())
    assert model.path == root / "blobs" / f"sha256-{model.model_digest.hex}"
    assert model.path.read_bytes() == gguf()
    assert model.summary == store.summary(model.model_digest)
    assert model.config == {
        "model_format": "gguf",
        "model_family": "llama",
        "model_families": ["llama"],
        "model_type": "64",
        "file_type": "F32",
        "context_length": 128,
        "embedding_length": 32,
        "architecture": "amd64",
        "os": "linux",
    }
    config = json.dumps(model.config, separators=(",", ":"))
    assert model.size == len(gguf()) + len(config)
    assert abs((datetime.now(UTC) - model.modified_at).total_seconds()) < 60
    assert (model.system, model.template, model.params, model.messages) == (None, None, {}, ())
    assert (model.licenses, model.projectors, model.capabilities) == ((), (), ("completion",))
    assert store.list() == [model]


def test_a_model_of_another_program(root: Path) -> None:
    foreign_library(
        root,
        layers={
            "system": b"Be brief.",
            "template": b"{{ .Prompt }}",
            "params": b'{"temperature": 0.5, "stop": ["a", "b"]}',
            "messages": b'[{"role": "user", "content": "hi"}]',
            "license": b"MIT",
            "license#2": b"Apache",
            "projector": gguf({"clip.has_audio_encoder": True}),
        },
    )
    store = Store(root).open()
    model = store.resolve("theirs")
    assert (model.system, model.template) == ("Be brief.", "{{ .Prompt }}")
    assert model.params == {"temperature": 0.5, "stop": ["a", "b"]}
    assert model.messages == ({"role": "user", "content": "hi"},)
    assert model.licenses == ("MIT", "Apache")
    assert [path.name[:7] for path in model.projectors] == ["sha256-"]
    assert model.capabilities == ("tools", "completion", "vision", "audio")


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ({"params": b"[]"}, "not a JSON object"),
        ({"params": b"{"}, "not JSON"),
        ({"messages": b'["x"]'}, "not a list of objects"),
        ({"model": b"<html></html>"}, "a web page"),
    ],
)
def test_a_model_with_a_broken_layer(root: Path, layers: dict[str, bytes], words: str) -> None:
    foreign_library(root, layers=layers)
    store = Store(root).open()
    with pytest.raises(BadModel, match=words):
        store.resolve("theirs")
    assert store.list() == []


def test_numbers_of_parameters_as_they_are_written() -> None:
    assert [human_number(n) for n in (999, 1_500, 134_515_008, 7 * 10**9, 8_030_261_248)] == [
        "999",
        "2K",
        "134.52M",
        "7B",
        "8.0B",
    ]


# ---- list and resolve


def test_the_newest_is_listed_first(store: Store, root: Path) -> None:
    for age, name in ((30, "old"), (10, "new"), (20, "middle")):
        put(store, name)
        os.utime(root / "manifests/registry.ollama.ai/library" / name / "latest", (10**9 - age, 10**9 - age))
    assert [model.name.model for model in store.list()] == ["new", "middle", "old"]


def test_a_broken_model_is_left_out_and_named(
    store: Store, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, "good")
    broken = put(store, "broken", {"general.name": "Other"})
    broken.path.unlink()
    with caplog.at_level(logging.WARNING):
        assert [str(model.name) for model in store.list()] == ["good:latest"]
    assert "left out model 'broken:latest'" in caplog.text
    with pytest.raises(BadModel, match="its model file is missing or incomplete; pull it again"):
        store.resolve("broken")


def test_a_truncated_blob_is_not_used(store: Store) -> None:
    model = put(store, "m")
    model.path.chmod(0o600)
    os.truncate(model.path, 10)
    with pytest.raises(BadModel, match="missing or incomplete"):
        store.resolve("m")


def test_how_a_name_resolves(store: Store) -> None:
    put(store, "One:a")
    assert str(store.resolve("one").name) == "One:a"
    assert str(store.resolve("ONE:A").name) == "One:a"
    assert str(store.resolve("registry.ollama.ai/library/one:a").name) == "One:a"
    put(store, "one:b")
    with pytest.raises(AmbiguousTag) as caught:
        store.resolve("one")
    assert caught.value.message == "model 'one' not found without a tag: it has a, b; name one"
    put(store, "one:latest")
    assert str(store.resolve("one").name) == "one:latest"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("absent", ""),
        ("smolm2", "; did you mean 'smollm2:1'?"),
        ("Smollm2:absent", "; did you mean 'smollm2:1'?"),
        ("other/smollm2", ""),
        ("hf.co/library/smollm2", ""),
    ],
)
def test_an_unknown_name(store: Store, text: str, hint: str) -> None:
    put(store, "smollm2:1")
    with pytest.raises(ModelNotFound) as caught:
        store.resolve(text)
    assert caught.value.message == f"model '{text}' not found{hint}"


def test_the_tag_that_clients_add_means_the_only_one(store: Store) -> None:
    put(store, "one:a")
    assert str(store.resolve("one:latest").name) == "one:a"


@pytest.mark.parametrize("text", ["", "../x", "a/../b", "m@sha256:00", "m:\n"])
def test_what_is_no_name(store: Store, text: str) -> None:
    with pytest.raises(BadName):
        store.resolve(text)


def test_a_changed_manifest_is_read_again(store: Store) -> None:
    before = put(store, "m")
    after = put(store, "m", {"general.name": "New"}, replace=True)
    assert (before.summary.name, after.summary.name) == ("Tiny", "New")
    assert store.resolve("m") == after


# ---- add


def test_what_was_just_resolved_is_known_without_the_disk_until_something_changes(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "a")
    assert store.just_resolved("a") is None
    model = store.resolve("a")
    (root / "manifests").rename(root / "elsewhere")
    assert store.just_resolved("a") is model
    (root / "elsewhere").rename(root / "manifests")

    later = time.monotonic() + RESOLVED_SECONDS
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: later)
        assert store.just_resolved("a") is None

    for change in (
        lambda: put(store, "a", {"general.name": "other"}, replace=True),
        lambda: store.copy("a", ModelName.parse("b")),
        lambda: store.remove("b"),
    ):
        store.resolve("a")
        change()
        assert store.just_resolved("a") is None


def test_another_model_is_not_overwritten_unasked(store: Store, root: Path) -> None:
    old = put(store, "m")
    with pytest.raises(
        Conflict, match="'m:latest' exists with other content; replace it, or use another name"
    ):
        put(store, "M", {"general.name": "New"})
    assert store.resolve("m") == old
    new = put(store, "M", {"general.name": "New"}, replace=True)
    assert str(new.name) == "m:latest"
    assert not old.path.exists()
    assert [str(model.name) for model in store.list()] == ["m:latest"]


def test_the_same_model_again_changes_nothing(store: Store) -> None:
    assert put(store, "m") == put(store, "M")


def test_a_model_whose_file_has_gone_is_not_added(store: Store) -> None:
    digest = store.blobs.put(gguf())
    summary = store.summary(digest)
    store.discard(digest)
    with pytest.raises(StorageFailed, match="removed meanwhile"):
        store.add(ModelName.parse("m"), digest, summary)
    assert store.list() == []


def test_a_hostile_number_is_refused(store: Store) -> None:
    with pytest.raises(BadModel, match=r"llama\.context_length"):
        put(store, "m", {"llama.context_length": 0})
    assert store.list() == []


# ---- define and copy


def with_layers(store: Store, name: str, **texts: bytes) -> Model:
    """A model of the tiny file and these layers, put over what the name meant before."""
    model = store.blobs.put(gguf())
    layers = [Layer(kind, store.blobs.put(data), len(data)) for kind, data in texts.items()]
    whole = [Layer("model", model, len(gguf())), *layers]
    return store.define(ModelName.parse(name), whole, {"model_format": "gguf"})


def test_a_name_is_made_to_mean_other_layers(store: Store) -> None:
    old = with_layers(store, "m", system=b"old")
    new = with_layers(store, "M", system=b"new")
    assert (str(new.name), new.system, new.config) == ("m:latest", "new", {"model_format": "gguf"})
    assert store.list() == [new]
    assert not store.blobs.has(Digest.of(b"old"))
    assert old.path.exists()


def test_a_copy(store: Store, root: Path) -> None:
    source = put(store, "m")
    replaced = put(store, "n", {"general.name": "Other"})
    for name in ("a/copy:1", "n", "M"):
        assert store.copy("m", ModelName.parse(name)).digest == source.digest
    assert not replaced.path.exists()
    assert {str(model.name) for model in store.list()} == {"m:latest", "n:latest", "a/copy:1"}
    store.remove("m")
    store.remove("n")
    assert store.resolve("a/copy:1").path.exists()
    with pytest.raises(ModelNotFound):
        store.copy("absent", ModelName("x"))


def test_a_model_of_another_program_is_not_overwritten(root: Path) -> None:
    foreign_library(root)
    store = Store(root).open()
    mine = put(store, "mine", {"general.name": "Mine"})
    assert store.copy("theirs", ModelName("copied")).path.exists()
    with pytest.raises(Forbidden):
        store.copy("mine", ModelName("theirs"))
    with pytest.raises(Forbidden):
        with_layers(store, "theirs")
    assert store.resolve("mine") == mine


# ---- what an engine is started with


def test_one_engine_serves_the_names_that_differ_in_what_it_does_not_see(store: Store) -> None:
    plain = put(store, "plain")
    assert plain.load_key == str(plain.model_digest)
    assert with_layers(store, "system", system=b"x", params=b"{}").load_key == plain.load_key
    assert with_layers(store, "go", template=b"{{ .Prompt }}").load_key == plain.load_key
    others = [
        with_layers(store, "jinja", template=b"{{ messages }}"),
        with_layers(store, "jinja2", template=b"{{ messages }} "),
        with_layers(store, "lora", adapter=gguf({"general.type": "adapter"})),
        with_layers(store, "eyes", projector=gguf({"general.architecture": "clip"})),
    ]
    keys = {model.load_key for model in others}
    assert len({plain.load_key, *keys}) == 5
    assert with_layers(store, "again", template=b"{{ messages }}").load_key == others[0].load_key


def test_a_template_in_jinja_is_a_file_for_the_engine(store: Store) -> None:
    text = b"{% if tools %}{{ tools }}{% endif %}"
    model = with_layers(store, "m", template=text)
    assert model.jinja_template is not None
    assert model.jinja_template.read_bytes() == text
    assert model.capabilities == ("completion", "tools")
    go = with_layers(store, "go", template=b"{{ .Tools }}")
    assert (go.jinja_template, go.template, go.capabilities) == (None, "{{ .Tools }}", ("completion",))


# ---- remove


def test_removing_frees_what_nothing_else_needs(store: Store, root: Path) -> None:
    one, two = put(store, "one"), put(store, "two")
    other = put(store, "other", {"general.name": "Other"})
    assert one.path == two.path
    assert str(store.remove("ONE")) == "one:latest"
    assert one.path.exists()
    store.remove("two")
    assert not one.path.exists()
    assert not (root / "mgr" / "gguf" / f"{one.model_digest.hex}.json").exists()
    assert store.list() == [other]
    store.remove("other")
    assert blob_names(root) == set()
    assert os.listdir(root / "manifests") == []
    with pytest.raises(ModelNotFound):
        store.remove("other")


def test_a_held_blob_stays(store: Store) -> None:
    model = put(store, "m")
    with store.hold(model.model_digest):
        store.remove("m")
        assert model.path.exists()
    store.discard(model.model_digest)
    assert not model.path.exists()


def test_while_a_manifest_cannot_be_read_no_blob_goes(store: Store, root: Path) -> None:
    model = put(store, "m")
    path = root / "manifests" / ModelName.parse("broken").path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    store.remove("m")
    assert model.path.exists()
    store.remove("broken")
    store.discard(model.model_digest)
    assert not model.path.exists()


def test_while_a_folder_cannot_be_listed_no_blob_goes_and_nothing_seems_missing(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = put(store, "one"), put(store, "two")
    assert model.path == other.path
    unlisted = root / "manifests" / ModelName.parse("two").path.parent
    scandir = os.scandir

    def without_descriptors(folder: Path) -> Any:
        if folder == unlisted:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), folder)
        return scandir(folder)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", without_descriptors)
        store.remove("one")
        for ask in (store.list, lambda: store.resolve("nothing")):
            with pytest.raises(StorageFailed) as caught:
                ask()
            folder = "manifests/registry.ollama.ai/library/two"
            assert (
                caught.value.message
                == f"the model store cannot list its folder '{folder}': Too many open files"
            )
    assert other.path.exists()
    assert store.resolve("two").path == other.path
    store.remove("two")
    assert not other.path.exists()


def test_nothing_of_another_program_is_deleted(root: Path) -> None:
    manifest = foreign_library(root)
    blobs = blob_names(root)
    store = Store(root).open(lock=True)
    with pytest.raises(Forbidden, match="'theirs:latest' was put into this store by another program"):
        store.remove("theirs")
    with pytest.raises(Forbidden):
        put(store, "theirs", {"general.name": "New"}, replace=True)
    mine = put(store, "mine")
    assert mine.path.name in blobs
    store.remove("mine")
    assert (root / "manifests" / ModelName.parse("theirs").path).read_bytes() == manifest
    assert blobs <= blob_names(root)
    assert str(store.resolve("theirs").name) == "theirs:latest"
    store.close()


def test_in_its_own_store_mgr_removes_manifests_but_not_blobs_of_others(store: Store, root: Path) -> None:
    foreign_library(root)
    blobs = blob_names(root)
    store.remove("theirs")
    assert store.list() == []
    assert blob_names(root) == blobs


# ---- open


def test_a_second_daemon_is_refused(store: Store, root: Path) -> None:
    with pytest.raises(StoreLocked, match=rf"in use by another daemon \(pid {os.getpid()}\)"):
        Store(root).open(lock=True)
    Store(root).open()
    store.close()
    with closing(Store(root).open(lock=True)):
        pass


def test_leftovers_are_cleared_by_the_holder_of_the_lock(root: Path) -> None:
    with closing(Store(root).open(lock=True)) as first:
        (first.scratch / "pip-x").mkdir()
        first.blobs.ingest().open()
        assert len(blob_names(root)) == 1
    Store(root).open()
    assert len(blob_names(root)) == 1
    with closing(Store(root).open(lock=True)) as second:
        assert blob_names(root) == set()
        assert list(second.scratch.iterdir()) == []


def test_an_upload_that_nobody_used_goes_after_a_day(root: Path) -> None:
    with closing(Store(root).open(lock=True)) as first:
        used = put(first, "m").model_digest
        old, new = first.blobs.put(b"old"), first.blobs.put(b"new")
    theirs = Digest.of(b"theirs")
    first.blobs.path(theirs).write_bytes(b"theirs")
    long_ago = time.time_ns() - 25 * 3600 * 10**9
    for digest in (used, old, theirs):
        os.utime(first.blobs.path(digest), ns=(long_ago, long_ago))
    for digest in (used, old):  # mgr wrote them at that time
        Ledger(root).record(first.blobs.path(digest), long_ago)
    with closing(Store(root).open(lock=True)) as second:
        assert [second.blobs.has(digest) for digest in (used, new, theirs, old)] == [True, True, True, False]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Misconfigured, match="Not a directory"):
        Store(tmp_path / "file").open()


def test_a_summary_is_read_once_and_rebuilt_when_damaged(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = store.blobs.put(gguf())
    reads = []

    def counted(path: Path) -> Summary:
        reads.append(path)
        return read_summary(path)

    monkeypatch.setattr(summaries, "read_summary", counted)
    first = store.summary(digest)
    kept = root / "mgr" / "gguf" / f"{digest.hex}.json"
    assert store.summary(digest) == first
    assert len(reads) == 1
    for damage in (b"", b"{", b"[]", b'{"format": 1}', b'{"format": 1, "metadata": []}'):
        kept.write_bytes(damage)
        assert store.summary(digest) == first
    assert len(reads) == 6
