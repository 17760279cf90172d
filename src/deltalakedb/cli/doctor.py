"""`deltalakedb doctor`: what is wrong with an installation, and how to mend it."""

from __future__ import annotations

from typing import Annotated

import typer

from deltalakedb.cli.checks import all_checks
from deltalakedb.cli.options import AsJson, StorageOptions, parse_storage_options
from deltalakedb.cli.output import say, show_json, show_rows


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(doctor)


def doctor(
    *,
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog",
            "-c",
            envvar="DELTALAKEDB_CATALOG",
            metavar="URL",
            help="The catalog to look at.",
        ),
    ] = None,
    location: Annotated[
        list[str] | None,
        typer.Option(
            help="A folder or object store prefix where tables lie or shall lie; may be repeated. "
            "One object is created there, and deleted again."
        ),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Spark is wanted: it and a Java have to be there.")
    ] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Check Python, packages, Java, the database, its clock and the object store.

    Ends with 3 where something is wrong. Nothing is changed or left behind.
    """
    options = parse_storage_options(storage_option)
    found = list(all_checks(catalog, location or (), options, spark=spark))
    wrong = [check for check in found if check.state == "wrong"]
    if as_json:
        show_json({"ok": not wrong, "checks": [check.to_dict() for check in found]})
    else:
        show_rows(
            ("check", "state", "what was found", "what to do"),
            [(check.name, check.state, check.found, check.fix) for check in found],
            empty="",
        )
        say(f"{len(wrong)} of {len(found)} checks failed." if wrong else "Nothing is wrong.")
    if wrong:
        raise typer.Exit(3)
