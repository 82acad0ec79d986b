"""A record of what mgr wrote into the store, so that it never deletes what another program wrote.

A marker `mgr/written/<path in the store>` holds the modification time of the file that mgr put there, in
nanoseconds. Another program that replaces or touches the file takes it over: the times no longer agree.
"""

from pathlib import Path

from daemon.store.files import read_regular


class Ledger:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._markers = root / "mgr" / "written"

    def record(self, path: Path, mtime_ns: int) -> None:
        """mgr wrote `path`, or is about to rename a file with this time to it. Raises OSError."""
        marker = self._marker(path)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(str(mtime_ns), "ascii")

    def wrote(self, path: Path) -> bool:
        """Whether what is at `path` now was written by mgr."""
        try:
            return read_regular(self._marker(path), 64) == str(path.lstat().st_mtime_ns).encode()
        except OSError:
            return False

    def forget(self, path: Path) -> None:
        self._marker(path).unlink(missing_ok=True)

    def _marker(self, path: Path) -> Path:
        return self._markers / path.relative_to(self._root)
