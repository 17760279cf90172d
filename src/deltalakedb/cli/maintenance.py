"""Commands that keep tables in good order: optimize, vacuum, restore."""

from __future__ import annotations

from typing import Annotated

import typer

from deltalakedb.cli.options import AsJson, Catalog, StorageOptions, TableName, open_lake
from deltalakedb.cli.output import say, show_json, size
from deltalakedb.cli.progress import progress_bar


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(optimize)
    app.command()(vacuum)
    app.command()(restore)


def optimize(
    catalog: Catalog,
    table: TableName,
    *,
    where: Annotated[
        str | None, typer.Option(help="Only partitions for which this is true, as SQL.")
    ] = None,
    target_mb: Annotated[
        int, typer.Option(min=1, help="How large new files should be, in MB.")
    ] = 1024,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Make large files of small ones; no row changes, and readers are not in the way."""
    from deltalakedb.maintenance import compact

    with (
        open_lake(catalog, storage_option) as lake,
        progress_bar("Compacting", quiet=as_json) as tell,
    ):
        done = compact(
            lake.table(table), where=where, target_bytes=target_mb * 1024 * 1024, progress=tell
        )
    if as_json:
        show_json(done.to_dict())
    elif done.version is None:
        say(f"{done.table}: nothing to do, {done.files_considered} files are as they should be.")
    else:
        say(
            f"{done.table}: {done.files_removed} files ({size(done.bytes_removed)}) became "
            f"{done.files_added} ({size(done.bytes_added)}) in version {done.version}."
        )


def vacuum(
    catalog: Catalog,
    table: TableName,
    *,
    retention_hours: Annotated[
        float | None,
        typer.Option(help="Keep what versions of so many hours need; the table's own by default."),
    ] = None,
    allow_short_retention: Annotated[
        bool,
        typer.Option(
            "--allow-short-retention",
            help="Accept less than the table asks for: nobody else may be using it.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Delete data files that no version within the retention needs."""
    from deltalakedb.maintenance import vacuum as clean

    with (
        open_lake(catalog, storage_option, mirror="worker") as lake,
        progress_bar("Deleting", quiet=as_json) as tell,
    ):
        done = clean(
            lake.table(table),
            retention_hours=retention_hours,
            allow_short_retention=allow_short_retention,
            dry_run=dry_run,
            progress=tell,
        )
    if as_json:
        show_json(done.to_dict())
        return
    verb = "would be deleted" if dry_run else "deleted"
    say(
        f"{done.table}: {done.files} files ({size(done.bytes)}) {verb}, {done.kept} kept; "
        f"retention {done.retention_hours:g} hours."
    )
    if dry_run:
        for path in done.paths:
            say(f"  {path}")


def restore(
    catalog: Catalog,
    table: TableName,
    *,
    version: Annotated[int | None, typer.Option(help="The version to go back to.")] = None,
    timestamp: Annotated[
        str | None, typer.Option(help="The time to go back to, e.g. 2026-11-01T00:00:00Z.")
    ] = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Commit a new version that is what the table was at an earlier one."""
    from deltalakedb.maintenance import restore as go_back

    with open_lake(catalog, storage_option) as lake:
        done = go_back(lake.table(table), version=version, timestamp=timestamp)
    if as_json:
        show_json(done.to_dict())
    elif done.version is None:
        say(f"{done.table}: it is what version {done.restored} was.")
    else:
        say(
            f"{done.table}: version {done.version} is what version {done.restored} was; "
            f"{done.files_restored} files came back, {done.files_removed} went."
        )
