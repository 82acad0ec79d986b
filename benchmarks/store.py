"""The store: pulling a local file."""

import shutil
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.daemons import Daemon
from benchmarks.figures import Row, ratio_row
from benchmarks.options import Options
from benchmarks.pairs import pairs
from benchmarks.processes import MGR, run_ms
from benchmarks.real import MODEL, make_store
from daemon.store.models import Store

GROUP = "store"


async def measure(options: Options) -> list[Row]:
    """`mgr pull ./model.gguf`, the whole command with a daemon that runs, over `cp` and `sha256sum` of the file, one
    after the other. The file lies in the page cache; what was pulled is removed before the next turn."""
    with tempfile.TemporaryDirectory(prefix="mgr-b-") as name:
        folder = Path(name) / "mgr"
        make_store(folder, options)
        file = Path(name) / "model.gguf"
        shutil.move(Store(folder / "models").open().resolve(MODEL).path, file)
        empty = Path(name) / "empty"
        empty.mkdir()
        with Daemon(empty) as daemon:
            pulled, copied = await pairs(
                partial(_pull, daemon, file),
                partial(_copy, empty, file),
                options.count(5),
                options,
                "ms of a pull",
            )
        megabytes = file.stat().st_size / 1e6
    row = ratio_row(GROUP, "pull of a local file over cp and sha256sum", pulled, copied, "ms")
    return [row.with_detail(f"{megabytes:.0f} MB")]


async def _pull(daemon: Daemon, file: Path) -> float:
    took = run_ms([*MGR, "pull", str(file), "--name", "pulled"], daemon.folder, port=daemon.port)
    run_ms([*MGR, "rm", "pulled"], daemon.folder, port=daemon.port)
    return took


async def _copy(folder: Path, file: Path) -> float:
    copy = folder / "copy.gguf"
    took = run_ms(["cp", str(file), str(copy)], folder) + run_ms(["sha256sum", str(copy)], folder)
    copy.unlink()
    return took
