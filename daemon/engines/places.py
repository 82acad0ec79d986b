"""Which engines this machine has, which one is used, and why."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from daemon.engines.versions import AUTO, BORROWED, Engines
from daemon.errors import LoadFailed, NotFound
from daemon.runner.engine import CHOICES, Engine, EngineFinder, Finding

CURRENT_BUILD = "the current build"
PREVIOUS_BUILD = "the previous build"

# What `mgr engine build` made, which is listed by name.
OWN_BUILDS = frozenset({CURRENT_BUILD, PREVIOUS_BUILD})

_SUBMODULE_BUILD = Path(__file__).parents[2] / "native/llama.cpp/build/bin/llama-server"


def finder(choice: str, engines: Engines, folder: Path, search_path: str | None = None) -> EngineFinder:
    """`choice` is the setting ENGINE; `folder` is where an engine runs; `search_path` is PATH, this process's own
    where none is given."""
    current, previous = engines.programs()
    built = (
        (CURRENT_BUILD, current),
        (PREVIOUS_BUILD, previous),
        ("a cmake build in native/llama.cpp", _SUBMODULE_BUILD),
    )

    def preferred() -> str:
        return chosen if (chosen := engines.chosen()) in BORROWED else ""

    path = os.pathsep.join(os.get_exec_path()) if search_path is None else search_path
    return EngineFinder(choice, built, path, folder, preferred)


def finder_of(name: str, engines: Engines, folder: Path) -> EngineFinder:
    """Finds exactly the engine that `mgr engine use` calls so. Raises InvalidRequest and NotFound."""
    if name in BORROWED:
        return finder(name, engines, folder)
    return EngineFinder("built", [(f"the engine '{name}'", engines.get(name).program)], "", folder)


async def found(name: str | None, choice: str, engines: Engines, folder: Path) -> Engine:
    """The engine that `mgr engine use` calls so; without a name the one that a load would use, where `choice` is the
    setting ENGINE. Raises InvalidRequest, and NotFound with the reason."""
    if name is not None:
        [finding] = await finder_of(name, engines, folder).survey()
        if finding.engine is None:
            raise NotFound(_lacking(finding))
        return finding.engine
    places = finder(choice, engines, folder)
    try:
        return await places.find()
    except LoadFailed:
        raise NotFound(decide(choice, engines.chosen(), await places.survey()).why) from None


@dataclass(frozen=True, slots=True)
class Survey:
    """What is at every place, also those that the setting leaves out; `used` is None where no engine was found, and
    `why` then says what to do."""

    findings: Sequence[Finding]
    used: Finding | None
    why: str


async def survey(choice: str, engines: Engines, folder: Path) -> Survey:
    """Asks every engine of this machine what it is. `choice` is the setting ENGINE; `folder` as in `finder`."""
    findings = await finder(AUTO, engines, folder).survey()
    if choice not in CHOICES:
        findings = [*await finder(choice, engines, folder).survey(), *findings]
    return decide(choice, engines.chosen(), findings)


def decide(choice: str, chosen: str, findings: Sequence[Finding]) -> Survey:
    """`findings` are in the order of the search; `chosen` is what `mgr engine use` was told last."""
    kind = choice if choice in CHOICES else "configured"
    considered = [finding for finding in findings if kind in (AUTO, finding.place.kind)]
    used = next((finding for finding in considered if finding.engine is not None), None)
    if used is None:
        return Survey(findings, None, _nothing(choice, considered))
    broken = next((it for it in considered[: considered.index(used)] if it.place.command is not None), None)
    if broken is not None:
        why = _lacking(broken)
    elif kind != AUTO:
        why = f"the setting ENGINE is {choice!r}"
    elif used.place.shown == CURRENT_BUILD or used.place.kind == chosen:
        why = "it is the one chosen last"
    else:
        why = "nothing that goes before it is there"
    return Survey(findings, used, why)


def _nothing(choice: str, considered: Sequence[Finding]) -> str:
    """What to do where no place has an engine that works."""
    if choice in (AUTO, "built"):
        broken = "; ".join(_lacking(it) for it in considered if it.place.command is not None)
        return f"{broken or 'no engine was found'}; `mgr engine build` builds one"
    lacking = "; ".join(_lacking(it) for it in considered)
    return f"the setting ENGINE is {choice!r}, and {lacking}; correct it or set it to auto"


def _lacking(finding: Finding) -> str:
    if finding.place.command is None:
        return f"{finding.place.shown} is not there"
    return f"{finding.place.shown} cannot be used: {finding.reason}"


def overruled(choice: str, name: str) -> str:
    """What to say of `mgr engine use NAME` where the setting ENGINE, `choice`, leaves no choice; else ""."""
    kind = name if name in (AUTO, *BORROWED) else "built"
    if choice in (AUTO, kind):
        return ""
    return f"the setting ENGINE is {choice!r}, which goes before this choice; set it to auto"


def describe(engine: Engine, engines: Engines) -> dict[str, Any]:
    """What is known of an engine, in the order in which a person wants it; `devices` is None where it tells none."""
    built = next((it for it in engines.list() if str(it.program.resolve()) == engine.command[-1]), None)
    facts: dict[str, Any] = {"name": built.name if built else engine.kind, "version": engine.version}
    if built is not None:
        record = asdict(built.record)
        facts |= {key: value for key, value in record.items() if key not in facts}
    return facts | {
        "program": " ".join(engine.command),
        "devices": engine.devices,
        "flags": sorted(engine.flags),
        "not taken": engine.not_taken,
    }
