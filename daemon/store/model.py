"""A stored model, as everybody else sees it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from daemon.names import ModelName
from daemon.store.blobs import Digest
from daemon.store.summary import Summary


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be used. `digest` is the manifest's sha256 in hex; `size` in bytes, of all its blobs.

    `template` is what it was stored with, in whatever language; `jinja_template` is the file of it where the engine
    can render it, which then goes before the one in the model's own file. `projector_heads`
    are the headers of `projectors`; `parent` is the name of the model it was made from.
    """

    name: ModelName
    digest: str
    size: int
    modified_at: datetime
    path: Path
    model_digest: Digest
    projectors: tuple[Path, ...]
    summary: Summary
    config: Mapping[str, Any]
    system: str | None
    template: str | None
    params: Mapping[str, Any]
    messages: tuple[Mapping[str, Any], ...]
    licenses: tuple[str, ...]
    capabilities: tuple[str, ...]
    adapters: tuple[Path, ...] = ()
    jinja_template: Path | None = None
    projector_heads: tuple[Summary, ...] = ()
    parent: str = ""

    @property
    def load_key(self) -> str:
        """Equal for names that one engine can serve: the digest of the file, or of all files where there are more."""
        parts = {"projector": self.projectors, "adapter": self.adapters, "template": (self.jinja_template,)}
        named = [f"{kind} {path.name}" for kind, paths in parts.items() for path in paths if path is not None]
        if not named:
            return str(self.model_digest)
        return str(Digest.of("\n".join([str(self.model_digest), *named]).encode()))
