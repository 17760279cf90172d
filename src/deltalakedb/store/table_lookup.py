"""Looks up tables by name or location, and tables that were exported from the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from deltalakedb.arguments import require_text
from deltalakedb.errors import (
    AmbiguousTableError,
    ConfigurationError,
    Fix,
    InvalidArgumentError,
    TableExistsError,
    TableExportedError,
    TableNotFoundError,
)
from deltalakedb.storage import normalise_location
from deltalakedb.store.relations import EXPORTED_TABLES

if TYPE_CHECKING:
    from deltalakedb.store import Store
    from deltalakedb.store.dialect import Row, Session
    from deltalakedb.store.rows import TableRecord

_DEFAULT: Final = "default"
"""The schema of Spark that the catalog has no word for."""


def find_table(store: Store, session: Session, name: object) -> TableRecord:
    """Return the table of a name or location; the error for a missing one suggests a name."""
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"{name!r} is no name of a table", fix="Pass its name or its location as text"
        )
    table = store.table_by_name(session, name)
    location = None
    if table is None:
        location = as_location(name)
        if location is not None:
            table = store.table_by_location(session, location)
    if table is None:
        left = newest_export(session, name, location)
        if left is not None:
            raise exported_error(left)
        close = _closest(name, [record.name for record in store.tables(session)])
        raise TableNotFoundError(
            f"{store.dialect.url.display} has no table {name!r}",
            fix=f"Did you mean {close!r}?" if close else f"See {Fix('lake.tables')}",
        )
    return table


def find_table_by_spark_name(store: Store, session: Session, name: str) -> TableRecord | None:
    """Return the table that Spark calls `name`; None if there is none.

    - Spark's `default.orders`, or `orders` alone, is the table `orders` or `default.orders`.
    - The exact name precedes names that differ from it in case. Of two that are left, neither is
      taken: AmbiguousTableError.
    - Spark has no name for a table with more than one dot in its own.
    """
    require_text("name", name)
    schema, dot, table = name.rpartition(".")
    if "." in schema or (dot and not (schema and table)):
        return None
    wanted = [name]
    if not dot or schema.lower() == _DEFAULT:
        wanted = [table, f"{_DEFAULT}.{table}"]
    same = [record for one in wanted if (record := store.table_by_name(session, one)) is not None]
    if not same:
        lowered = {one.lower() for one in wanted}
        names = [session.decode_text(row[0]) for row in session.run("table_names")]
        alike = [store.table_by_name(session, one) for one in names if one.lower() in lowered]
        same = [record for record in alike if record is not None]
    if len(same) > 1:
        names = sorted(record.name for record in same)
        raise AmbiguousTableError(
            f"Spark's name {name!r} is that of {len(same)} tables: {', '.join(map(repr, names))}",
            why="Spark compares names without case, and a table without a schema is in its "
            f"schema {_DEFAULT!r}",
            fix=f"Rename all but one of them: {Fix('lake.table', names[0])} and its method rename",
        )
    return same[0] if same else None


def as_location(name: str) -> str | None:
    """Return a name as a location, or None if it cannot be one."""
    if "/" not in name and not name.startswith("file:"):
        return None
    try:
        return normalise_location(name)
    except ConfigurationError:
        return None


def _closest(name: str, names: list[str]) -> str | None:
    import difflib

    matches = difflib.get_close_matches(name, names, n=1)
    return matches[0] if matches else None


def table_exists(name: str, location: str, other: str, other_location: str) -> TableExistsError:
    """Return the error for a new table whose name or location is taken."""
    if name == other:
        return TableExistsError(
            f"A table named {name!r} exists already (at {other_location})",
            fix=f"Choose another name, or open that table: {Fix('lake.table', name)}",
        )
    return TableExistsError(
        f"The location {location} belongs to table {other!r} already",
        fix=f"Choose another location, or open that table: {Fix('lake.table', other)}",
    )


# --- exported tables ------------------------------------------------------------------


class ExportRecord(NamedTuple):
    """An exported table: its last name, its location, and its last version in the catalog."""

    table_id: str
    name: str
    location: str
    version: int
    exported_at: int


def record_export(session: Session, record: ExportRecord) -> None:
    """Record a table that is exported in this transaction."""
    session.insert(EXPORTED_TABLES, [tuple(record)])


def export_of(session: Session, table_id: str) -> ExportRecord | None:
    """Return the export of the table with this id."""
    return _record(session, session.one("exported_by_id", table_id=table_id))


def newest_export(session: Session, name: str, location: str | None) -> ExportRecord | None:
    """Return the last export of a table with this name or location."""
    # No table has an empty location.
    row = session.one("newest_export", name=name, location=location or "")
    return _record(session, row)


def not_registered(session: Session, table: TableRecord) -> TableNotFoundError:
    """Return the error for a table that is not in the catalog any more."""
    export = export_of(session, table.table_id)
    if export is not None:
        return exported_error(export)
    return TableNotFoundError(
        f"Table {table.name!r} is not registered any more",
        why="It was dropped meanwhile",
        fix=f"See {Fix('lake.tables')}",
    )


def exported_error(record: ExportRecord) -> TableExportedError:
    """Return the error for an exported table."""
    return TableExportedError(
        f"Table {record.name!r} was exported from this catalog at version {record.version}",
        why=f"It is an ordinary Delta table at {record.location} now",
        fix="Read and write it there with any Delta engine, or take it back: "
        f"{Fix('lake.import_table', record.location, name=record.name)}",
    )


def _record(session: Session, row: Row | None) -> ExportRecord | None:
    if row is None:
        return None
    table_id, name, location, version, exported_at = row
    decode = session.decode_text
    return ExportRecord(table_id, decode(name), decode(location), int(version), int(exported_at))
