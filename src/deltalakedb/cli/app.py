"""The commands put together, and how their errors are told."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from deltalakedb.cli import doctor, log, maintenance, mirror, serve, tables
from deltalakedb.cli.output import console, printable
from deltalakedb.errors import DeltaLakeDbError

app = typer.Typer(
    name="deltalakedb",
    help="Delta Lake tables whose transaction log lives in a SQL database.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(mirror.app, name="mirror")
tables.register(app)
log.register(app)
maintenance.register(app)
doctor.register(app)
serve.register(app)

_debug = False


@app.callback()
def _options(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    global _debug  # noqa: PLW0603 - set once, before the command runs
    _debug = debug


@app.command()
def demo(
    *,
    folder: Annotated[
        Path | None, typer.Option(help="A new or empty folder for its data; any, unless named.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Go on serving the operations page until Ctrl-C.")
    ] = False,
) -> None:
    """Tell the whole story on SQLite and local files, with Spark and delta-rs."""
    from deltalakedb.demo import main

    raise typer.Exit(main(folder=folder, keep=keep))


def run(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""
    try:
        app(list(arguments), prog_name="deltalakedb")
    except DeltaLakeDbError as error:
        _tell(error)
        return 1
    except KeyboardInterrupt:
        console(stderr=True).print("Interrupted.")
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _tell(error: DeltaLakeDbError) -> None:
    if _debug:
        traceback.print_exception(error, file=sys.stderr)
    console(stderr=True).print(f"Error: {printable(str(error))}", markup=False, style="red")
