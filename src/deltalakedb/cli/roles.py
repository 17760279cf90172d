"""`deltalakedb roles`: the script that makes the database roles of a Postgres catalog."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from deltalakedb.cli.options import AsJson, Panel, examples
from deltalakedb.cli.output import show_json
from deltalakedb.store.roles import roles_down_script, roles_script


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        rich_help_panel=Panel.OPERATIONS,
        epilog=examples('roles | psql "$OWNER_URL"', 'roles --down | psql "$OWNER_URL"'),
    )(roles)


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
