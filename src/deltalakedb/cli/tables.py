"""Commands on tables: create, import, show, files, history, rebuild, and the schema itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import deltalakedb
from deltalakedb.cli.options import AsJson, Catalog, StorageOptions, TableName, open_lake
from deltalakedb.cli.output import moment, say, show_fields, show_json, show_rows, size
from deltalakedb.cli.progress import progress_bar

if TYPE_CHECKING:
    from deltalakedb.snapshot import Snapshot
    from deltalakedb.store import VersionRecord

Version = Annotated[int | None, typer.Option(help="At this version.")]
Timestamp = Annotated[str | None, typer.Option(help="As it was at this time (ISO 8601).")]
Where = Annotated[str | None, typer.Option(help="Only files that may hold rows for a condition.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(migrate)
    app.command()(tables)
    app.command()(create)
    app.command(name="import")(import_table)
    app.command()(clone)
    app.command()(convert)
    app.command()(show)
    app.command()(files)
    app.command()(history)
    app.command()(rebuild)


def migrate(catalog: Catalog, *, as_json: AsJson = False) -> None:
    """Create the schema of a catalog, or bring it up to date."""
    applied = deltalakedb.migrate(catalog)
    if as_json:
        show_json(applied)
    else:
        say(f"Applied: {', '.join(applied)}" if applied else "The schema is up to date.")


def tables(
    catalog: Catalog, *, storage_option: StorageOptions = None, as_json: AsJson = False
) -> None:
    """Every table of the catalog."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        found = lake.mirror.status()
    if as_json:
        show_json([{"name": t.table, "location": t.location, "version": t.head} for t in found])
        return
    show_rows(
        ("table", "version", "location"),
        [(t.table, t.head, t.location) for t in found],
        empty="There are no tables yet: deltalakedb create, or deltalakedb import.",
    )


def create(
    catalog: Catalog,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Its name, e.g. sales.orders.")],
    location: Annotated[str, typer.Argument(help="A folder or object store prefix.")],
    schema: Annotated[
        str,
        typer.Argument(
            help="Delta schema JSON, a file that holds it, a Parquet file to take it from, or "
            "columns such as 'id long, day date'."
        ),
    ],
    *,
    partition_by: Annotated[
        list[str] | None, typer.Option(help="A partition column; may be repeated.")
    ] = None,
    cluster_by: Annotated[
        list[str] | None, typer.Option(help="A clustering column; may be repeated.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A table property."),
    ] = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Create an empty table."""
    from deltalakedb.cli.schemas import read_schema

    given = {}
    for pair in properties or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} has no value", param_hint="--property")
        given[name] = value
    with open_lake(catalog, storage_option) as lake:
        made = lake.create_table(
            table,
            location=location,
            schema=read_schema(schema),
            partition_by=partition_by or (),
            cluster_by=cluster_by or (),
            properties=given,
        )
        _tell(made.snapshot(), made.name, made.location, as_json=as_json)


def import_table(
    catalog: Catalog,
    location: Annotated[str, typer.Argument(help="Where the Delta table lies.")],
    *,
    name: Annotated[
        str | None, typer.Option(help="Its name; without, the last part of its location.")
    ] = None,
    discard: Annotated[
        bool, typer.Option("--discard", help="Forget an import that did not come to its end.")
    ] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Take over an existing Delta table, with its history. Nothing is written there.

    An import of a large log that was killed goes on where it was.
    """
    if discard:
        with open_lake(catalog, storage_option) as lake:
            found = lake.discard_import(location)
        if as_json:
            show_json({"location": location, "discarded": found})
        else:
            say("Discarded." if found else "There is no unfinished import of that location.")
        return
    with (
        open_lake(catalog, storage_option) as lake,
        progress_bar("Reading versions", quiet=as_json) as tell,
    ):
        made = lake.import_table(location, name, progress=tell)
        snapshot = made.snapshot()
    _tell(snapshot, made.name, made.location, as_json=as_json)


def clone(
    catalog: Catalog,
    source: Annotated[str, typer.Argument(help="The table to clone.")],
    location: Annotated[str, typer.Argument(help="A folder or object store prefix for the clone.")],
    *,
    name: Annotated[
        str | None, typer.Option(help="Its name; without, the last part of its location.")
    ] = None,
    version: Version = None,
    timestamp: Timestamp = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take an empty table that is there already.")
    ] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Make a shallow clone: a new table of the same files. No data is copied.

    A vacuum of the source can take files away that only the clone needs.
    """
    with open_lake(catalog, storage_option) as lake:
        made = lake.clone_table(
            source, location, name, version=version, timestamp=timestamp, replace=replace
        )
        _tell(made.snapshot(), made.name, made.location, as_json=as_json)


def convert(
    catalog: Catalog,
    location: Annotated[str, typer.Argument(help="A folder or prefix with Parquet files.")],
    *,
    name: Annotated[
        str | None, typer.Option(help="Its name; without, the last part of its location.")
    ] = None,
    partition_schema: Annotated[
        str | None,
        typer.Option(help="Columns that directories are named by, e.g. 'day date, n int'."),
    ] = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Make a table of Parquet files where they lie. Only footers are read."""
    from deltalakedb.cli.schemas import read_schema

    given = None if partition_schema is None else read_schema(partition_schema)
    with (
        open_lake(catalog, storage_option) as lake,
        progress_bar("Reading footers", quiet=as_json) as tell,
    ):
        made = lake.convert_table(location, name, partition_schema=given, progress=tell)
        snapshot = made.snapshot()
    _tell(snapshot, made.name, made.location, as_json=as_json)


def show(
    catalog: Catalog,
    table: TableName,
    *,
    version: Version = None,
    timestamp: Timestamp = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """A table: version, schema, properties, protocol, size."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        found = lake.table(table)
        snapshot = found.snapshot(version, timestamp=timestamp)
        _tell(snapshot, found.name, found.location, as_json=as_json)


def files(
    catalog: Catalog,
    table: TableName,
    *,
    where: Where = None,
    version: Version = None,
    timestamp: Timestamp = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0 for all.")] = 100,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """The data files of a table."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        snapshot = lake.table(table).snapshot(version, timestamp=timestamp)
        found = snapshot.files(where=where, limit=limit or None)
    rows = found.select(["path", "size_bytes", "modification_time", "partition_values", "stats"])
    if as_json:
        show_json(rows.to_pylist())
        return
    show_rows(
        ("path", "size", "modified", "partition"),
        [
            (row["path"], size(row["size_bytes"]), moment(row["modification_time"]), partition)
            for row in rows.to_pylist()
            for partition in [row["partition_values"] if row["partition_values"] != "{}" else None]
        ],
        empty="No files.",
    )
    if where is None and limit and snapshot.num_files > rows.num_rows:
        say(f"{snapshot.num_files - rows.num_rows} more; --limit 0 shows all.")


def history(
    catalog: Catalog,
    table: TableName,
    *,
    limit: Annotated[int, typer.Option(min=0, help="The newest so many; 0 for all.")] = 20,
    operation: Annotated[str | None, typer.Option(help="Only this operation.")] = None,
    committer: Annotated[str | None, typer.Option(help="Only this committer.")] = None,
    since: Annotated[str | None, typer.Option(help="Not before this time.")] = None,
    until: Annotated[str | None, typer.Option(help="Not after this time.")] = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Who changed what, newest first."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        found = lake.table(table).history(
            limit or None, operation=operation, committer=committer, since=since, until=until
        )
    if as_json:
        show_json([_entry(record) for record in found])
        return
    show_rows(
        ("version", "time", "committer", "operation", "added", "removed", "files", "size"),
        [
            (
                record.version,
                moment(record.committed_at),
                record.committer,
                record.commit_info.operation if record.commit_info else None,
                record.counts.num_adds,
                record.counts.num_removes,
                record.counts.live_files,
                size(record.counts.live_bytes),
            )
            for record in found
        ],
        empty="No commits.",
    )


def rebuild(
    catalog: Catalog,
    table: TableName,
    *,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Make the list of live files anew from the ledger, where it was damaged by hand."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        table_id = lake.table(table).table_id
        with lake.store.write() as session:
            lake.store.lock_head(session, table_id)
            problems = lake.store.check_active_files(session, table_id)
            count = lake.store.rebuild_active_files(session, table_id)
    if as_json:
        show_json({"table": table, "files": count, "problems": len(problems)})
    else:
        found = f"{len(problems)} problems were found" if problems else "nothing was wrong"
        say(f"{table}: {found}; {count} file intervals were made anew.")


def _tell(snapshot: Snapshot, name: str, location: str, *, as_json: bool) -> None:
    protocol = snapshot.protocol
    fields: dict[str, Any] = {
        "table": name,
        "location": location,
        "version": snapshot.version,
        "timestamp": snapshot.timestamp.isoformat(),
        "files": snapshot.num_files,
        "size_bytes": snapshot.size_bytes,
        "partition_columns": list(snapshot.partition_columns),
        "properties": dict(snapshot.properties),
        "min_reader_version": protocol.min_reader_version,
        "min_writer_version": protocol.min_writer_version,
        "reader_features": list(protocol.reader_features or ()),
        "writer_features": list(protocol.writer_features or ()),
    }
    columns = [(f.name, str(f.type), f.nullable) for f in snapshot.schema.fields]
    if as_json:
        fields["schema"] = [{"name": n, "type": t, "nullable": null} for n, t, null in columns]
        show_json(fields)
        return
    show_fields({key: value for key, value in fields.items() if value not in ([], {})})
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
