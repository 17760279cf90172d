"""The commands put together, and the output of their errors: one paragraph, no traceback."""

from __future__ import annotations

import inspect
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from deltalakedb.cli import log, maintenance, mirror, tables
from deltalakedb.cli.checks import Check, all_checks
from deltalakedb.cli.log_lines import Format, Level, LogFormat, logs_to_stderr
from deltalakedb.cli.notices import notices
from deltalakedb.cli.options import (
    AsJson,
    Catalog,
    Panel,
    StorageOptions,
    examples,
    open_lake,
    parse_storage_options,
)
from deltalakedb.cli.output import as_commands, console, printable, say, show_json, show_pairs
from deltalakedb.cli.progress import progress_bar
from deltalakedb.errors import ConfigurationError, DeltaLakeDbError
from deltalakedb.store.roles import roles_down_script, roles_script

app = typer.Typer(
    name="deltalakedb",
    help="Delta Lake tables whose transaction log lives in a SQL database.\n\n"
    "Name the database with --catalog URL, or once and for all in the environment: export "
    "DELTALAKEDB_CATALOG=sqlite:///lake.db\n\n"
    "Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 done, but something needs your "
    "attention (drift was detected, versions could not be published, a check failed); "
    "130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
tables.register(app)
maintenance.register(app)
app.command(rich_help_panel=Panel.UPKEEP)(maintenance.rebuild)
log.register(app)
app.add_typer(mirror.app, name="mirror", rich_help_panel=Panel.LOG)
app.command(rich_help_panel=Panel.OPERATIONS)(maintenance.migrate)
app.command(rich_help_panel=Panel.OPERATIONS, epilog=examples("warehouse s3://bucket/lake"))(
    maintenance.warehouse
)

# typer has a click of its own since 0.24 and used the package before: this is the one in use.
_WrongUsage: type[Any] = typer.BadParameter.mro()[1]

_debug = False


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        sys.stdout.write(f"deltalakedb {metadata.version('deltalakedb')}\n")
        raise typer.Exit


@app.callback()
def _options(
    *,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error too.")
    ] = False,
    version: Annotated[  # noqa: ARG001 - its callback has printed it
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the release."),
    ] = False,
) -> None:
    global _debug  # noqa: PLW0603 - set once, before the command runs
    _debug = debug


@app.command(
    rich_help_panel=Panel.OPERATIONS,
    epilog=examples("doctor --location s3://bucket/lake --spark"),
)
def doctor(
    *,
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog",
            "-c",
            envvar="DELTALAKEDB_CATALOG",
            metavar="URL",
            help="The catalog to check.",
        ),
    ] = None,
    location: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOCATION",
            help="A folder or object store prefix where tables are or will be; may be repeated. "
            "One object is created there and deleted again.",
        ),
    ] = None,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Start Spark too, and count a row; this takes a few seconds."),
    ] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation, and say how to fix each problem. Nothing is changed.

    It looks at Python, the packages, Java, Spark, the database (does it answer, what may you do
    there, is the schema up to date, do the clocks agree) and the object store. The exit code is 3
    if something is wrong.
    """
    options = parse_storage_options(storage_option)
    with progress_bar("Checking", quiet=as_json):
        checks = list(all_checks(catalog, location or (), options, spark=spark))
    wrong = [check for check in checks if check.state == "wrong"]
    if as_json:
        show_json({"ok": not wrong, "checks": [asdict(check) for check in checks]})
    else:
        show_pairs((check.state, _line(check)) for check in checks)
        say(f"{len(wrong)} of {len(checks)} checks failed." if wrong else "Nothing is wrong.")
    if wrong:
        raise typer.Exit(3)


def _line(check: Check) -> str:
    return f"{check.name}: {check.found}" + (f"\n→ {check.fix}" if check.fix else "")


@app.command(
    rich_help_panel=Panel.OPERATIONS,
    epilog=examples('roles | psql "$OWNER_URL"', 'roles --down | psql "$OWNER_URL"'),
)
def roles(
    *,
    down: Annotated[
        bool, typer.Option("--down", help="Print the script that takes them back.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the SQL that makes the roles of a Postgres catalog: reader, writer and mirror.

    Pipe it to psql as the owner of the catalog's schema; the first time, that role needs
    CREATEROLE. Running it again changes nothing. Nothing is connected to by this command.
    """
    script = roles_down_script() if down else roles_script()
    if as_json:
        show_json({"sql": script})
    else:
        sys.stdout.write(script)


@app.command(rich_help_panel=Panel.OPERATIONS, epilog=examples("serve --port 8765"))
def serve(
    catalog: Catalog,
    *,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0 for any.")
    ] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DELTALAKEDB_TOKEN",
            metavar="TOKEN",
            help="The secret that a request must carry to change anything; without one the page is "
            "read-only. Set it in the environment: other users can see a command's arguments.",
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file of more tokens, for engines: a line `scope owner token` each, where the "
            "scope is read, write or administer.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate of TLS, as PEM.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The private key of the certificate.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="The metrics of a worker or writer to show; may be repeated."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A host name to answer to, e.g. that of a proxy; may be repeated."
        ),
    ] = None,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = "info",
    storage_option: StorageOptions = None,
) -> None:
    """Serve the operations page, and the commits of engines such as Delta on Spark.

    It runs until Ctrl-C (SIGINT) or SIGTERM.
    """
    from deltalakedb.service import OperationsPage
    from deltalakedb.service.access import read_tokens

    if (certificate is None) != (key is None):
        raise ConfigurationError(
            "Only one of --certificate and --key is set", fix="TLS needs both: name both files"
        )
    more = [] if tokens is None else read_tokens(tokens)
    tls = None if certificate is None or key is None else (str(certificate), str(key))
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with (
        logs_to_stderr(log_format, log_level),
        open_lake(catalog, storage_option, mirror="worker", new=True) as lake,
        OperationsPage(
            lake,
            host=host,
            port=port,
            token=token or None,
            tokens=more,
            tls=tls,
            sources=metrics or (),
            names=allow_host or (),
        ) as page,
    ):
        sys.stdout.write(f"The operations page is at {page.address}\n")
        sys.stdout.flush()
        stop.wait()


@app.command(rich_help_panel=Panel.OPERATIONS)
def demo(
    *,
    folder: Annotated[
        Path | None,
        typer.Option(help="A new or empty folder for its data; a temporary one, if left out."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep serving the operations page until Ctrl-C.")
    ] = False,
) -> None:
    """Show what deltalakedb does, in two minutes: SQLite, local files, Spark and delta-rs."""
    from deltalakedb.demo import main

    raise typer.Exit(main(folder=folder, keep=keep))


for _command in (*app.registered_commands, *mirror.app.registered_commands):
    # The lines of a docstring are those of its file, and not of a terminal.
    _paragraphs = (inspect.getdoc(_command.callback) or "").split("\n\n")
    _command.help = "\n\n".join(" ".join(text.split()) for text in _paragraphs)


def run(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""
    try:
        with notices():
            code = app(list(arguments), prog_name="deltalakedb", standalone_mode=False)
    except _WrongUsage as error:
        return _print_usage_error(error)
    except DeltaLakeDbError as error:
        _print_error(error, as_commands(str(error)))
        return 1
    except (KeyboardInterrupt, typer.Abort):
        console(stderr=True).print("Interrupted.")
        return 130
    except SystemExit as end:  # completion ends so
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - a user gets no traceback
        _print_error(error, _unknown(error))
        return 1
    return code if isinstance(code, int) else 0


def _print_error(error: Exception, text: str) -> None:
    if _debug:
        traceback.print_exception(error, file=sys.stderr)
    # One paragraph, whatever a driver put into its message.
    console(stderr=True).print(
        printable(f"Error: {' '.join(text.split())}"), markup=False, style="red"
    )


def _print_usage_error(error: Any) -> int:
    """What cannot be understood, and where the usage is described; 2."""
    message = str(error.format_message()).strip()
    if not message:
        # No command was named: the help was printed instead.
        return 2
    path = error.ctx.command_path if error.ctx else "deltalakedb"
    ended = message if message.endswith((".", "?", "!")) else f"{message}."
    _print_error(error, f"{ended} See: {path} --help.")
    return 2


def _unknown(error: Exception) -> str:
    """What no part of the program has an explanation for."""
    message = " ".join(str(error).split()) or "no message"
    what = f"An error that deltalakedb does not know: {type(error).__name__}: {message}"
    ended = what if what.endswith((".", "!", "?")) else f"{what}."
    return f"{ended} Run the command again with --debug first, and report what it prints."
