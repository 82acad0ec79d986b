"""Manifests by name, in Ollama's layout: `manifests/<host>/<namespace>/<model>/<tag>`, one JSON file each.

Source of the format: OCI image manifests with Ollama's media types. Pulled and created ones look alike.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daemon.errors import BadModel, InvalidRequest, StorageFailed
from daemon.names import BadName, ModelName
from daemon.store.blobs import Digest
from daemon.store.files import read_regular, storage_failed, sync_folder, write_durably

MAX_MANIFEST = 4 * 1024 * 1024
MAX_LAYERS = 64
MEDIA_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.ollama.image."

log = logging.getLogger(__name__)


class BadManifest(BadModel):
    """A manifest that cannot be used; `reason` is a clause."""

    def __init__(self, name: ModelName, reason: str) -> None:
        super().__init__(f"the manifest of '{name}' cannot be used: {reason}")


@dataclass(frozen=True, slots=True)
class Layer:
    """`kind` is what follows LAYER_TYPE ("model", "template", ...), or the whole media type of another family;
    `origin` is the name of the model that it was taken from."""

    kind: str
    digest: Digest
    size: int
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """`digest` is the sha256 of the file's bytes."""

    name: ModelName
    digest: Digest
    modified_at: datetime
    config: Layer
    layers: tuple[Layer, ...]

    @property
    def size(self) -> int:
        """Bytes of all blobs it names."""
        return self.config.size + sum(layer.size for layer in self.layers)

    def of_kind(self, kind: str) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer.kind == kind)

    @property
    def blobs(self) -> frozenset[Digest]:
        return frozenset({self.config.digest, *(layer.digest for layer in self.layers)})


def encode(config: Layer, layers: tuple[Layer, ...]) -> bytes:
    def entry(layer: Layer, media_type: str) -> dict[str, Any]:
        value = {"mediaType": media_type, "digest": str(layer.digest), "size": layer.size}
        return {**value, "from": layer.origin} if layer.origin else value

    manifest = {
        "schemaVersion": 2,
        "mediaType": MEDIA_TYPE,
        "config": entry(config, CONFIG_TYPE),
        "layers": [entry(layer, LAYER_TYPE + layer.kind) for layer in layers],
    }
    return json.dumps(manifest, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes) -> tuple[Layer, tuple[Layer, ...]]:
    """The config and the layers. Raises ValueError with a clause that says what is wrong."""
    try:
        manifest = json.loads(data, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError:
        raise ValueError("it is not JSON") from None
    if not isinstance(manifest, dict) or "manifests" in manifest:
        raise ValueError("it is not an image manifest")
    layers = manifest.get("layers")
    if not isinstance(layers, list) or not 1 <= len(layers) <= MAX_LAYERS:
        raise ValueError(f"it does not have 1 to {MAX_LAYERS} layers")
    return _layer(manifest.get("config")), tuple(_layer(layer) for layer in layers)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("it has a key twice")
    return value


def _layer(value: object) -> Layer:
    if not isinstance(value, dict):
        raise ValueError("its config or a layer is not an object")
    media_type, digest, size = value.get("mediaType"), value.get("digest"), value.get("size")
    if not isinstance(media_type, str) or not isinstance(digest, str):
        raise ValueError("a layer has no media type or no digest")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**63:
        raise ValueError("a layer has no valid size")
    origin = value.get("from")
    with suppress(InvalidRequest):
        return Layer(
            media_type.removeprefix(LAYER_TYPE),
            Digest.parse(digest),
            size,
            origin if isinstance(origin, str) else "",
        )
    raise ValueError("a layer's digest is not a sha256")


class Manifests:
    """The manifests of one store. Calls do blocking disk I/O and may come from any thread."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "manifests"
        self._reported: set[tuple[ModelName, int]] = set()

    def path(self, name: ModelName) -> Path:
        """Raises StorageFailed when a link leads out of the folder."""
        path = self._folder / name.path
        if any(folder.is_symlink() for folder in list(path.parents)[:3]):
            raise StorageFailed(f"the manifest of '{name}' is reached through a link, which is not followed")
        return path

    def names(self) -> list[ModelName]:
        """Every name that there is a file for. Links are not followed; what is not a name is passed over.

        Raises StorageFailed when a folder cannot be listed: a name too few here would be blobs too few there.
        """
        found = []
        try:
            for host, namespace, model, tag in _walk(self._folder, 4):
                with suppress(BadName):
                    found.append(ModelName(model, tag, namespace, host))
        except OSError as error:
            unlisted = Path(error.filename or self._folder).relative_to(self._folder.parent)
            raise storage_failed(error, f"list its folder '{unlisted}'") from error
        return found

    def find(self, name: ModelName) -> ModelName | None:
        """The stored name that means the same, whatever the case of its letters. Raises StorageFailed."""
        if self.path(name).is_file():
            return name.with_tag(name.tag)
        return next((stored for stored in self.names() if stored.key == name.key), None)

    def read(self, name: ModelName) -> Manifest:
        """The manifest under exactly this name. Raises BadManifest."""
        data, mtime = self.data(name)
        try:
            config, layers = decode(data)
        except ValueError as error:
            raise BadManifest(name, str(error)) from error
        return Manifest(name, Digest.of(data), datetime.fromtimestamp(mtime, UTC), config, layers)

    def data(self, name: ModelName) -> tuple[bytes, float]:
        """The file itself, and when it was modified, in seconds since 1970. Raises BadManifest."""
        try:
            path = self.path(name)
            return read_regular(path, MAX_MANIFEST), path.lstat().st_mtime
        except OSError as error:
            raise BadManifest(name, error.strerror or "it cannot be read") from error

    def readable(self) -> list[Manifest]:
        """All that can be read; each of the others is named once in the log. Raises StorageFailed as `names` does."""
        manifests = []
        for name in self.names():
            try:
                manifests.append(self.read(name))
            except (BadManifest, StorageFailed) as error:
                self.report(name, error.message)
        return manifests

    def report(self, name: ModelName, reason: str) -> None:
        """Logs that a model is left out, once for each state of its manifest."""
        try:
            key = (name, (self._folder / name.path).lstat().st_mtime_ns)
        except OSError:
            return
        if key not in self._reported:
            self._reported.add(key)
            log.warning("left out model '%s': %s", name, reason)

    def write(self, name: ModelName, data: bytes) -> None:
        """Raises StorageFailed."""
        try:
            write_durably(self.path(name), data)
        except OSError as error:
            raise storage_failed(error, f"write the manifest of '{name}'") from error

    def delete(self, name: ModelName) -> None:
        """Removes the manifest and the folders that it leaves empty. Raises StorageFailed."""
        path = self.path(name)
        try:
            path.unlink(missing_ok=True)
            sync_folder(path.parent)
        except OSError as error:
            raise storage_failed(error, f"delete the manifest of '{name}'") from error
        for folder in list(path.parents)[:3]:
            try:
                folder.rmdir()
            except OSError:
                return


def _walk(folder: Path, depth: int) -> Iterator[tuple[str, ...]]:
    """Relative parts of the regular files exactly `depth` levels down; a folder that is removed meanwhile has none."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if depth == 1:
            if entry.is_file(follow_symlinks=False):
                yield (entry.name,)
        elif entry.is_dir(follow_symlinks=False):
            for rest in _walk(Path(entry.path), depth - 1):
                yield (entry.name, *rest)
