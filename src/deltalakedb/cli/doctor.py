"""`deltalakedb doctor`: problems of an installation, and how to fix them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from deltalakedb.cli.checks import Check, all_checks
from deltalakedb.cli.options import AsJson, Panel, StorageOptions, examples, parse_storage_options
from deltalakedb.cli.output import say, show_json, show_pairs
from deltalakedb.cli.progress import progress_bar


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        rich_help_panel=Panel.OPERATIONS,
        epilog=examples("doctor --location s3://bucket/lake --spark"),
    )(doctor)


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
