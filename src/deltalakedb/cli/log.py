"""Commands on `_delta_log` and history: verify, repair, adopt, export, expire, restore-expired."""

from __future__ import annotations

from typing import Annotated

import typer

from deltalakedb.cli.options import (
    AsJson,
    Catalog,
    Panel,
    StorageOptions,
    TableName,
    examples,
    open_lake,
)
from deltalakedb.cli.output import as_commands, moment, say, show_json, show_rows, size
from deltalakedb.cli.progress import progress_bar
from deltalakedb.errors import Fix
from deltalakedb.mirror.verification import Kind, Verification

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(rich_help_panel=Panel.LOG)(verify)
    app.command(rich_help_panel=Panel.LOG)(repair)
    app.command(rich_help_panel=Panel.LOG)(adopt)
    app.command(rich_help_panel=Panel.LOG)(export)
    app.command(
        rich_help_panel=Panel.LOG,
        epilog=examples("expire sales.orders --older-than '90 days' --archive s3://bucket/archive"),
    )(expire)
    app.command(
        name="restore-expired",
        rich_help_panel=Panel.LOG,
        epilog=examples("restore-expired sales.orders s3://bucket/archive"),
    )(restore_expired)


def verify(
    catalog: Catalog,
    table: TableName,
    *,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Compare a table with its _delta_log: every commit, the live files, every checkpoint.

    Nothing is changed. The exit code is 3 if a reader of the log would not see what the catalog
    says.
    """
    with (
        open_lake(catalog, storage_option, mirror="worker") as lake,
        progress_bar("Listing the log", quiet=as_json) as progress,
    ):
        result = lake.verify(table, progress=progress)
    if as_json:
        show_json(result.to_dict())
    else:
        say(
            f"{result.table}: compared {result.compared} commit files, {result.files} live files "
            f"and {len(result.checkpoints)} checkpoints; versions not published yet: "
            f"{result.pending}; expired commit files: {result.cleaned}."
        )
        show_rows(
            ("finding", "version", "object", "what", ""),
            [
                (str(f.kind), f.version, f.key, f.what, "harmless" if f.harmless else "")
                for f in result.findings
            ],
            empty="No differences.",
        )
        more = sum(result.counts.values()) - len(result.findings)
        if more > 0:
            say(f"And {more} more.")
        if not result.ok:
            say(_advice(result))
    if not result.ok:
        raise typer.Exit(3)


def _advice(result: Verification) -> str:
    foreign = any(Kind(kind) is Kind.FOREIGN_COMMIT for kind in result.counts)
    adopt = f"{Fix('lake.adopt', result.table)} adopts foreign commits. " if foreign else ""
    repair = Fix("lake.repair", result.table)
    return as_commands(f"{adopt}{repair} repairs what can be repaired.")


def repair(
    catalog: Catalog,
    table: TableName,
    *,
    dry_run: DryRun = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Repair a table's _delta_log from the catalog. Foreign commits are never touched.

    The exit code is 3 if something is left that could mislead a reader.
    """
    with (
        open_lake(catalog, storage_option, mirror="worker") as lake,
        progress_bar("Listing the log", quiet=as_json) as progress,
    ):
        done = lake.repair(table, dry_run=dry_run, progress=progress)
    if as_json:
        show_json(done.to_dict())
    else:
        show_rows(
            ("would repair" if dry_run else "repaired", "version", "object", "what"),
            [(str(step.kind), step.version, step.key, step.what) for step in done.steps],
            empty="Nothing could be repaired." if done.left else "Nothing had to be repaired.",
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
    """Adopt commits of other writers in _delta_log as versions of the catalog."""
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
            help="Leave the protocol as it is. Engines that do not know all of its features, such "
            "as in-commit timestamps, will not be able to write to the table.",
        ),
    ] = False,
    verify: Annotated[
        bool, typer.Option(help="First compare the catalog with every file of the log.")
    ] = True,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Hand a table over to other engines: it leaves the catalog as an ordinary Delta table.

    All versions are published and a checkpoint is written first; features that the table does not
    need are dropped from its protocol. No file is deleted, and `import` takes the table back with
    all its versions. If anything stands in the way, the table stays in the catalog.
    """
    with (
        open_lake(catalog, storage_option, mirror="worker") as lake,
        progress_bar("Publishing versions", quiet=as_json) as progress,
    ):
        done = lake.export(table, drop_features=not keep_features, verify=verify, progress=progress)
    if as_json:
        show_json(done.to_dict())
        return
    say(
        f"{done.table} has left the catalog at version {done.version}. It is an ordinary Delta "
        f"table at {done.location}."
    )
    if done.dropped_features:
        say(f"Features dropped because nothing uses them: {', '.join(done.dropped_features)}.")
    if done.features:
        say(f"Its writers have to support: {', '.join(done.features)}.")


def expire(
    catalog: Catalog,
    table: TableName,
    *,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            help="Where they go: a folder or an object store prefix. Required, unless "
            "with --dry-run.",
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="The age of what goes, e.g. '90 days'; the table's delta.logRetentionDuration, if "
            "left out.",
        ),
    ] = None,
    dry_run: DryRun = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Move old versions out of the catalog into Parquet files. `restore-expired` reverses it."""
    with (
        open_lake(catalog, storage_option, mirror="worker") as lake,
        progress_bar("Archiving versions", quiet=as_json),
    ):
        done = lake.expire(table, older_than=older_than, archive=archive, dry_run=dry_run)
    if as_json:
        show_json(done.to_dict())
        return
    if not done.versions:
        say(f"{done.table}: no version is old enough.")
        return
    verb = "would be archived" if dry_run else f"were moved to {done.archive}"
    say(f"{done.table}: versions {done.first_version} to {done.last_version} {verb}.")
    show_rows(("relation", "rows"), sorted(done.rows.items()), empty="")


def restore_expired(
    catalog: Catalog,
    table: TableName,
    archive: Annotated[
        str, typer.Argument(metavar="ARCHIVE", help="The archive that `expire` wrote.")
    ],
    *,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Bring expired versions back from their archive. The archive stays as it is."""
    with (
        open_lake(catalog, storage_option, mirror="worker") as lake,
        progress_bar("Restoring versions", quiet=as_json),
    ):
        done = lake.restore_expired(table, archive)
    if as_json:
        show_json(done.to_dict())
    elif done.versions:
        say(f"{done.table}: versions {done.first_version} to {done.last_version} are back.")
    else:
        say(f"{done.table}: the archive holds no versions that are missing here.")
