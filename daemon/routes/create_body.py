"""The body of /api/create as a recipe. Source: Ollama's API documentation and the types of its server."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from daemon.errors import NotSupported
from daemon.middleware import ollama
from daemon.middleware.dialect import read_object
from daemon.middleware.fields import BadField, Fields, shown
from daemon.names import ModelName
from daemon.store.blobs import BadDigest, Digest
from daemon.store.recipe import Recipe

PARAMETERS = frozenset(
    (
        "num_ctx",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "num_thread",
        "num_keep",
        "seed",
        "num_predict",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "temperature",
        "repeat_last_n",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "use_mmap",
        "stop",
        "draft_num_predict",
    )
)
# Ollama has given these up and ignores them, and its clients may still send them.
GIVEN_UP = frozenset(
    (
        "penalize_newline",
        "low_vram",
        "f16_kv",
        "logits_all",
        "vocab_only",
        "use_mlock",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "numa",
        "tfs_z",
        "embedding_only",
    )
)
# What llama-quantize makes without further data.
QUANTIZATIONS = frozenset(
    (
        "F32",
        "F16",
        "BF16",
        "Q8_0",
        "Q6_K",
        "Q5_K_M",
        "Q5_K_S",
        "Q5_1",
        "Q5_0",
        "Q4_K_M",
        "Q4_K_S",
        "Q4_1",
        "Q4_0",
        "Q3_K_L",
        "Q3_K_M",
        "Q3_K_S",
        "Q2_K",
    )
)
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

_OFF: tuple[Any, ...] = ("", {}, [])
_UNBUILT = {"draft_files": _OFF, "draft_quantize": _OFF}
_ROLES = ("system", "user", "assistant")
_CLOUD = re.compile(r".*(:cloud|:[^/:]*-cloud)", re.IGNORECASE)

_INFO_TEXTS = {
    "model_family": "model_family",
    "base_name": "base_name",
    "quantization_level": "file_type",
    "parameter_size": "model_type",
}
_INFO_COUNTS = ("context_length", "embedding_length")


def parse(body: bytes) -> tuple[Recipe, bool]:
    """The recipe, and whether its progress is to be streamed. Raises InvalidRequest, NotSupported."""
    fields = Fields(read_object(body))
    base = fields.string("from") or ""
    if fields.string("remote_host") or fields.string("remote_model") or _CLOUD.fullmatch(base):
        raise NotSupported("models that run on another server are not supported; create from a local model")
    fields.refuse_unbuilt(_UNBUILT)
    recipe = Recipe(
        name=ModelName.parse(model_name(fields)),
        base=base,
        files=_blobs(fields, "files"),
        adapters=_blobs(fields, "adapters"),
        template=fields.string("template") or "",
        system=fields.string("system") or "",
        licenses=tuple(text for text in fields.strings("license") or () if text),
        parameters=_parameters(fields),
        messages=_messages(fields),
        quantize=_quantize(fields),
        config=_config(fields),
    )
    if not base and not recipe.files:
        raise BadField("from", "or files is required: neither 'from' or 'files' was specified")
    return recipe, fields.boolean("stream") is not False


def model_name(fields: Fields) -> str:
    """`model`, or `name` as it once was called. Raises BadField."""
    name = fields.string("model") or fields.string("name")
    if not name:
        raise BadField("model", "is required")
    return name


def _blobs(fields: Fields, key: str) -> dict[str, Digest]:
    given = fields.object(key)
    blobs = {}
    for name in given.data:
        path = PurePosixPath(name)
        if not name or path.is_absolute() or ".." in path.parts:
            raise BadField(key, f"has the name {shown(name)}; a file path must be relative, without '..'")
        if name.lower().endswith(".safetensors"):
            raise BadField(
                key,
                f"has {shown(name)}; safetensors are not supported, convert the model to GGUF first, with "
                "convert_hf_to_gguf.py of llama.cpp",
            )
        try:
            blobs[name] = Digest.parse(given.required(name).replace("sha256-", "sha256:", 1))
        except BadDigest as error:
            raise BadField(f"{key}[{shown(name)}]", f"has an {error.message}") from None
    return blobs


def _parameters(fields: Fields) -> dict[str, Any]:
    given = fields.object("parameters")
    chosen = {key: value for key, value in given.data.items() if key not in GIVEN_UP and value is not None}
    for key in chosen:
        if key not in PARAMETERS:
            raise BadField(
                given.name(key[:60]), "is no parameter; see the documentation of Modelfile's PARAMETER"
            )
    if isinstance(chosen.get("stop"), str):
        chosen["stop"] = [chosen["stop"]]
    ollama.read_options(chosen)
    return chosen


def _messages(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    messages = fields.objects("messages")
    for message in messages:
        if message.data.get("role") not in _ROLES:
            raise BadField(message.name("role"), f"must be one of {', '.join(_ROLES)}")
        message.required("content")
        ollama.read_message(message.data)
    return tuple(message.data for message in messages)


def _quantize(fields: Fields) -> str:
    given = fields.string("quantize") or fields.string("quantization") or ""
    wanted = _ALIASES.get(given.upper(), given.upper())
    if wanted and wanted not in QUANTIZATIONS:
        raise BadField("quantize", f"is {shown(given)}; it must be one of {', '.join(sorted(QUANTIZATIONS))}")
    return wanted


def _config(fields: Fields) -> dict[str, Any]:
    """What is only kept. mgr has no renderers and parsers of Ollama's: the engine has its own."""
    info = fields.object("info")
    config: dict[str, Any] = {key: fields.string(key) for key in ("renderer", "parser", "requires")}
    config |= {key: info.string(name) for name, key in _INFO_TEXTS.items()}
    config |= {key: info.integer(key, 1, 2**31 - 1) for key in _INFO_COUNTS}
    words = info.strings("capabilities")
    config["capabilities"] = [*words] if words else None
    return {key: value for key, value in config.items() if value}
