"""Summaries of GGUF headers, kept as `mgr/gguf/<sha256>.json` beside the blobs and rebuilt when they are missing."""

from contextlib import suppress
from pathlib import Path

from daemon.store.blobs import Blobs, Digest
from daemon.store.files import read_regular, write_durably
from daemon.store.gguf import MAX_HEADER, read_summary
from daemon.store.summary import Summary


class Summaries:
    def __init__(self, root: Path, blobs: Blobs) -> None:
        self._folder = root / "mgr" / "gguf"
        self._blobs = blobs

    def get(self, digest: Digest) -> Summary:
        """Raises BadModel, StorageFailed."""
        path = self._path(digest)
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return Summary.from_json(read_regular(path, 8 * MAX_HEADER))
        summary = read_summary(self._blobs.path(digest))
        with suppress(OSError):  # It is only a cache.
            write_durably(path, summary.to_json())
        return summary

    def delete(self, digest: Digest) -> None:
        with suppress(OSError):
            self._path(digest).unlink(missing_ok=True)

    def _path(self, digest: Digest) -> Path:
        return self._folder / f"{digest.hex}.json"
