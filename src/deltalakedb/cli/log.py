"""Commands on `_delta_log` and history: verify, repair, adopt, export, expire, restore-expired."""

from __future__ import annotations

from typing import Annotated

import typer

from deltalakedb.cli.options import AsJson, Catalog, StorageOptions, TableName, open_lake
from deltalakedb.cli.output import moment, say, show_json, show_rows, size
from deltalakedb.cli.progress import progress_bar

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(verify)
    app.command()(repair)
    app.command()(adopt)
    app.command()(export)
    app.command()(expire)
    app.command(name="restore-expired")(restore_expired)


def verify(
    catalog: Catalog,
    table: TableName,
    *,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Compare a table with its _delta_log: every commit, the live files, every checkpoint.

    Ends with 3 where a reader of the log would not see what the catalog says.
    """
    with (
        open_lake(catalog, storage_option, mirror="worker") as lake,
        progress_bar("Comparing versions", quiet=as_json) as tell,
    ):
        found = lake.verify(table, progress=tell)
    if as_json:
        show_json(found.to_dict())
    else:
        say(
            f"{found.table}: {found.compared} commit files, {found.files} live files and "
            f"{len(found.checkpoints)} checkpoints compared; {found.pending} versions still to be "
            f"published, {found.cleaned} cleaned up."
        )
        show_rows(
            ("finding", "version", "object", "what", ""),
            [
                (str(f.kind), f.version, f.key, f.what, "harmless" if f.harmless else "")
                for f in found.findings
            ],
            empty="No differences.",
        )
    if not found.ok:
        raise typer.Exit(3)


def repair(
    catalog: Catalog,
    table: TableName,
    *,
    dry_run: DryRun = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Repair what can be made anew from the catalog; foreign commits are never touched.

    Ends with 3 where something is left that a reader could be harmed by.
    """
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        done = lake.repair(table, dry_run=dry_run)
    if as_json:
        show_json(done.to_dict())
    else:
        show_rows(
            ("would repair" if dry_run else "repaired", "version", "object", "what"),
            [(str(step.kind), step.version, step.key, step.what) for step in done.steps],
            empty="Nothing had to be repaired.",
        )
        if done.left:
            show_rows(
                ("left", "version", "object", "what"),
                [(str(f.kind), f.version, f.key, f.what) for f in done.left],
                empty="",
            )
    if not done.ok and not dry_run:
        raise typer.Exit(3)


def adopt(
    catalog: Catalog,
    table: TableName,
    *,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Make commits that somebody else wrote to _delta_log versions of the catalog."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        done = lake.adopt(table)
    if as_json:
        show_json(done.to_dict())
        return
    show_rows(
        ("version", "time", "operation", "added", "removed", "size"),
        [
            (
                v.version,
                moment(v.committed_at),
                v.operation,
                v.num_adds,
                v.num_removes,
                size(v.size_bytes),
            )
            for v in done.versions
        ],
        empty="There was nothing to adopt.",
    )


def export(
    catalog: Catalog,
    table: TableName,
    *,
    keep_features: Annotated[
        bool,
        typer.Option(
            "--keep-features",
            help="Leave the protocol as it is. Engines that do not know all features of the table, "
            "such as in-commit timestamps, cannot write to it then.",
        ),
    ] = False,
    verify: Annotated[
        bool, typer.Option(help="First compare every commit with its file in the log.")
    ] = True,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Let a table leave the catalog: an ordinary Delta table that any engine may write to.

    Everything is published and checkpointed first; features that the table does not need are
    dropped. Nothing of it is deleted, and `import` takes it back with all its versions. Where
    something stands in the way, the table stays in the catalog.
    """
    with (
        open_lake(catalog, storage_option, mirror="worker") as lake,
        progress_bar("Comparing versions", quiet=as_json) as tell,
    ):
        done = lake.export(table, drop_features=not keep_features, verify=verify, progress=tell)
    if as_json:
        show_json(done.to_dict())
        return
    say(f"{done.table}: version {done.version} is an ordinary Delta table at {done.location}.")
    if done.dropped_features:
        say(f"Dropped, because nothing uses them: {', '.join(done.dropped_features)}.")
    if done.features:
        say(f"Its writers have to know: {', '.join(done.features)}.")


def expire(
    catalog: Catalog,
    table: TableName,
    *,
    archive: Annotated[
        str | None, typer.Option(help="A folder or object store prefix for the archive.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(help="E.g. '90 days'; the table's delta.logRetentionDuration, if not."),
    ] = None,
    dry_run: DryRun = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Move old versions out of the catalog, into Parquet files from where they can come back."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        done = lake.expire(table, older_than=older_than, archive=archive, dry_run=dry_run)
    if as_json:
        show_json(done.to_dict())
        return
    if not done.versions:
        say(f"{done.table}: no version is old enough.")
        return
    verb = "would go" if dry_run else f"went to {done.archive}"
    say(f"{done.table}: versions {done.first_version} to {done.last_version} {verb}.")
    show_rows(("relation", "rows"), sorted(done.rows.items()), empty="")


def restore_expired(
    catalog: Catalog,
    table: TableName,
    archive: Annotated[str, typer.Argument(help="Where expire put them.")],
    *,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Bring expired versions back from their archive."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        done = lake.restore_expired(table, archive)
    if as_json:
        show_json(done.to_dict())
    elif done.versions:
        say(f"{done.table}: versions {done.first_version} to {done.last_version} are back.")
    else:
        say(f"{done.table}: the archive has no versions that are missing here.")
