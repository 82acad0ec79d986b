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
    if installed := rows(engines, datetime.now(UTC)):
        output.table(_HEADERS, installed)
    else:
        output.line("No engine was built yet; `mgr engine build` builds one.")
    output.line("")
    output.table(("ELSEWHERE", "VERSION"), elsewhere(found))
    output.line(f"\n{used(found)}")


@app.command()
def use(name: Annotated[str, typer.Argument(help="A name from the list; also wheel, or path.")]) -> None:
    """Choose the engine for all loads from now on. It is tested first."""
    import asyncio

    from daemon.engines.places import finder_of, overruled
    from daemon.engines.smoke import SmokeFailed, smoke_test_of
    from daemon.engines.versions import Engines

    settings = load()
    engines = Engines(settings.engines)
    with workplace() as folder:
        output.note(f"testing {name}")
        try:
            report = asyncio.run(smoke_test_of(finder_of(name, engines, folder), folder))
        except SmokeFailed as error:
            kept = f"'{engines.chosen()}' stays in use" if engines.chosen() else "nothing was changed"
            raise CliError(f"the engine '{name}' did not pass its test, {kept}: {error.message}") from None
    engines.use(name)
    output.note(f"mgr uses {name} ({report.version}) from the next load on")
    if remark := overruled(settings.engine, name):
        output.announce(remark)


@app.command()
def remove(name: Annotated[str, typer.Argument(help="A name from the list.")]) -> None:
    """Delete an engine that is not in use, and what it was compiled in."""
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

    from daemon.engines.places import describe, finder, finder_of
    from daemon.engines.versions import Engines

    settings = load()
    engines = Engines(settings.engines)
    with workplace() as folder:
        places = finder_of(name, engines, folder) if name else finder(settings.engine, engines, folder)
        facts = describe(asyncio.run(places.find()), engines)
    if as_json:
        output.dump(facts)
    elif flags:
        output.line("\n".join(facts["flags"]))
    else:
        output.line(output.aligned([(key, _shown(value)) for key, value in _in_short(facts).items()]))


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder in which engines may run; what they say there is not for the terminal."""
    import logging
    import tempfile

    logging.getLogger("mgr").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="mgr-") as folder:
        yield Path(folder)


def rows(engines: "Engines", now: datetime) -> list[tuple[str, ...]]:
    """One row a version; in the last place a broken one says what is wrong with it."""
    current, previous = engines.current(), engines.previous()
    listed: list[tuple[str, ...]] = [
        (
            it.name,
            "current" if it == current else "previous" if it == previous else "",
            it.record.version,
            it.record.backend,
            humanize.ago(it.record.built, now),
        )
        for it in engines.list()
    ]
    return listed + [(it.name, "broken", "-", "-", it.reason) for it in engines.broken()]


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
        return "No load would find an engine; `mgr engine build` builds one."
    version = found.used.engine.version if found.used.engine else ""
    return f"The next load uses {found.used.place.shown}, {version}: {found.why}."


def as_object(engines: "Engines", found: "Survey") -> Json:
    current, previous = engines.current(), engines.previous()
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
        "broken": [asdict(it) for it in engines.broken()],
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


def _in_short(facts: Json) -> Json:
    line = {"configure": " ".join(facts["configure"])} if "configure" in facts else {}
    return {**facts, **line, "flags": len(facts["flags"])}


def _shown(value: object) -> str:
    match value:
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value)
