"""A stored model as a value."""

from datetime import UTC, datetime
from pathlib import Path

from daemon.names import ModelName
from daemon.store.blobs import Digest
from daemon.store.models import Model
from daemon.store.summary import Summary

MODEL = Model(
    name=ModelName("m"),
    digest="0" * 64,
    size=10,
    modified_at=datetime(2026, 1, 1, tzinfo=UTC),
    path=Path("/store/blob"),
    model_digest=Digest.of(b"m"),
    projectors=(),
    summary=Summary({"general.architecture": "llama", "llama.context_length": 128}, {}, ()),
    config={},
    system=None,
    template=None,
    params={},
    messages=(),
    licenses=(),
    capabilities=("completion",),
)
