"""What the header of a GGUF file says, as a value that survives a round trip through JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from daemon.errors import BadModel
from daemon.store.ggml import FILE_TYPES

Value: TypeAlias = int | float | str | bool | tuple[int, ...]

_FORMAT = 1
_MAX_NUMBER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """`shape` counts elements, the fastest dimension first, as in the file."""

    name: str
    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """A header, as it stands: hostile numbers are kept, and refused by whoever interprets them (`number`).

    `metadata` holds the scalars and the small arrays of whole numbers; `array_counts` the number of elements of
    every other array.
    """

    metadata: Mapping[str, Value]
    array_counts: Mapping[str, int]
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        return self.text("general.architecture") or ""

    @property
    def name(self) -> str | None:
        return self.text("general.name")

    @property
    def chat_template(self) -> str | None:
        """Jinja, which mgr never renders."""
        return self.text("tokenizer.chat_template")

    @property
    def parameter_count(self) -> int:
        """Elements of all tensors; what the metadata claims is not trusted."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def file_type(self) -> str:
        """Name of the quantisation, like "Q4_K_M"."""
        value = self.metadata.get("general.file_type")
        return FILE_TYPES.get(value, "unknown") if isinstance(value, int) else "unknown"

    @property
    def context_length(self) -> int | None:
        """Tokens the model was trained for. Raises BadModel."""
        return self.number("context_length")

    @property
    def embedding_length(self) -> int | None:
        """Raises BadModel."""
        return self.number("embedding_length")

    def key(self, name: str) -> str:
        """The metadata key of `name`, which is the architecture's unless it is general or the tokenizer's."""
        return name if name.startswith(("general.", "tokenizer.")) else f"{self.architecture}.{name}"

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def number(self, name: str) -> int | None:
        """A positive whole number, None where the file says nothing. Raises BadModel for any other value."""
        key = self.key(name)
        if key not in self.metadata and key not in self.array_counts:
            return None
        value = self.metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_NUMBER:
            raise BadModel(f"the model's {key[:100]} is not a whole number between 1 and {_MAX_NUMBER}")
        return value

    def model_info(self, arrays: Mapping[str, Sequence[Any]] | None = None) -> dict[str, Any]:
        """Metadata as /api/show answers it: legal JSON, arrays that are not among `arrays` as null.

        Source: Ollama's API documentation.
        """
        hidden = {"general.name", "tokenizer.chat_template"}
        info: dict[str, Any] = {
            key: _plain(value) for key, value in self.metadata.items() if key not in hidden
        }
        info.update(dict.fromkeys(self.array_counts))
        info.update({key: [_plain(item) for item in items] for key, items in (arrays or {}).items()})
        info["general.parameter_count"] = self.parameter_count
        return dict(sorted(info.items()))

    def to_json(self) -> bytes:
        return json.dumps({"format": _FORMAT, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Summary":
        """Raises ValueError, KeyError or TypeError when `data` is not what `to_json` of this version wrote."""
        value = json.loads(data)
        if value["format"] != _FORMAT:
            raise ValueError("another format")
        metadata = {k: tuple(v) if isinstance(v, list) else v for k, v in value["metadata"].items()}
        tensors = (Tensor(t["name"], t["type"], tuple(t["shape"])) for t in value["tensors"])
        return cls(metadata, value["array_counts"], tuple(tensors))


def _plain(value: Value) -> Any:
    if isinstance(value, tuple) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value
