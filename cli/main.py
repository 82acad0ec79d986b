"""The command `mgr`: its commands, and what every one of them does with an error.

Exit codes: 0 done, 1 failed, 2 wrong usage, 78 a setting is wrong, 130 interrupted, 141 the reader of the output
went away.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli import output
from cli.commands.bench import bench
from cli.commands.doctor import doctor
from cli.commands.engine import app as engine
from cli.commands.list import list_models
from cli.commands.ps import ps
from cli.commands.pull import pull
from cli.commands.rm import rm
from cli.commands.run import run
from cli.commands.serve import serve
from cli.commands.show import show
from cli.commands.stop import stop
from cli.errors import CliError
from cli.version import mgr_version
from daemon.errors import MgrError, Misconfigured

EXIT_MISCONFIGURED = 78
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


@contextmanager
def _one_line() -> Iterator[None]:
    """Turns what a command raises into one line and an exit code."""
    try:
        yield
    except CliError as error:
        output.error(error.message)
        raise typer.Exit(error.exit_code) from None
    except Misconfigured as error:
        output.error(error.message)
        raise typer.Exit(EXIT_MISCONFIGURED) from None
    except MgrError as error:
        output.error(error.message)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        raise typer.Exit(EXIT_BROKEN_PIPE) from None
    except OSError as problem:  # from the help, which typer writes itself
        output.silence(sys.stdout)
        output.error(problem.strerror or str(problem))
        raise typer.Exit(1) from None


class _Commands(TyperGroup):
    """`--version` and `--help` answer while the context is made, a command when it is invoked."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _one_line():
            return super().invoke(ctx)


app = typer.Typer(
    name="mgr",
    help="Keeps local language models and runs them.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        output.line(f"mgr {mgr_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(serve)
app.command()(pull)
app.command()(run)
app.command("list")(list_models)
app.command("ls", hidden=True)(list_models)
app.command()(ps)
app.command()(show)
app.command()(stop)
app.command()(rm)
app.command()(bench)
app.command()(doctor)
app.add_typer(engine, name="engine")


def main() -> None:
    output.prepare()
    app(prog_name="mgr")


if __name__ == "__main__":
    main()
