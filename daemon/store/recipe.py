"""A new model from what is in the store already: another model, uploaded files, and texts laid over them.

The rules are those of Ollama's /api/create: a template or a system prompt replaces the inherited one, messages replace
all of them, a licence is added, parameters are merged with the new ones winning.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from daemon.errors import BadModel, InvalidRequest, ModelNotFound, NotFound
from daemon.names import ModelName
from daemon.store.blobs import Digest
from daemon.store.config import config_of
from daemon.store.manifests import MAX_LAYERS, Layer
from daemon.store.model import Model
from daemon.store.models import MAX_TEXT_LAYER, Store
from daemon.store.summary import Summary
from daemon.store.templates import is_jinja

QUANTIZABLE = ("F32", "F16", "BF16")

GO_TEMPLATE = (
    "the template is in Go's language, so it is only kept and shown; the chat template of the file is used"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is asked for. `base` is a model's name, `files` and `adapters` are blobs by the name that the client gave
    them; whatever is empty is inherited. `quantize` is a type like "Q4_K_M"; `config` goes into the config blob."""

    name: ModelName
    base: str = ""
    files: Mapping[str, Digest] = field(default_factory=dict)
    adapters: Mapping[str, Digest] = field(default_factory=dict)
    template: str = ""
    system: str = ""
    licenses: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] = ()
    quantize: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Text:
    """A layer that is to be written."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """What the model will consist of: `layers` whose blobs are there, and `texts`. `summary` is the header of the
    layer "model"; `quantize` is "" where nothing has to be done; `notes` are sentences for the one who asked."""

    layers: tuple[Layer, ...]
    texts: tuple[Text, ...]
    summary: Summary
    inherited: Mapping[str, Any]
    config: Mapping[str, Any]
    quantize: str = ""
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> Digest:
        return next(layer.digest for layer in self.layers if layer.kind == "model")

    def with_model(self, digest: Digest, size: int, summary: Summary) -> "Plan":
        """The same with another file, of `size` bytes, in place of the model's."""
        layers = tuple(
            Layer("model", digest, size) if layer.kind == "model" else layer for layer in self.layers
        )
        inherited = {key: value for key, value in self.inherited.items() if key != "file_type"}
        return replace(self, layers=layers, summary=summary, inherited=inherited, quantize="")

    def final_config(self) -> dict[str, Any]:
        """Raises BadModel for a header with hostile numbers."""
        return {**config_of(self.summary), **self.inherited, **self.config}


def plan(store: Store, recipe: Recipe) -> Plan:
    """Reads and checks everything, and writes nothing.

    Raises InvalidRequest for what cannot be done, NotFound, BadModel, Forbidden, StorageFailed.
    """
    store.replaceable(recipe.name)
    base = _base(store, recipe.base) if recipe.base else None
    inherited = _inherited(store, base) if base else ()
    files = [_file(store, f"files[{name[:80]!r}]", digest) for name, digest in recipe.files.items()]
    adapters = [
        _adapter(store, f"adapters[{name[:80]!r}]", digest) for name, digest in recipe.adapters.items()
    ]
    kept = [layer for layer in inherited if not _replaced(layer, recipe)]
    layers = (*kept, *files, *adapters)
    models = [layer for layer in layers if layer.kind == "model"]
    if len(models) != 1:
        raise InvalidRequest(f"a model needs exactly one model file, and this would have {len(models)}")
    summary = store.summary(models[0].digest)
    made = Plan(
        layers,
        tuple(_texts(recipe, base, {layer.digest for layer in inherited})),
        summary,
        base.config if base else {},
        recipe.config,
        _quantization(recipe.quantize, summary),
        _notes(recipe, summary),
    )
    made.final_config()
    if len(made.layers) + len(made.texts) > MAX_LAYERS:
        raise InvalidRequest(f"the model would have more than {MAX_LAYERS} layers")
    return made


def layer_kind(summary: Summary) -> str:
    """What a GGUF file is by its header: "model", "projector" or "adapter". Raises InvalidRequest for anything else."""
    parts = summary.metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise InvalidRequest(
            f"it is one of {parts} parts of a model; join them with llama-gguf-split --merge first"
        )
    kind = summary.text("general.type") or "model"
    if kind == "adapter":
        return "adapter"
    if kind in {"projector", "mmproj"} or summary.architecture == "clip":
        return "projector"
    if kind != "model":
        raise InvalidRequest(f"its header says {kind[:40]!r}, which is neither model, adapter nor projector")
    return "model"


# ---- what is there


def _base(store: Store, name: str) -> Model:
    try:
        return store.resolve(name)
    except ModelNotFound as error:
        raise NotFound(f"{error.message}; pull it first") from None


def _inherited(store: Store, base: Model) -> tuple[Layer, ...]:
    layers = store.manifest(base.name).layers
    origin = str(base.name)
    return tuple(replace(layer, origin=origin) if layer.kind == "model" else layer for layer in layers)


def _file(store: Store, name: str, digest: Digest) -> Layer:
    size = store.blobs.size(digest)
    if size is None:
        raise InvalidRequest(
            f"{name}: there is no blob {digest}; upload it first, with POST /api/blobs/{digest}"
        )
    try:
        summary = store.summary(digest)
        kind = layer_kind(summary)
        config_of(summary)  # whose numbers must be sane
        return Layer(kind, digest, size)
    except (BadModel, InvalidRequest) as error:
        raise InvalidRequest(f"{name} cannot be used: {error.message}") from None


def _adapter(store: Store, name: str, digest: Digest) -> Layer:
    layer = _file(store, name, digest)
    if layer.kind != "adapter":
        raise InvalidRequest(f"{name} is no adapter: its header says {layer.kind}")
    return layer


# ---- what is laid over it


def _replaced(layer: Layer, recipe: Recipe) -> bool:
    match layer.kind:
        case "template" | "prompt":
            return bool(recipe.template)
        case "system":
            return bool(recipe.system)
        case "params":
            return bool(recipe.parameters)
        case "messages":
            return bool(recipe.messages)
    return False


def _texts(recipe: Recipe, base: Model | None, inherited: Iterable[Digest]) -> Sequence[Text]:
    params = {**(base.params if base else {}), **recipe.parameters}
    texts = [
        Text("template", recipe.template.encode()),
        Text("system", recipe.system.encode()),
        Text("params", _json(params) if recipe.parameters else b""),
        Text("messages", _json(recipe.messages) if recipe.messages else b""),
    ]
    licenses = [Text("license", text.encode()) for text in dict.fromkeys(recipe.licenses)]
    texts += [text for text in licenses if Digest.of(text.data) not in inherited]
    for text in texts:
        if len(text.data) > MAX_TEXT_LAYER:
            raise InvalidRequest(
                f"{text.kind} has {len(text.data)} bytes; at most {MAX_TEXT_LAYER} are allowed"
            )
    return [text for text in texts if text.data]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _notes(recipe: Recipe, summary: Summary) -> tuple[str, ...]:
    if not recipe.template or is_jinja(recipe.template):
        return ()
    embeds = summary.key("pooling_type") in summary.metadata
    if summary.chat_template is None and not embeds:
        raise InvalidRequest(
            "the template is in Go's template language, which mgr does not run, and the model's file has no chat "
            "template of its own; write the template in Jinja"
        )
    return (GO_TEMPLATE,)


def _quantization(wanted: str, summary: Summary) -> str:
    if not wanted or wanted == summary.file_type:
        return ""
    if summary.file_type not in QUANTIZABLE:
        raise InvalidRequest(
            f"quantize is only supported for F16, BF16 and F32 models, and this one is {summary.file_type}"
        )
    return wanted
