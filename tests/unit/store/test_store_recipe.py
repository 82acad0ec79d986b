"""What a new model consists of, and which rules decide it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from daemon.errors import BadModel, Forbidden, InvalidRequest, NotFound
from daemon.names import ModelName
from daemon.store.manifests import MAX_LAYERS, Layer
from daemon.store.models import MAX_TEXT_LAYER, Model, Store
from daemon.store.recipe import GO_TEMPLATE, Plan, Recipe, Text, layer_kind, plan
from daemon.store.summary import Summary
from tests.fakes.gguf_files import Meta, gguf

GO = "{{ .Prompt }}"
NAME = ModelName("new")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "store").open(lock=True)) as opened:
        yield opened


def stored(store: Store, name: str = "base", **metadata: Meta) -> Model:
    digest = store.blobs.put(gguf({"general.name": name, **metadata}))
    return store.add(ModelName.parse(name), digest, store.summary(digest))


def written(store: Store, made: Plan, name: ModelName = NAME) -> Model:
    """The model as the daemon makes it from a plan."""
    texts = [Layer(text.kind, store.blobs.put(text.data), len(text.data)) for text in made.texts]
    return store.define(name, [*made.layers, *texts], made.final_config())


def recipe(**fields: Any) -> Recipe:
    return Recipe(name=NAME, **fields)


def test_nothing_changed_is_the_same_files(store: Store) -> None:
    base = stored(store)
    made = plan(store, recipe(base="BASE"))
    assert made.layers == (Layer("model", base.model_digest, base.path.stat().st_size, "base:latest"),)
    assert (made.texts, made.quantize, made.notes) == ((), "", ())
    new = written(store, made)
    assert (new.config, new.parent, new.load_key) == (base.config, "base:latest", base.load_key)


def test_texts_replace_add_or_merge(store: Store) -> None:
    stored(store)
    first = recipe(
        base="base",
        template="{% x %}",
        system="S1",
        licenses=("A",),
        parameters={"top_k": 1, "seed": 2},
        messages=({"role": "user", "content": "1"},),
    )
    written(store, plan(store, first))
    made = plan(
        store,
        recipe(base="new", system="S2", licenses=("A", "B", "B"), parameters={"top_k": 3, "stop": ["é"]}),
    )
    assert made.texts == (
        Text("system", b"S2"),
        Text("params", '{"top_k":3,"seed":2,"stop":["é"]}'.encode()),
        Text("license", b"B"),
    )
    model = written(store, made)
    assert (model.system, model.template, model.licenses) == ("S2", "{% x %}", ("A", "B"))
    assert model.params == {"top_k": 3, "seed": 2, "stop": ["é"]}
    assert model.messages == ({"role": "user", "content": "1"},)


def test_what_the_config_claims_is_inherited_and_can_be_changed(store: Store) -> None:
    stored(store)
    written(store, plan(store, recipe(base="base", config={"renderer": "r", "capabilities": ["tools"]})))
    model = written(store, plan(store, recipe(base="new", config={"renderer": "s"})))
    assert (model.config["renderer"], model.config["model_family"]) == ("s", "llama")
    assert model.capabilities == ("tools", "completion")


def test_files_by_their_headers(store: Store) -> None:
    files = {
        "m": store.blobs.put(gguf()),
        "p": store.blobs.put(gguf({"general.architecture": "clip"})),
    }
    adapter = store.blobs.put(gguf({"general.type": "adapter"}))
    made = plan(store, recipe(files=files, adapters={"a": adapter}))
    assert [layer.kind for layer in made.layers] == ["model", "projector", "adapter"]
    model = written(store, made)
    assert model.projectors == (store.blobs.path(files["p"]),)
    assert model.adapters == (store.blobs.path(adapter),)
    assert model.projector_heads[0].architecture == "clip"
    assert model.load_key not in {str(model.model_digest), ""}


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({}, "model"),
        ({"general.type": "model"}, "model"),
        ({"general.type": "adapter"}, "adapter"),
        ({"general.type": "mmproj"}, "projector"),
        ({"general.type": "projector"}, "projector"),
        ({"general.architecture": "clip"}, "projector"),
        ({"general.architecture": "clip", "general.type": "adapter"}, "adapter"),
        ({"split.count": 1}, "model"),
    ],
)
def test_kinds(metadata: dict[str, Any], kind: str) -> None:
    assert layer_kind(Summary({"general.architecture": "llama", **metadata}, {}, ())) == kind


@pytest.mark.parametrize(
    ("metadata", "words"),
    [({"split.count": 2}, "one of 2 parts"), ({"general.type": "imatrix"}, "'imatrix'")],
)
def test_what_is_no_layer(metadata: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        layer_kind(Summary({"general.architecture": "llama", **metadata}, {}, ()))


def test_a_go_template_needs_a_template_in_the_file(store: Store) -> None:
    stored(store, "bare")
    stored(store, "own", **{"tokenizer.chat_template": "{{ x }}"})
    stored(store, "embeds", **{"llama.pooling_type": 1})
    with pytest.raises(InvalidRequest, match="write the template in Jinja"):
        plan(store, recipe(base="bare", template=GO))
    assert plan(store, recipe(base="bare", template="{{ messages }}")).notes == ()
    assert plan(store, recipe(base="own", template=GO)).notes == (GO_TEMPLATE,)
    assert plan(store, recipe(base="embeds", template=GO)).notes == (GO_TEMPLATE,)


def test_quantize_only_what_is_not_yet(store: Store) -> None:
    stored(store, "full", **{"general.file_type": 1})
    stored(store, "small", **{"general.file_type": 15})
    assert plan(store, recipe(base="full", quantize="Q4_K_M")).quantize == "Q4_K_M"
    assert plan(store, recipe(base="full", quantize="F16")).quantize == ""
    with pytest.raises(InvalidRequest, match="F16, BF16 and F32 models, and this one is Q4_K_M"):
        plan(store, recipe(base="small", quantize="Q8_0"))


def test_another_file_in_place_of_the_model(store: Store) -> None:
    stored(store, "full", **{"general.file_type": 1})
    small = store.blobs.put(gguf({"general.file_type": 15}))
    made = plan(store, recipe(base="full", quantize="Q4_K_M", config={"base_name": "b"}))
    made = made.with_model(small, 7, store.summary(small))
    assert (made.model, made.quantize, made.layers) == (small, "", (Layer("model", small, 7),))
    config = made.final_config()
    assert (config["file_type"], config["base_name"]) == ("Q4_K_M", "b")


def test_what_cannot_be_made(store: Store) -> None:
    stored(store)
    absent = store.blobs.put(b"x")
    store.discard(absent)
    page = store.blobs.put(b"<html></html>")
    model = store.blobs.put(gguf({"general.name": "2"}))
    for fields, words in (
        ({"files": {"f": absent}}, rf"files\['f'\]: there is no blob {absent}; upload it first"),
        ({"files": {"f": page}}, r"files\['f'\] cannot be used: the file is a web page"),
        ({"base": "base", "files": {"f": model}}, "exactly one model file, and this would have 2"),
        ({"base": "base", "adapters": {"f": model}}, r"adapters\['f'\] is no adapter"),
        ({"base": "base", "system": "x" * (MAX_TEXT_LAYER + 1)}, "system has 4194305 bytes"),
        ({"base": "base", "licenses": tuple(map(str, range(MAX_LAYERS)))}, "more than 64 layers"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            plan(store, recipe(**fields))
    with pytest.raises(NotFound, match=r"model 'bas' not found; did you mean 'base:latest'\?; pull it first"):
        plan(store, recipe(base="bas"))
    assert store.blobs.has(page)


def test_hostile_numbers(store: Store) -> None:
    hostile = store.blobs.put(gguf({"llama.context_length": 0}))
    with pytest.raises(InvalidRequest, match=r"llama\.context_length"):
        plan(store, recipe(files={"f": hostile}))


def test_the_name_of_another_program_s_model(tmp_path: Path) -> None:
    root = tmp_path / "theirs"
    (root / "blobs").mkdir(parents=True)
    path = root / "manifests" / NAME.path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}")
    store = Store(root).open()
    stored(store)
    with pytest.raises(Forbidden, match="put into this store by another program"):
        plan(store, recipe(base="base"))


def test_a_base_that_cannot_be_used(store: Store) -> None:
    stored(store).path.unlink()
    with pytest.raises(BadModel, match="its model file is missing"):
        plan(store, recipe(base="base"))
