"""Options that many commands share, and the lake they open."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

import deltalakedb

if TYPE_CHECKING:
    from deltalakedb.lake import Lake

Catalog = Annotated[
    str,
    typer.Option(
        "--catalog",
        "-c",
        envvar="DELTALAKEDB_CATALOG",
        metavar="URL",
        help="The database that holds the log: sqlite:///lake.db, duckdb:///lake.duckdb or "
        "postgresql://user@host/db.",
    ),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="A setting of the object store, e.g. region=eu-central-1; may be repeated. Keep "
        "credentials in the environment instead.",
    ),
]


class Panel(StrEnum):
    """Under which title the help lists a command."""

    TABLES = "Tables"
    UPKEEP = "Keeping tables in order"
    LOG = "The copy of the log in _delta_log, and old versions"
    OPERATIONS = "Operations"


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="The table, by name or by location.")
]


def examples(*commands: str) -> str:
    """The end of a command's help: what one would type."""
    if not commands:
        return ""
    title = "Example:" if len(commands) == 1 else "Examples:"
    return "\n\n".join([title, *(f"deltalakedb {command}" for command in commands)])


def open_lake(
    catalog: str,
    storage_options: Sequence[str] | None = None,
    *,
    mirror: str = "inline",
    new: bool = False,
) -> Lake:
    """The lake that a command works on; a missing catalog is created only if it may be `new`."""
    return deltalakedb.connect(
        catalog,
        storage_options=parse_storage_options(storage_options),
        mirror=mirror,
        create=new,
    )


def parse_storage_options(pairs: Sequence[str] | None) -> dict[str, str]:
    """NAME=VALUE pairs as a mapping."""
    options: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            # The value may be a secret: only the name is repeated.
            raise typer.BadParameter(
                f"{name!r} has no value; write NAME=VALUE", param_hint="--storage-option"
            )
        options[name.strip()] = value
    return options
