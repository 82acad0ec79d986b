"""`mgr engine`: the engines of this machine, and which one is used."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import humanize, output
from cli.client import Json
from cli.commands.build import build
from cli.errors import CliError
from daemon.settings import load

if TYPE_CHECKING:
    from daemon.engines.places import Survey
    from daemon.engines.versions import Engines

app = typer.Typer(
    help="Build engines, choose one, see what they can do.", no_args_is_help=True, rich_markup_mode=None
)

app.command()(build)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
_HEADERS = ("NAME", "STATE", "VERSION", "BACKEND", "BUILT")


@app.command("list")
def list_engines(as_json: AsJson = False) -> None:
    """List the engines that were built, those found elsewhere, and the one that is used."""
    import asyncio

    from daemon.engines.places import survey
    from daemon.engines.versions import Engines

    settings = load()
    engines = Engines(settings.engines)
    with workplace() as folder:
        found = asyncio.run(survey(settings.engine, engines, folder))
    if as_json:
        output.dump(as_object(engines, found))
        return
    if installed := rows(engines, found, datetime.now(UTC)):
        output.table(_HEADERS, installed)
    else:
        output.line("No engine was built yet; `mgr engine build` builds one.")
    output.line("")
    output.table(("ELSEWHERE", "VERSION"), elsewhere(found))
    if left := engines.leftover_bytes():
        output.line(
            f"\nBuilds that no engine here needs take {humanize.size(left)}; `mgr engine remove builds` deletes those "
            "that are not running."
        )
    output.line(f"\n{used(found)}")


@app.command()
def use(
    name: Annotated[
        str, typer.Argument(help="A name from the list; also wheel, or path; auto takes the first there is.")
    ],
) -> None:
    """Choose the engine for all loads from now on. It is tested first."""
    from daemon.engines.places import overruled
    from daemon.engines.versions import AUTO, Engines

    settings = load()
    engines = Engines(settings.engines)
    tested = "" if name == AUTO else f" ({_tested(name, engines)})"
    engines.use(name)
    output.note(f"mgr uses {name}{tested} from the next load on")
    if remark := overruled(settings.engine, name):
        output.announce(remark)


def _tested(name: str, engines: "Engines") -> str:
    """The version of an engine that passed its test."""
    import asyncio

    from daemon.engines.places import finder_of
    from daemon.engines.smoke import SmokeFailed, smoke_test_of

    with workplace() as folder:
        output.note(f"testing {name}")
        try:
            return asyncio.run(smoke_test_of(finder_of(name, engines, folder), folder)).version
        except SmokeFailed as error:
            raise CliError(
                f"the engine '{name}' did not pass its test, and nothing was changed: {error.message}"
            ) from None


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="A name from the list; builds for what builds left behind.")],
) -> None:
    """Delete an engine that is not in use, and what was compiled that no engine here needs, unfinished builds too."""
    from daemon.engines.versions import Engines

    Engines(load().engines).remove(name)
    output.note(f"removed {name}")


@app.command()
def info(
    name: Annotated[
        str | None, typer.Argument(help="A name from the list, wheel or path; else the one used.")
    ] = None,
    flags: Annotated[bool, typer.Option("--flags", help="Print every flag that it knows.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what an engine is, the devices it would use, and the flags it knows."""
    import asyncio

    from daemon.engines.places import describe, found
    from daemon.engines.versions import Engines

    settings = load()
    engines = Engines(settings.engines)
    with workplace() as folder:
        facts = describe(asyncio.run(found(name, settings.engine, engines, folder)), engines)
    if as_json:
        output.dump(facts)
    elif flags:
        output.line("\n".join(facts["flags"]))
    else:
        output.line(output.aligned(in_short(facts)))


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder in which engines may run."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="mgr-") as folder:
        yield Path(folder)


def rows(engines: "Engines", found: "Survey", now: datetime) -> list[tuple[str, ...]]:
    """One row a version, as the engine itself says it where it was asked; a broken one says last what is wrong."""
    current, previous, chosen = engines.current(), engines.previous(), engines.chosen()
    asked = {it.engine.command[-1]: it.engine.version for it in found.findings if it.engine}
    listed: list[tuple[str, ...]] = [
        (
            it.name,
            "current" if it == current else "previous" if it == previous else "",
            asked.get(str(it.program.resolve()), it.record.version),
            it.record.backend,
            humanize.ago(it.record.built, now),
        )
        for it in engines.list()
    ]
    return listed + [
        (it.name, "current, broken" if it.name == chosen else "broken", "-", "-", it.reason)
        for it in engines.broken()
    ]


def elsewhere(found: "Survey") -> list[tuple[str, ...]]:
    """One row a place that `mgr engine build` did not fill."""
    from daemon.engines.places import OWN_BUILDS

    return [
        (it.place.shown, it.engine.version if it.engine else it.reason)
        for it in found.findings
        if it.place.shown not in OWN_BUILDS
    ]


def used(found: "Survey") -> str:
    """Which engine the daemon uses at its next load, and why."""
    if found.used is None:
        return f"{found.why[0].upper()}{found.why[1:]}."
    version = found.used.engine.version if found.used.engine else ""
    return f"The next load uses {found.used.place.shown}, {version}: {found.why}."


def as_object(engines: "Engines", found: "Survey") -> Json:
    current, previous, chosen = engines.current(), engines.previous(), engines.chosen()
    return {
        "installed": [
            {
                **asdict(it.record),
                "folder": str(it.folder),
                "current": it == current,
                "previous": it == previous,
            }
            for it in engines.list()
        ],
        "broken": [{**asdict(it), "current": it.name == chosen} for it in engines.broken()],
        "leftover_bytes": engines.leftover_bytes(),
        "places": [
            {
                "kind": it.place.kind,
                "place": it.place.shown,
                "version": it.engine.version if it.engine else None,
                "reason": it.reason,
                "used": it is found.used,
            }
            for it in found.findings
        ],
        "why": found.why,
    }


def in_short(facts: Json) -> list[tuple[str, str]]:
    """The facts for a person, a row each, without those that are empty."""
    short = {**facts, "flags": len(facts["flags"])}
    if facts["devices"] is not None and not facts["devices"]:
        short["devices"] = "the CPU only"
    if "configure" in facts:
        short["configure"] = " ".join(facts["configure"])
    return [(key, _shown(value)) for key, value in short.items() if value not in ("", (), [])]


def _shown(value: object) -> str:
    match value:
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)
