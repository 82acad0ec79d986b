"""The models of a store: list, resolve, add, remove.

The layout is Ollama's, so either program can use the other's library in place. What mgr keeps for itself is in the
folder `mgr/` of the store. In a store that mgr did not create, nothing that mgr did not write is ever deleted.
"""

import difflib
import json
import logging
import math
import shutil
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from daemon.errors import BadModel, Conflict, Forbidden, Misconfigured, ModelNotFound, StorageFailed
from daemon.names import DEFAULT_TAG, ModelName
from daemon.store.blobs import Blobs, Digest
from daemon.store.capabilities import capabilities
from daemon.store.config import claimed_capabilities, config_of, human_number
from daemon.store.files import storage_failed
from daemon.store.ledger import Ledger
from daemon.store.lock import StoreLock, StoreLocked
from daemon.store.manifests import BadManifest, Layer, Manifest, Manifests, encode
from daemon.store.model import Model
from daemon.store.summaries import Summaries
from daemon.store.summary import Summary
from daemon.store.templates import is_jinja

__all__ = ["AmbiguousTag", "Model", "Store", "StoreLocked", "human_number"]

MAX_TEXT_LAYER = 4 * 1024 * 1024

# A file that was uploaded and from which no model was made goes with the first start after so long.
_UNUSED_SECONDS = 24 * 3600

RESOLVED_SECONDS = 2.0
_RESOLVED_AT_MOST = 256

log = logging.getLogger(__name__)


class AmbiguousTag(ModelNotFound):
    """A name without a tag, where there are several tags and none is the default one."""

    def __init__(self, name: str, tags: list[str]) -> None:
        super().__init__(name)
        self.message = f"model '{name}' not found without a tag: it has {', '.join(tags)}; name one"
        self.args = (self.message,)


class Store:
    """One store. Calls do blocking disk I/O and may come from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ledger = Ledger(root)
        self._manifests = Manifests(root)
        self._flock = StoreLock(root / "mgr" / "lock")
        self._mutex = threading.RLock()
        self._holding = threading.Lock()
        self._held: Counter[Digest] = Counter()
        self._models: dict[ModelName, tuple[Manifest, Model]] = {}
        # Another dictionary after each change: a `resolve` that began before it remembers nothing for later ones.
        self._resolved: dict[str, tuple[float, Model]] = {}
        self.blobs = Blobs(root, self._ledger)
        self._summaries = Summaries(root, self.blobs)

    @property
    def scratch(self) -> Path:
        """A folder on the store's disk for temporary files; what a killed daemon left there goes at `open`."""
        return self._root / "mgr" / "scratch"

    def open(self, *, lock: bool = False) -> Self:
        """Makes the folders; with `lock` holds the store for this process alone and clears away leftovers.

        Raises StoreLocked, and Misconfigured when the folder cannot be used.
        """
        try:
            self._make_folders()
            if lock:
                self._flock.acquire()
                self.blobs.sweep()
                self._collect(self.blobs.older_than(_UNUSED_SECONDS))
                shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch.mkdir(exist_ok=True)
        except OSError as error:
            reason = error.strerror or "input/output error"
            raise Misconfigured(
                f"the model store {self._root} cannot be used: {reason}; set MGR_MODELS"
            ) from error
        return self

    def close(self) -> None:
        self._flock.release()

    def list(self) -> list[Model]:
        """Every usable model, the newest first; those that are not are named in the log."""
        models = []
        for manifest in self._manifests.readable():
            try:
                models.append(self._model(manifest))
            except (BadModel, StorageFailed) as error:
                self._manifests.report(manifest.name, error.message)
        return sorted(models, key=lambda model: (-model.modified_at.timestamp(), str(model.name)))

    def resolve(self, text: str) -> Model:
        """The model that `text` means. Raises BadName, ModelNotFound (AmbiguousTag), BadModel, StorageFailed."""
        resolved, now = self._resolved, time.monotonic()
        model = self._model(self._manifests.read(self._lookup(text)))
        if len(resolved) >= _RESOLVED_AT_MOST:
            resolved.clear()
        resolved[text] = (now, model)
        return model

    def just_resolved(self, text: str) -> Model | None:
        """What `resolve` has found within the last RESOLVED_SECONDS, if nothing was changed here since. Without the
        disk, so that it may be asked in an event loop; what another program changes is seen by the next `resolve`."""
        at, model = self._resolved.get(text, (-math.inf, None))
        return model if time.monotonic() < at + RESOLVED_SECONDS else None

    def summary(self, digest: Digest) -> Summary:
        """The GGUF header of a blob. Raises BadModel, StorageFailed."""
        return self._summaries.get(digest)

    @contextmanager
    def hold(self, digest: Digest) -> Iterator[None]:
        """Keeps a blob that no manifest names yet from being collected. Entering may wait for the disk."""
        with self._mutex, self._holding:
            self._held[digest] += 1
        try:
            yield
        finally:
            with self._holding:  # Not the mutex: letting go must not wait for another thread's disk.
                self._held[digest] -= 1
                self._held += Counter()  # drops what is at zero

    def check_name(self, name: ModelName, model: Digest, *, replace: bool = False) -> ModelName:
        """The stored form of `name`, if it may be given to `model`. Raises Conflict, Forbidden."""
        with self._mutex:
            stored = self._manifests.find(name)
            if stored is None or self._is(stored, model):
                return stored or name.with_tag(name.tag)
            if not replace:
                raise Conflict(
                    f"the model '{stored}' exists with other content; replace it, or use another name"
                )
            self._require_own(stored)
            return stored

    def add(self, name: ModelName, model: Digest, summary: Summary, *, replace: bool = False) -> Model:
        """Gives the blob `model` a name. A name that has this model already is left as it is.

        A name with another model is Conflict, unless `replace`. Raises BadModel, StorageFailed, Forbidden too.
        """
        with self._mutex:
            name = self.check_name(name, model, replace=replace)
            if self._is(name, model):
                return self._model(self._manifests.read(name))
            size = self.blobs.size(model)
            if size is None:
                raise StorageFailed(f"the model file of '{name}' was removed meanwhile; pull it again")
            return self._define(name, (Layer("model", model, size),), config_of(summary))

    def manifest(self, name: ModelName) -> Manifest:
        """What is stored under exactly this name. Raises BadManifest."""
        return self._manifests.read(name)

    def replaceable(self, name: ModelName) -> ModelName:
        """The stored form of `name`, if mgr may give it to anything. Raises Forbidden."""
        with self._mutex:
            stored = self._manifests.find(name)
            if stored is not None:
                self._require_own(stored)
            return stored or name

    def define(self, name: ModelName, layers: Sequence[Layer], config: Mapping[str, Any]) -> Model:
        """Makes `name` mean these layers, whatever it meant before; the caller holds their blobs.

        Raises BadModel, StorageFailed, Forbidden.
        """
        with self._mutex:
            return self._define(self.replaceable(name), layers, config)

    def copy(self, source: str, destination: ModelName) -> Model:
        """Gives a model one more name, whatever that meant before.

        Raises BadName, ModelNotFound, BadModel, StorageFailed, Forbidden.
        """
        with self._mutex:
            stored = self._lookup(source)
            if destination.key == stored.key:
                return self._model(self._manifests.read(stored))
            self._model(self._manifests.read(stored))  # a broken one is not spread
            return self._write(self.replaceable(destination), self._manifests.data(stored)[0])

    def remove(self, text: str) -> ModelName:
        """Deletes a model's manifest, then those of its blobs that nothing else needs and mgr wrote itself.

        Raises BadName, ModelNotFound, StorageFailed, and Forbidden for another program's model in its store.
        """
        with self._mutex:
            name = self._lookup(text)
            self._require_own(name)
            blobs = self._blobs_of(name)
            self._manifests.delete(name)
            self._resolved = {}
            self._ledger.forget(self._manifests.path(name))
            self._models.pop(name, None)
            self._collect(blobs)
            return name

    def discard(self, digest: Digest) -> None:
        """Deletes a blob if mgr wrote it and nothing needs it."""
        with self._mutex:
            self._collect({digest})

    # ---- names

    def _lookup(self, text: str) -> ModelName:
        name = ModelName.parse(text)
        stored = self._manifests.find(name)
        if stored is None and name.tag == DEFAULT_TAG:  # written or not: some clients add it
            tagged = [n for n in self._manifests.names() if n.with_tag(DEFAULT_TAG).key == name.key]
            if len(tagged) > 1:
                raise AmbiguousTag(text, sorted(n.tag for n in tagged))
            stored = tagged[0] if tagged else None
        if stored is None:
            raise ModelNotFound(text, self._similar(name))
        return stored

    def _similar(self, name: ModelName) -> str | None:
        """A stored model of the same place whose name is close to this one."""
        place = (name.host.lower(), name.namespace.lower())
        known = {
            other.model.lower(): str(other)
            for other in self._manifests.names()
            if (other.host.lower(), other.namespace.lower()) == place
        }
        close = difflib.get_close_matches(name.model.lower(), known, n=1, cutoff=0.75)
        return known[close[0]] if close else None

    def _is(self, name: ModelName, model: Digest) -> bool:
        try:
            return model in {layer.digest for layer in self._manifests.read(name).of_kind("model")}
        except BadManifest:
            return False

    # ---- models

    def _model(self, manifest: Manifest) -> Model:
        """Raises BadModel, StorageFailed."""
        layers = manifest.of_kind("model")
        if not layers:
            raise BadManifest(manifest.name, "it has no GGUF model, and no other format is supported")
        if not self.blobs.has(layers[0].digest, layers[0].size):
            raise BadManifest(manifest.name, "its model file is missing or incomplete; pull it again")
        known = self._models.get(manifest.name)
        if known and known[0] == manifest:
            return known[1]
        model = self._read(manifest, layers[0].digest)
        self._models[manifest.name] = (manifest, model)
        return model

    def _read(self, manifest: Manifest, digest: Digest) -> Model:
        summary = self.summary(digest)
        config = _as_object(manifest, self.blobs.read(manifest.config.digest, MAX_TEXT_LAYER))
        projectors = [layer.digest for layer in manifest.of_kind("projector")]
        params: dict[str, Any] = {}
        for layer in manifest.of_kind("params"):
            params |= _as_object(manifest, self.blobs.read(layer.digest, MAX_TEXT_LAYER))
        template, jinja = self._template(manifest)
        heads = tuple(map(self.summary, projectors))
        words = capabilities(summary, heads, claimed_capabilities(config), template if jinja else None)
        return Model(
            name=manifest.name,
            digest=manifest.digest.hex,
            size=manifest.size,
            modified_at=manifest.modified_at,
            path=self.blobs.path(digest),
            model_digest=digest,
            projectors=tuple(map(self.blobs.path, projectors)),
            summary=summary,
            config=config,
            system=next(iter(self._texts(manifest, "system")), None),
            template=template,
            params=params,
            messages=tuple(self._messages(manifest)),
            licenses=self._texts(manifest, "license"),
            capabilities=words,
            adapters=tuple(self.blobs.path(layer.digest) for layer in manifest.of_kind("adapter")),
            jinja_template=jinja,
            projector_heads=heads,
            parent=manifest.of_kind("model")[0].origin,
        )

    def _template(self, manifest: Manifest) -> tuple[str | None, Path | None]:
        """The model's template, and the file of it if that is Jinja. "prompt" is what Ollama once called it."""
        for layer in (*manifest.of_kind("template"), *manifest.of_kind("prompt")):
            text = self.blobs.read(layer.digest, MAX_TEXT_LAYER).decode("utf-8", "replace")
            return text, self.blobs.path(layer.digest) if is_jinja(text) else None
        return None, None

    def _texts(self, manifest: Manifest, kind: str) -> tuple[str, ...]:
        return tuple(
            self.blobs.read(layer.digest, MAX_TEXT_LAYER).decode("utf-8", "replace")
            for layer in manifest.of_kind(kind)
        )

    def _messages(self, manifest: Manifest) -> Iterator[Mapping[str, Any]]:
        for text in self._texts(manifest, "messages"):
            messages = _json(manifest, text.encode())
            if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
                raise BadManifest(manifest.name, "its messages are not a list of objects")
            yield from messages

    # ---- who wrote what

    def _make_folders(self) -> None:
        mine = self._root / "mgr"
        created = not (self._root / "blobs").exists() and not (self._root / "manifests").exists()
        mine.mkdir(parents=True, exist_ok=True)
        if created:
            self._creation.touch()
        for name in ("blobs", "manifests"):
            (self._root / name).mkdir(exist_ok=True)

    @property
    def _creation(self) -> Path:
        return self._root / "mgr" / "created"

    def _require_own(self, name: ModelName) -> None:
        if not self._creation.exists() and not self._ledger.wrote(self._manifests.path(name)):
            raise Forbidden(
                f"the model '{name}' was put into this store by another program, and only that one may change it"
            )

    def _record(self, name: ModelName) -> None:
        path = self._manifests.path(name)
        try:
            self._ledger.record(path, path.stat().st_mtime_ns)
        except OSError as error:
            raise storage_failed(error, f"record the model '{name}'") from error

    def _define(self, name: ModelName, layers: Sequence[Layer], config: Mapping[str, Any]) -> Model:
        data = json.dumps(config, separators=(",", ":")).encode()
        return self._write(name, encode(Layer("config", self._put(data), len(data)), tuple(layers)))

    def _write(self, name: ModelName, manifest: bytes) -> Model:
        old = self._blobs_of(name)
        self._manifests.write(name, manifest)
        self._resolved = {}
        self._record(name)
        self._collect(old)
        return self._model(self._manifests.read(name))

    def _put(self, data: bytes) -> Digest:
        digest = Digest.of(data)
        return digest if self.blobs.has(digest, len(data)) else self.blobs.put(data)

    def _blobs_of(self, name: ModelName) -> frozenset[Digest]:
        try:
            return self._manifests.read(name).blobs
        except BadManifest:
            return frozenset()

    def _collect(self, candidates: Collection[Digest]) -> None:
        """Deletes the candidates that no manifest and no pull needs. While a manifest cannot be read, none."""
        with self._holding:
            needed = set(self._held)
        try:
            for name in self._manifests.names():
                needed |= self._manifests.read(name).blobs
        except (BadManifest, StorageFailed) as error:
            log.warning("blobs are kept, because a manifest cannot be read: %s", error.message)
            return
        for digest in sorted(set(candidates) - needed, key=str):
            if self.blobs.delete(digest):
                self._summaries.delete(digest)


def _as_object(manifest: Manifest, data: bytes) -> dict[str, Any]:
    value = _json(manifest, data)
    if not isinstance(value, dict):
        raise BadManifest(manifest.name, "its config or parameters are not a JSON object")
    return value


def _json(manifest: Manifest, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise BadManifest(manifest.name, "its config, parameters or messages are not JSON") from None
