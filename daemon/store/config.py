"""The config blob of a model, with Ollama's keys."""

from collections.abc import Mapping
from typing import Any

from daemon.store.summary import Summary


def config_of(summary: Summary) -> dict[str, Any]:
    """What the header of the model's file says. Raises BadModel when the metadata is hostile."""
    config: dict[str, Any] = {
        "model_format": "gguf",
        "model_family": summary.architecture,
        "model_families": [summary.architecture],
        "model_type": human_number(summary.parameter_count),
        "file_type": summary.file_type,
        "context_length": summary.context_length,
        "embedding_length": summary.embedding_length,
        "architecture": "amd64",
        "os": "linux",
    }
    return {key: value for key, value in config.items() if value is not None}


def claimed_capabilities(config: Mapping[str, Any]) -> tuple[str, ...]:
    value = config.get("capabilities")
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def human_number(count: int) -> str:
    """A number of parameters as Ollama writes it: "134.52M", "8.0B", "7B"."""
    for unit, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= unit:
            return f"{count / unit:.{0 if count % unit == 0 else digits}f}{letter}"
    return str(count)
