"""Queries for the files of a version: one range predicate for the head and for older versions.

Column names come from a closed set; keys and values are parameters.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from deltalakedb.actions import AddFile
from deltalakedb.actions.codec import to_dict
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.arguments import require_texts
from deltalakedb.errors import ConfigurationError
from deltalakedb.forking import owned
from deltalakedb.snapshot.resolve import check_version
from deltalakedb.store.arrow import FileQuery, schema_of
from deltalakedb.store.queries import rewrite
from deltalakedb.store.relations import LIVE
from deltalakedb.store.retention import first_version
from deltalakedb.telemetry import span

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.conditions.planned import Sql
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session
    from deltalakedb.store.url import Engine

DEFAULT_COLUMNS = (
    "path",
    "dv_id",
    "added_version",
    "size_bytes",
    "modification_time",
    "partition_values",
    "stats",
    "deletion_vector",
)
"""The columns that reading a table needs. The others are rarely set, and each costs time."""

COLUMNS = (
    *DEFAULT_COLUMNS,
    "tags",
    "base_row_id",
    "default_row_commit_version",
    "data_change",
    "clustering_provider",
    "extra",
)
"""Every column of a listing. Maps and descriptors are JSON text."""

_LIVE_AT = "table_id = :table_id AND added_version <= :version AND removed_version > :version"
# When a version expires, files that no later version needs are deleted from the catalog. Without
# this test, the remaining files would pass for the complete listing.
_THERE = (
    "EXISTS (SELECT 1 FROM dl_table_versions AS v "
    "WHERE v.table_id = :table_id AND v.version = :version)"
)
# The same order on every engine: by code point, whatever the language of the database.
_ORDER: dict[Engine, str] = {
    "postgres": 'path COLLATE "C", dv_id COLLATE "C"',
    "sqlite": "path, dv_id",
    "duckdb": "path, dv_id",
}
NO_LIMIT = 2**62
"""The greatest LIMIT that every engine accepts."""


def files_at(
    table: TableRecord,
    version: int,
    columns: tuple[str, ...],
    *,
    engine: Engine = "sqlite",
    limit: int | None = None,
    offset: int = 0,
) -> FileQuery:
    """The query for the files that are live at a version; by path with a limit or offset."""
    keys: dict[str, str | int] = {"table_id": table.table_id, "version": version}
    text = f"SELECT {', '.join(columns)} FROM dl_active_files WHERE {_LIVE_AT} AND {_THERE}"  # noqa: S608
    if limit is not None or offset:
        text += f" ORDER BY {_ORDER[engine]} LIMIT :limit OFFSET :offset"
        keys["limit"] = NO_LIMIT if limit is None else min(limit, NO_LIMIT)
        keys["offset"] = min(offset, NO_LIMIT)
    return FileQuery(text, columns, keys, at=version)


def read_looked_up(
    store: Store, table: TableRecord, version: int, columns: tuple[str, ...], lookup: Sql
) -> pa.Table | None:
    """Run a lookup by keys of a planned column; None where the plan has changed."""
    query = FileQuery(
        f"{lookup.text} AND {_THERE}",
        columns,
        {"table_id": table.table_id, "version": version},
        lookup.params,
        by_index=True,
    )
    files = read_table(store, table, query)
    return None if not files.num_rows and _replanned(store, table, query) else files


def files_added(
    table: TableRecord, since: int, version: int, columns: tuple[str, ...], engine: Engine
) -> FileQuery:
    """Return the query for the files that are live at `version` and were added after `since`.

    It has two halves. Files that are still live are adjacent in the index. Files that were removed
    later are looked up by the adds of the ledger, not among all removed files.
    """
    chosen = ", ".join(f"f.{name}" for name in columns)
    keys: dict[str, str | int] = {"table_id": table.table_id, "since": since, "version": version}
    text = f"SELECT {chosen} FROM dl_active_files AS f WHERE {_ADDED} AND "  # noqa: S608
    if engine == "duckdb":
        return FileQuery(f"{text} f.removed_version > :version", columns, keys)
    return FileQuery(
        f"{text} f.removed_version = :live UNION ALL SELECT {chosen} {_FROM_LEDGER[engine]}",
        columns,
        {**keys, "live": LIVE},
        by_index=True,
    )


_ADDED = "f.table_id = :table_id AND f.added_version > :since AND f.added_version <= :version"
_ADDS = "a.table_id = :table_id AND a.version > :since AND a.version <= :version"
_THIS_ADD = (
    "f.table_id = :table_id AND f.path = a.path AND f.dv_id = a.dv_id "
    "AND f.added_version + 0 = a.version "
    "AND f.removed_version + 0 > :version AND f.removed_version + 0 < :live"
)
_FROM_LEDGER: dict[Engine, str] = {
    "postgres": "FROM dl_add_files AS a CROSS JOIN LATERAL "  # noqa: S608
    f"(SELECT * FROM dl_active_files AS f WHERE {_THIS_ADD} OFFSET 0) AS f WHERE {_ADDS}",
    "sqlite": f"FROM dl_add_files AS a CROSS JOIN dl_active_files AS f ON {_THIS_ADD} "
    f"WHERE {_ADDS}",
}


def files_removed(
    table: TableRecord, since: int, version: int, columns: tuple[str, ...] = ("path", "dv_id")
) -> FileQuery:
    """Return the query for the files that were live at `since` and are not at `version`."""
    text = (
        f"SELECT {', '.join(columns)} FROM dl_active_files WHERE table_id = :table_id "  # noqa: S608
        "AND removed_version > :since AND removed_version <= :version AND added_version <= :since"
    )
    keys: dict[str, str | int] = {"table_id": table.table_id, "since": since, "version": version}
    return FileQuery(text, columns, keys, by_index=True)


# --- running ------------------------------------------------------------------------------


def read_table(store: Store, table: TableRecord, query: FileQuery) -> pa.Table:
    """Run a query and return its whole result."""
    import pyarrow as pa

    with span("deltalakedb.files", table=table.name):
        batches = list(store.dialect.list_files(query))
    files = pa.Table.from_batches(batches, schema_of(query.columns))
    if query.at is not None and not files.num_rows:
        check_version(store, table, query.at)
    store.metrics.count("rows_scanned", files.num_rows)
    return files


def _replanned(store: Store, table: TableRecord, query: FileQuery) -> bool:
    """Whether the plan of the table has changed since the query was built."""
    from deltalakedb.conditions.planned import plan_key

    row = store.dialect.ask(lambda session: session.one("plan", table_id=table.table_id))
    now = None if row is None or row[0] is None else plan_key(row[0], store.dialect.engine)
    return str(now) != str(query.params["plan"])


def read_batches(
    store: Store, table: TableRecord, query: FileQuery, batch_size: int
) -> Generator[pa.RecordBatch, None, None]:
    """Run a query and yield batches of exactly `batch_size` rows; the last may be smaller."""
    with closing(_counted(store, table, query)) as batches:
        yield from rebatch(batches, batch_size)


def _counted(
    store: Store, table: TableRecord, query: FileQuery
) -> Generator[pa.RecordBatch, None, None]:
    rows = 0
    listed = store.dialect.list_files(query)
    with closing(owned(listed, f"The listing of the files of table {table.name!r}")) as batches:
        while True:
            # One span for each fetch: the time of the consumer does not count.
            with span("deltalakedb.files", table=table.name):
                batch = next(batches, None)
            if batch is None:
                break
            rows += batch.num_rows
            store.metrics.count("rows_scanned", batch.num_rows)
            yield batch
    if query.at is not None and not rows:
        check_version(store, table, query.at)


def rebatched(
    batches: Generator[pa.RecordBatch, None, None], size: int
) -> Generator[pa.RecordBatch, None, None]:
    """Like `rebatch`; closing the result closes `batches`."""
    with closing(batches):
        yield from rebatch(batches, size)


def rebatch(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of exactly `size` rows; the last may be smaller."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        start = 0
        while rows + batch.num_rows - start >= size:
            piece = batch.slice(start, size - rows)
            yield pa.concat_batches([*held, piece]) if held else piece
            start += size - rows
            held, rows = [], 0
        if start < batch.num_rows:
            held.append(batch.slice(start))
            rows += batch.num_rows - start
    if held:
        yield pa.concat_batches(held)


# --- arguments ----------------------------------------------------------------------------


def check_columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    """Check the columns of a listing; None stands for the default columns."""
    if columns is None:
        return DEFAULT_COLUMNS
    names = require_texts("columns", columns, fix=f"Pass columns out of: {', '.join(COLUMNS)}")
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names or len(set(names)) < len(names):
        raise ConfigurationError(
            f"columns={columns!r} cannot be listed",
            why=f"There is no {unknown[0]!r}" if unknown else "",
            fix=f"Pass columns out of: {', '.join(COLUMNS)}",
        )
    return tuple(names)


# --- files of a commit that is not in the catalog -------------------------------------


def files_of_adds(
    adds: Iterable[AddFile], version: int, columns: Sequence[str] = DEFAULT_COLUMNS
) -> pa.Table:
    """Return the files of add actions as a listing, sorted by path."""
    import pyarrow as pa

    rows = []
    for add in sorted(adds, key=lambda one: (one.path, one.dv_id)):
        vector = to_dict(add)["add"].get("deletionVector")
        rows.append(
            {
                "path": add.path,
                "dv_id": add.dv_id,
                "added_version": version,
                "size_bytes": add.size,
                "modification_time": add.modification_time,
                "partition_values": dumps(dict(add.partition_values)),
                "stats": add.stats,
                "deletion_vector": None if vector is None else dumps(vector),
                "tags": None if add.tags is None else dumps(dict(add.tags)),
                "base_row_id": add.base_row_id,
                "default_row_commit_version": add.default_row_commit_version,
                "data_change": add.data_change,
                "clustering_provider": add.clustering_provider,
                "extra": dumps(dict(add.extra)) if add.extra else None,
            }
        )
    return pa.Table.from_pylist(rows, schema=schema_of(columns))


# --- files that retention still needs ---------------------------------------------------

_BATCH: Final = 10_000
_DATA: Final = (
    "SELECT path, deletion_vector FROM dl_active_files "
    "WHERE table_id = :table_id AND removed_version > :since"
)
_EXPIRED: Final = (
    "SELECT path, deletion_vector FROM dl_remove_files "
    "WHERE table_id = :table_id AND version <= :first "
    "AND coalesce(deletion_timestamp, 0) > :cutoff"
)
_COLUMNS: Final = ("path", "deletion_vector")


def needed_files(
    store: Store, table: TableRecord, cutoff_ms: int
) -> Iterator[tuple[str, str | None]]:
    """Yield the path and deletion vector descriptor of each file that versions since a time need.

    The first of these versions is the one that was newest at that time. Change data files are
    included. If that version has expired, files removed since that time are included too.
    """
    with store.read() as session:
        row = session.one(
            "version_at_timestamp", table_id=table.table_id, timestamp=max(-1, cutoff_ms)
        )
        since = -1 if row is None else int(row[0])
        first = first_version(session, table.table_id) if row is None else None
        changes = session.run("change_files_since", table_id=table.table_id, version=since)
    for (path,) in changes:
        yield str(path), None
    queries = [FileQuery(_DATA, _COLUMNS, {"table_id": table.table_id, "since": since})]
    if first:
        keys: dict[str, str | int] = {
            "table_id": table.table_id,
            "first": first,
            "cutoff": cutoff_ms,
        }
        queries.append(FileQuery(_EXPIRED, _COLUMNS, keys))
    for query in queries:
        with closing(read_batches(store, table, query, _BATCH)) as batches:
            for batch in batches:
                yield from zip(
                    batch.column("path").to_pylist(),
                    batch.column("deletion_vector").to_pylist(),
                    strict=True,
                )


# --- tombstones -----------------------------------------------------------------------

_DAY_MS: Final = 86_400_000
_TOMBSTONES: Final = (
    "FROM dl_remove_files AS r "
    "WHERE r.table_id = :table_id AND r.version > :since AND r.version <= :version "
    "AND coalesce(r.deletion_timestamp, 0) > :cutoff "
    "AND NOT EXISTS (SELECT 1 FROM dl_add_files AS a WHERE a.table_id = :table_id "
    "AND a.path = r.path AND a.dv_id = r.dv_id "
    "AND a.version > r.version AND a.version <= :version) "
    "AND NOT EXISTS (SELECT 1 FROM dl_remove_files AS n WHERE n.table_id = :table_id "
    "AND n.path = r.path AND n.dv_id = r.dv_id "
    "AND n.version > r.version AND n.version <= :version)"
)
# Postgres keeps this map as JSONB, which has no Arrow type.
_AS_TEXT: Final = {"partition_values": "CAST(r.partition_values AS TEXT) AS partition_values"}


def first_tombstone_version(session: Session, table: TableRecord, cutoff_ms: int) -> int:
    """Return the version after which removes can be newer than `cutoff_ms`; -1 for all versions.

    A deletion timestamp more than a day ahead of its own commit is not trusted.
    """
    row = session.one(
        "version_at_timestamp", table_id=table.table_id, timestamp=max(-1, cutoff_ms - _DAY_MS)
    )
    return -1 if row is None else int(row[0])


def tombstones_at(
    table: TableRecord, version: int, columns: tuple[str, ...], *, since: int, cutoff_ms: int
) -> FileQuery:
    """Return the query for the tombstones of a version with a deletion newer than `cutoff_ms`.

    A remove is a tombstone unless a later commit has added or removed its file again.
    `since` comes from `first_tombstone_version`; `columns` are columns of dl_remove_files.
    """
    chosen = ", ".join(_AS_TEXT.get(name, f"r.{name}") for name in columns)
    keys: dict[str, str | int] = {
        "table_id": table.table_id,
        "since": since,
        "version": version,
        "cutoff": cutoff_ms,
    }
    return FileQuery(f"SELECT {chosen} {_TOMBSTONES}", columns, keys, by_index=True)


def count_tombstones(
    session: Session, table: TableRecord, version: int, *, since: int, cutoff_ms: int
) -> int:
    """Return the number of rows of `tombstones_at`."""
    keys = {
        "table_id": table.table_id,
        "since": since,
        "version": version,
        "cutoff": cutoff_ms,
    }
    ((count,),) = session.execute(rewrite(f"SELECT count(*) {_TOMBSTONES}", session.engine), keys)
    return int(count)
