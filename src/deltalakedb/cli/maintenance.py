"""Commands that maintain tables and the catalog: optimize, vacuum, restore, rebuild, migrate."""

from __future__ import annotations

from typing import Annotated

import typer

import deltalakedb
from deltalakedb.cli.options import (
    AsJson,
    Catalog,
    Panel,
    StorageOptions,
    TableName,
    examples,
    open_lake,
)
from deltalakedb.cli.output import say, show_json, size
from deltalakedb.cli.progress import progress_bar


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        rich_help_panel=Panel.UPKEEP,
        epilog=examples("optimize sales.orders --where \"day >= '2026-11-01'\""),
    )(optimize)
    app.command(rich_help_panel=Panel.UPKEEP, epilog=examples("vacuum sales.orders --dry-run"))(
        vacuum
    )
    app.command(
        rich_help_panel=Panel.UPKEEP,
        epilog=examples(
            "restore sales.orders --version 3",
            "restore sales.orders --timestamp 2026-11-01T00:00:00Z",
        ),
    )(restore)


def optimize(
    catalog: Catalog,
    table: TableName,
    *,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Only partitions that meet this SQL condition."),
    ] = None,
    target_mb: Annotated[
        int, typer.Option(metavar="MB", min=1, help="How large the new files should be.")
    ] = 1024,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite small files as large ones. No row changes, and readers are not disturbed."""
    with (
        open_lake(catalog, storage_option) as lake,
        progress_bar("Compacting", quiet=as_json) as progress,
    ):
        done = lake.table(table).optimize(
            where=where, target_bytes=target_mb * 1024 * 1024, progress=progress
        )
    if as_json:
        show_json(done.to_dict())
    elif done.version is None:
        say(
            f"{done.table}: nothing to do; of {done.files_considered} files none can be combined "
            "with another."
        )
    else:
        say(
            f"{done.table}: version {done.version} has {_files(done.files_added)} "
            f"({size(done.bytes_added)}) in place of {_files(done.files_removed)} "
            f"({size(done.bytes_removed)})."
        )


def vacuum(
    catalog: Catalog,
    table: TableName,
    *,
    retention_hours: Annotated[
        float | None,
        typer.Option(
            metavar="HOURS",
            help="Keep the files that versions of the last so many hours need; the table's own "
            "retention, if left out.",
        ),
    ] = None,
    allow_short_retention: Annotated[
        bool,
        typer.Option(
            "--allow-short-retention",
            help="Accept a shorter retention than the table's, while no other process uses it.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be deleted.")
    ] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Delete data files that no version within the retention needs any more."""
    with (
        open_lake(catalog, storage_option, mirror="worker") as lake,
        progress_bar("Finding needed files", quiet=as_json) as progress,
    ):
        done = lake.table(table).vacuum(
            retention_hours=retention_hours,
            allow_short_retention=allow_short_retention,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        show_json(done.to_dict())
        return
    verb = "would be deleted" if dry_run else "deleted"
    say(
        f"{done.table}: {_files(done.files)} ({size(done.bytes)}) {verb}, {done.kept} retained. "
        f"The retention is {done.retention_hours:g} hours."
    )
    if dry_run:
        for path in done.paths:
            say(f"  {path}")


def restore(
    catalog: Catalog,
    table: TableName,
    *,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="The version to go back to.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The time to go back to, e.g. 2026-11-01T00:00:00Z."),
    ] = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Bring a table back to an earlier version, as a new version. History stays."""
    with open_lake(catalog, storage_option) as lake:
        done = lake.table(table).restore(version=version, timestamp=timestamp)
    if as_json:
        show_json(done.to_dict())
    elif done.version is None:
        say(f"{done.table}: nothing to do; it is the same as version {done.restored}.")
    else:
        say(
            f"{done.table}: version {done.version} is the same as version {done.restored}. "
            f"{_files(done.files_restored)} came back, {_files(done.files_removed)} left."
        )


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def migrate(catalog: Catalog, *, as_json: AsJson = False) -> None:
    """Create the schema of a catalog, or bring it up to date."""
    applied = deltalakedb.migrate(catalog)
    if as_json:
        show_json(applied)
    else:
        say(f"Applied: {', '.join(applied)}" if applied else "The schema is up to date.")


def warehouse(
    catalog: Catalog,
    location: Annotated[
        str | None,
        typer.Argument(
            metavar="[LOCATION]",
            help="The new warehouse: a folder or an object store prefix.",
        ),
    ] = None,
    *,
    unset: Annotated[bool, typer.Option("--unset", help="Have no warehouse any more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show or set the warehouse: the location below which tables without one of their own lie.

    Tables that exist stay where they are. In the warehouse, sales.orders lies at sales.db/orders.
    """
    if location is not None and unset:
        raise typer.BadParameter("Leave the location out, or --unset", param_hint="--unset")
    with open_lake(catalog, mirror="worker") as lake:
        if location is not None or unset:
            lake.set_warehouse(location)
        current = lake.warehouse
    if as_json:
        show_json({"warehouse": current})
    else:
        say(current or "There is no warehouse: a table needs a location of its own.")


def rebuild(
    catalog: Catalog,
    table: TableName,
    *,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild a table's list of live files and its pages from the ledger.

    Use it after manual changes, or to give an older catalog the bounds that conditions compare.
    """
    from deltalakedb.snapshot.page_builder import rebuild_pages

    with open_lake(catalog, storage_option, mirror="worker") as lake:
        handle = lake.table(table)
        with lake.store.write() as session:
            lake.store.lock_head(session, handle.table_id)
            problems = lake.store.check_active_files(session, handle.table_id)
            count = lake.store.rebuild_active_files(session, handle.table_id)
        rebuild_pages(lake.store, handle.record)
    if as_json:
        show_json({"table": handle.name, "files": count, "problems": len(problems)})
    else:
        result = f"{len(problems)} problems" if problems else "nothing was wrong"
        say(f"{handle.name}: {result}; the list of {count} files was rebuilt.")
