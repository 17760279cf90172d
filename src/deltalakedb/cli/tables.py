"""Commands on tables: create, import, drop, show, files, history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltalakedb.cli.notices import no_catalog_is_empty
from deltalakedb.cli.options import (
    AsJson,
    Catalog,
    Panel,
    StorageOptions,
    TableName,
    examples,
    open_lake,
)
from deltalakedb.cli.output import (
    as_commands,
    moment,
    say,
    show_fields,
    show_json,
    show_json_list,
    show_rows,
    size,
)
from deltalakedb.cli.progress import progress_bar
from deltalakedb.errors import Fix

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.mirror.mirror import TableStatus
    from deltalakedb.snapshot import Snapshot
    from deltalakedb.store import VersionRecord

Version = Annotated[
    int | None, typer.Option(metavar="N", help="At this version; the newest, if left out.")
]
Timestamp = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="As it was at this time, e.g. 2026-11-01T00:00:00Z."),
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION", help='Only files that may hold rows for this condition, e.g. "id > 5".'
    ),
]
NewName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Its name; the last part of its location, if left out."),
]
_FILE_COLUMNS = ("path", "size_bytes", "modification_time", "partition_values", "stats")
# What people can take in at once; programs get everything.
_FILES, _COMMITS = 100, 20


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for function, name, usual in (
        (tables, "tables", ()),
        (
            create,
            "create",
            (
                "create sales.orders data/orders 'id long, day date' --partition-by day",
                "create sales.orders 'id long, day date'",
                "create sales.orders s3://bucket/orders file.parquet",
            ),
        ),
        (import_table, "import", ("import s3://bucket/orders --name sales.orders",)),
        (convert, "convert", ("convert data/events --partition-schema 'day date'",)),
        (clone, "clone", ("clone sales.orders sales.trial data/trial",)),
        (drop, "drop", ("drop sales.orders",)),
        (show, "show", ("show sales.orders --timestamp 2026-11-01T00:00:00Z",)),
        (files, "files", ("files sales.orders --where \"day = '2026-11-01'\"",)),
        (history, "history", ("history sales.orders --committer etl --since 2026-11-01",)),
    ):
        app.command(name=name, rich_help_panel=Panel.TABLES, epilog=examples(*usual))(function)


def tables(
    catalog: Catalog, *, storage_option: StorageOptions = None, as_json: AsJson = False
) -> None:
    """List the tables of the catalog."""
    statuses: list[TableStatus] = []
    with (
        no_catalog_is_empty(),
        open_lake(catalog, storage_option, mirror="worker") as lake,
    ):
        statuses = lake.mirror.status()
    if as_json:
        show_json([{"name": t.table, "location": t.location, "version": t.head} for t in statuses])
        return
    show_rows(
        ("table", "version", "location"),
        [(t.table, t.head, t.location) for t in statuses],
        empty="There are no tables yet. Make one with `deltalakedb create`, or take over a Delta "
        "table with `deltalakedb import`.",
    )


def create(
    catalog: Catalog,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="The name of the table, e.g. sales.orders.")
    ],
    location: Annotated[
        str | None,
        typer.Argument(
            metavar="[LOCATION]",
            help="Where its files go: a folder or an object store prefix; its place in the "
            "warehouse, if left out.",
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Argument(
            metavar="SCHEMA",
            help="Its columns: 'id long, day date', Delta schema JSON, a file with that JSON, or a "
            "Parquet file to take them from.",
        ),
    ] = None,
    *,
    partition_by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A partition column; may be repeated."),
    ] = None,
    cluster_by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A clustering column; may be repeated."),
    ] = None,
    if_not_exists: Annotated[
        bool,
        typer.Option("--if-not-exists", help="Accept a table of that name that is the same."),
    ] = False,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property; may be repeated."),
    ] = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Create an empty table."""
    from deltalakedb.cli.schemas import read_schema

    values = {}
    for pair in properties or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(
                f"{pair!r} has no value; write NAME=VALUE", param_hint="--property"
            )
        values[name] = value
    if schema is None:
        # Of two arguments, the last one is the schema.
        location, schema = None, location
    if schema is None:
        raise typer.BadParameter("it is missing", param_hint="SCHEMA")
    columns = read_schema(schema)
    with open_lake(catalog, storage_option, new=True) as lake:
        created = lake.create_table(
            table,
            location=location,
            schema=columns,
            partition_by=partition_by or (),
            cluster_by=cluster_by or (),
            properties=values,
            if_not_exists=if_not_exists,
        )
        _print_snapshot(created.snapshot(), created.name, created.location, as_json=as_json)


def import_table(
    catalog: Catalog,
    location: Annotated[str, typer.Argument(metavar="LOCATION", help="Where the Delta table is.")],
    *,
    name: NewName = None,
    allow_root: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOCATION",
            help="Where files of the table may lie beside its own location, as those of a shallow "
            "clone do; may be repeated.",
        ),
    ] = None,
    trust_commits: Annotated[
        bool,
        typer.Option(
            "--trust-commits", help="Import a log whose checkpoints contradict its commits."
        ),
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Forget an import that was never finished.")
    ] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Take over an existing Delta table with its history. Nothing is written to its location.

    If the import of a large log is killed, the same command continues where it stopped.
    """
    if discard:
        discarded = False
        with no_catalog_is_empty(), open_lake(catalog, storage_option) as lake:
            discarded = lake.discard_import(location)
        if as_json:
            show_json({"location": location, "discarded": discarded})
        else:
            say("Discarded." if discarded else "There is no unfinished import of that location.")
        return
    with open_lake(catalog, storage_option, new=True) as lake:
        with progress_bar("Reading the log", quiet=as_json) as progress:
            created = lake.import_table(
                location,
                name,
                progress=progress,
                allowed_roots=allow_root or (),
                trust_commits=trust_commits,
            )
        _print_snapshot(created.snapshot(), created.name, created.location, as_json=as_json)


def clone(
    catalog: Catalog,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The table to clone, by name or by location.")
    ],
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="The name of the clone, e.g. sales.trial.")
    ],
    location: Annotated[
        str | None,
        typer.Argument(
            metavar="[LOCATION]",
            help="Where the clone goes: a folder or an object store prefix; its place in the "
            "warehouse, if left out.",
        ),
    ] = None,
    *,
    version: Version = None,
    timestamp: Timestamp = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a table there that is empty.")
    ] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Make a shallow clone: a new table that shares the files of another. No data is copied.

    A vacuum of the source keeps what clones in the same catalog need.
    """
    with open_lake(catalog, storage_option) as lake:
        created = lake.clone_table(
            source, location, table, version=version, timestamp=timestamp, replace=replace
        )
        _print_snapshot(created.snapshot(), created.name, created.location, as_json=as_json)


def convert(
    catalog: Catalog,
    location: Annotated[
        str, typer.Argument(metavar="LOCATION", help="A folder or prefix with Parquet files.")
    ],
    *,
    name: NewName = None,
    partition_schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="The columns that folders such as day=2026-11-01 are named after, e.g. "
            "'day date, n int'.",
        ),
    ] = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Turn Parquet files into a table, where they are. Only their footers are read."""
    from deltalakedb.cli.schemas import read_schema

    partitions = None if partition_schema is None else read_schema(partition_schema)
    with open_lake(catalog, storage_option, new=True) as lake:
        with progress_bar("Listing files", quiet=as_json) as progress:
            created = lake.convert_table(
                location, name, partition_schema=partitions, progress=progress
            )
        _print_snapshot(created.snapshot(), created.name, created.location, as_json=as_json)


def drop(
    catalog: Catalog,
    table: TableName,
    *,
    force: Annotated[
        bool,
        typer.Option("--force", help="Give up versions that are not in its _delta_log yet."),
    ] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Remove a table from the catalog. Its data files and its _delta_log stay where they are.

    Versions that are not published yet exist only in the catalog: the table is not dropped then,
    unless you --force it. To hand a table over to other engines, use `export`.
    """
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        handle = lake.table(table)
        lake.drop_table(handle.name, force=force)
    if as_json:
        show_json({"table": handle.name, "location": handle.location, "dropped": True})
        return
    back = as_commands(str(Fix("lake.import_table", handle.location, name=handle.name)))
    say(
        f"{handle.name} is no longer in this catalog. Nothing was deleted at {handle.location}. "
        f"To take it back: {back}"
    )


def show(
    catalog: Catalog,
    table: TableName,
    *,
    version: Version = None,
    timestamp: Timestamp = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show a table: version, size, schema, properties, protocol."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        handle = lake.table(table)
        snapshot = handle.snapshot(version, timestamp=timestamp)
        _print_snapshot(snapshot, handle.name, handle.location, as_json=as_json)


def files(
    catalog: Catalog,
    table: TableName,
    *,
    where: Where = None,
    version: Version = None,
    timestamp: Timestamp = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help=f"Show at most this many, 0 for all; {_FILES} by default, all with --json.",
        ),
    ] = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """List the data files of a table."""
    most = _most(limit, 0 if as_json else _FILES)
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        snapshot = lake.table(table).snapshot(version, timestamp=timestamp)
        if as_json:
            show_json_list(_file_entries(snapshot, where, most))
            return
        # One row more than the limit shows whether there are more.
        listing = snapshot.files(
            where=where, columns=_FILE_COLUMNS, limit=most + 1 if most else None
        )
    rows = listing.slice(0, most or listing.num_rows).to_pylist()
    show_rows(
        ("path", "size", "modified", "partition"),
        [
            (row["path"], size(row["size_bytes"]), moment(row["modification_time"]), partition)
            for row in rows
            for partition in [row["partition_values"] if row["partition_values"] != "{}" else None]
        ],
        empty="No files." if where is None else "No file can hold such rows.",
    )
    _print_more(listing.num_rows > len(rows), None if where else snapshot.num_files - len(rows))


def _file_entries(snapshot: Snapshot, where: str | None, most: int) -> Iterator[dict[str, Any]]:
    batches: Iterator[pa.RecordBatch] = (
        iter(snapshot.files(where=where, columns=_FILE_COLUMNS, limit=most).to_batches())
        if most
        else snapshot.iter_files(where=where, columns=_FILE_COLUMNS)
    )
    for batch in batches:
        for row in batch.to_pylist():
            yield {**row, "partition_values": json.loads(row["partition_values"])}


def history(
    catalog: Catalog,
    table: TableName,
    *,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help=f"Show at most this many, 0 for all; {_COMMITS} by default, all with --json.",
        ),
    ] = None,
    operation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only commits of this operation, e.g. MERGE.")
    ] = None,
    committer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only commits by this committer.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only commits from this time on.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only commits up to this time.")
    ] = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show the changes of a table, newest first."""
    most = _most(limit, 0 if as_json else _COMMITS)
    wanted = {"operation": operation, "committer": committer, "since": since, "until": until}
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        handle = lake.table(table)
        if as_json:
            records = handle.history(most, **wanted) if most else handle.iter_history(**wanted)
            show_json_list(_entry(record) for record in records)
            return
        # One row more than the limit shows whether there are more.
        commits = handle.history(most + 1 if most else None, **wanted)
    show_rows(
        ("version", "time", "committer", "operation", "change", "files", "size"),
        [
            (
                record.version,
                moment(record.committed_at),
                record.committer,
                record.commit_info.operation if record.commit_info else None,
                f"+{record.counts.num_adds} -{record.counts.num_removes}",
                record.counts.live_files,
                size(record.counts.live_bytes),
            )
            for record in commits[: most or None]
        ],
        empty="No commits." if not any(wanted.values()) else "No such commits.",
    )
    _print_more(0 < most < len(commits), None)


def _most(limit: int | None, default: int) -> int:
    return default if limit is None else limit


def _print_more(more: bool, count: int | None) -> None:  # noqa: FBT001 - it is the question
    if more:
        say(f"{'More' if count is None else f'{count} more'}: --limit 0 shows all.")


def _print_snapshot(snapshot: Snapshot, name: str, location: str, *, as_json: bool) -> None:
    protocol = snapshot.protocol
    features = {
        "reader_features": list(protocol.reader_features or ()),
        "writer_features": list(protocol.writer_features or ()),
    }
    columns = [(f.name, str(f.type), f.nullable) for f in snapshot.schema.fields]
    if as_json:
        show_json(
            {
                "table": name,
                "location": location,
                "version": snapshot.version,
                "timestamp": snapshot.timestamp.isoformat(),
                "files": snapshot.num_files,
                "size_bytes": snapshot.size_bytes,
                "partition_columns": list(snapshot.partition_columns),
                "clustering_columns": list(snapshot.clustering_columns),
                "properties": dict(snapshot.properties),
                "min_reader_version": protocol.min_reader_version,
                "min_writer_version": protocol.min_writer_version,
                **features,
                "schema": [{"name": n, "type": t, "nullable": null} for n, t, null in columns],
            }
        )
        return
    needs = sorted({*features["reader_features"], *features["writer_features"]})
    fields = {
        "table": name,
        "location": location,
        "version": f"{snapshot.version}, of {moment(snapshot.committed_at)}",
        "files": f"{snapshot.num_files} ({size(snapshot.size_bytes)})",
        "partitioned by": ", ".join(snapshot.partition_columns),
        "clustered by": ", ".join(snapshot.clustering_columns),
        "properties": "\n".join(f"{key} = {value}" for key, value in snapshot.properties.items()),
        "protocol": f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}"
        + (f" ({', '.join(needs)})" if needs else ""),
    }
    show_fields({key: value for key, value in fields.items() if value})
    say("")
    show_rows(
        ("column", "type", ""),
        [(n, t, "" if null else "not null") for n, t, null in columns],
        empty="No columns.",
    )


def _entry(record: VersionRecord) -> dict[str, Any]:
    info = record.commit_info
    return {
        "version": record.version,
        "timestamp": moment(record.committed_at),
        "committer": record.committer,
        "operation": info.operation if info else None,
        "operation_parameters": info.operation_parameters if info else None,
        "operation_metrics": info.operation_metrics if info else None,
        "transaction_id": record.transaction_id,
        **record.counts._asdict(),
    }
