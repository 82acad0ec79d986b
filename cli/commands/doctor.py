"""`mgr doctor`: is everything here that mgr needs, and what would it use?"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli import humanize, output
from cli.client import Json, connect
from cli.commands.engine import workplace
from cli.errors import CliError, NotRunning
from cli.version import mgr_version
from daemon.errors import MgrError, Misconfigured
from daemon.settings import Settings, config_path, load

if TYPE_CHECKING:
    from daemon.engines.gpus import Gpu
    from daemon.engines.places import Survey
    from daemon.engines.versions import Engines

# What a GPU is reached by: NVIDIA's, the render nodes of all others, AMD's compute device, Windows' under WSL.
GPU_DEVICES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "dri/renderD*", "kfd", "dxg")
LOW_DISK_BYTES = 5 * 10**9


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    state: Literal["ok", "warn", "fail"]
    told: str


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Check this machine: settings, daemon, engines, GPUs, store. Ends with 1 if something is broken."""
    checks = list(_checks())
    if as_json:
        output.dump({"checks": [asdict(check) for check in checks]})
    else:
        output.line(output.aligned([(check.state, check.name, check.told) for check in checks]))
    if any(check.state == "fail" for check in checks):
        raise typer.Exit(1)


def _checks() -> Iterator[Check]:
    python = sys.version.split()[0]
    yield Check("mgr", "ok", f"version {mgr_version()}, Python {python} on {sys.platform}")
    try:
        settings = load()
    except Misconfigured as error:
        yield Check("settings", "fail", error.message)
        return
    yield _settings(config_path())
    yield _daemon(settings)
    yield from _engine_checks(settings)
    yield device_check(openable(Path("/dev")))
    yield store_check(settings.models)


def _settings(path: Path) -> Check:
    where = f"from {path}" if os.path.exists(path) else f"no file {path}"
    return Check("settings", "ok", f"{where}; MGR_* in the environment goes before it")


def _daemon(settings: Settings) -> Check:
    client = connect(settings)
    try:
        return daemon_check(settings.host, client.version())
    except NotRunning as error:
        return Check("daemon", "warn", error.message)
    except CliError as error:
        return Check("daemon", "fail", error.message)


def daemon_check(address: object, version: Json) -> Check:
    """`version` is the answer of `/api/version`."""
    told = version.get("mgr")
    if not isinstance(told, dict):
        return Check(
            "daemon", "fail", f"another server than mgr answers on {address}; stop it, or set MGR_HOST"
        )
    engine = told.get("engine")
    used = f"{engine.get('kind')} {engine.get('version')}" if isinstance(engine, dict) else "none yet"
    return Check("daemon", "ok", f"mgr {told.get('version')} answers on {address}; its engine: {used}")


def _engine_checks(settings: Settings) -> Iterator[Check]:
    import asyncio

    from daemon.engines.gpus import present
    from daemon.engines.places import survey
    from daemon.engines.versions import Engines

    engines = Engines(settings.engines)
    try:
        yield folder_check(engines)
        with workplace() as folder:
            found = asyncio.run(survey(settings.engine, engines, folder))
    except MgrError as error:
        yield Check("engines", "fail", error.message)
        return
    yield from place_checks(found)
    yield engine_check(found)
    yield gpu_check(present(), found)


def folder_check(engines: "Engines") -> Check:
    """The folder of versions, and what is broken in it."""
    broken, count = engines.broken(), len(engines.list())
    if broken:
        names = "; ".join(f"{it.name}: {it.reason}" for it in broken)
        return Check("engines", "warn", f"in {engines.folder} cannot be used: {names}")
    return Check("engines", "ok", f"{count} built, in {engines.folder}")


def place_checks(found: "Survey") -> Iterator[Check]:
    """A line for each place where something is, or should be."""
    for it in found.findings:
        if it.engine is not None:
            lacks = f"; it does not take {', '.join(it.engine.not_taken)}" if it.engine.not_taken else ""
            yield Check("found", "ok", f"{it.place.shown}: {it.engine.version}{lacks}")
        elif it.place.command is not None:
            yield Check("found", "warn", f"{it.place.shown} cannot be used: {it.reason}")
        elif it.place.kind == "configured":
            yield Check("found", "warn", f"{it.place.shown} is not there")


def engine_check(found: "Survey") -> Check:
    if found.used is None:
        return Check("engine", "fail", found.why)
    used = found.used
    version = used.engine.version if used.engine else ""
    return Check("engine", "ok", f"{used.place.shown}, {version}, is used: {found.why}")


def gpu_check(gpus: "Sequence[Gpu]", found: "Survey") -> Check:
    from daemon.engines.watch import hint

    engine = found.used.engine if found.used else None
    if engine is not None and (advice := hint(gpus, engine)):
        return Check("gpu", "warn", advice)
    names = ", ".join(gpu.name for gpu in gpus)
    used = "".join(f"; the engine sees {device}" for device in (engine and engine.devices) or ())
    return Check("gpu", "ok", f"{names or 'none was found'}{used}")


def openable(folder: Path) -> dict[str, str]:
    """For each GPU device file below `folder`, why this user cannot open it, or ""."""
    paths = [path for pattern in GPU_DEVICES for path in sorted(folder.glob(pattern))]
    return {str(path): _why_not(path) for path in paths}


def _why_not(path: Path) -> str:
    """Opened, not looked at: a service's device list refuses what the file's mode allows."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.strerror or "it cannot be opened"
    return ""


def device_check(devices: dict[str, str]) -> Check:
    """`devices` as `openable` tells them."""
    refused = "; ".join(f"{path}: {reason}" for path, reason in devices.items() if reason)
    if refused:
        return Check("devices", "warn", f"this user cannot open {refused}")
    return Check(
        "devices", "ok", f"can be opened: {', '.join(devices)}" if devices else "no GPU device files"
    )


def store_check(models: Path) -> Check:
    """The store's folder: there or to be made, writable, with room, and how many models are in it."""
    import shutil

    there = next((path for path in (models, *models.parents) if os.path.exists(path)), models)
    if not (os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)):
        return Check(
            "store", "fail", f"{models} cannot be written by this user; set MGR_MODELS, or its owner"
        )
    free = shutil.disk_usage(there).free
    count = sum(os.path.isfile(path) for path in (models / "manifests").rglob("*"))
    told = f"{count} models in {models}, {humanize.size(free)} free"
    return Check("store", "ok" if free >= LOW_DISK_BYTES else "warn", told)
