"""The commands put together, and how their errors are told: one paragraph, no traceback."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from deltalakedb.cli import doctor, log, maintenance, mirror, serve, tables
from deltalakedb.cli.output import as_commands, console, printable
from deltalakedb.errors import DeltaLakeDbError

app = typer.Typer(
    name="deltalakedb",
    help="Delta Lake tables whose transaction log lives in a SQL database.\n\n"
    "Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 done, but something is not as it "
    "should be (drift was found, versions could not be published, a check failed); "
    "130 interrupted.",
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

# typer has a click of its own since 0.24 and used the package before: this is the one in use.
_WrongUsage: type[Any] = typer.BadParameter.mro()[1]

_debug = False


def _tell_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        sys.stdout.write(f"deltalakedb {metadata.version('deltalakedb')}\n")
        raise typer.Exit


@app.callback()
def _options(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback has told it
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the release."),
    ] = False,
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
        code = app(list(arguments), prog_name="deltalakedb", standalone_mode=False)
    except _WrongUsage as error:
        return _tell_usage(error)
    except DeltaLakeDbError as error:
        _tell(error, as_commands(str(error)))
        return 1
    except (KeyboardInterrupt, typer.Abort):
        console(stderr=True).print("Interrupted.")
        return 130
    except SystemExit as end:  # completion ends so
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, nobody wants a traceback of it
        _tell(error, _unknown(error))
        return 1
    return code if isinstance(code, int) else 0


def _tell(error: Exception, text: str) -> None:
    if _debug:
        traceback.print_exception(error, file=sys.stderr)
    # One paragraph, whatever a driver put into its message.
    console(stderr=True).print(
        printable(f"Error: {' '.join(text.split())}"), markup=False, style="red"
    )


def _tell_usage(error: Any) -> int:
    """What cannot be understood, and where the usage is described; 2."""
    message = str(error.format_message()).strip()
    if "\n" in message:
        # No command was named: the message is the help.
        sys.stderr.write(f"{message}\n")
        return 2
    path = error.ctx.command_path if error.ctx else "deltalakedb"
    ended = message if message.endswith((".", "?", "!")) else f"{message}."
    _tell(error, f"{ended} {path} --help tells what can be given.")
    return 2


def _unknown(error: Exception) -> str:
    """What no part of the program has an explanation for."""
    message = " ".join(str(error).split()) or "no message"
    what = f"An error that deltalakedb does not know: {type(error).__name__}: {message}"
    ended = what if what.endswith((".", "!", "?")) else f"{what}."
    return f"{ended} Run the command again with --debug first, and report what it prints."
