"""Tables that have left the catalog: what is remembered of them, as verbs inside a transaction.

A commit, or whoever asks for such a table, is told that it was exported, and where it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from deltalakedb.errors import TableExportedError, TableNotFoundError
from deltalakedb.store.relations import EXPORTED_TABLES

if TYPE_CHECKING:
    from deltalakedb.store.dialect import Row, Session
    from deltalakedb.store.records import TableRecord


class ExportRecord(NamedTuple):
    """A table that was exported: its last name, where it lies, and the last version from here."""

    table_id: str
    name: str
    location: str
    version: int
    exported_at: int


def record_export(session: Session, record: ExportRecord) -> None:
    """Remember a table that leaves in this transaction."""
    session.insert(EXPORTED_TABLES, [tuple(record)])


def export_of(session: Session, table_id: str) -> ExportRecord | None:
    """The export of the table with that id."""
    return _record(session, session.one("exported_by_id", table_id=table_id))


def newest_export(session: Session, name: str, location: str | None) -> ExportRecord | None:
    """The last export of a table that had this name, or lay at this location."""
    # No table lies nowhere: an empty location finds none.
    row = session.one("newest_export", name=name, location=location or "")
    return _record(session, row)


def gone(session: Session, table: TableRecord) -> TableNotFoundError:
    """What to tell whoever holds a table that is not in the catalog any more."""
    found = export_of(session, table.table_id)
    if found is not None:
        return exported_error(found)
    return TableNotFoundError(
        f"Table {table.name!r} is not registered any more",
        why="It was dropped meanwhile",
        fix="See lake.tables()",
    )


def exported_error(record: ExportRecord) -> TableExportedError:
    """The error for a table that was exported."""
    return TableExportedError(
        f"Table {record.name!r} was exported from this catalog at version {record.version}",
        why=f"It is an ordinary Delta table at {record.location} now",
        fix="Read and write it there with any Delta engine, or take it back: "
        f"lake.import_table({record.location!r}, name={record.name!r})",
    )


def _record(session: Session, row: Row | None) -> ExportRecord | None:
    if row is None:
        return None
    table_id, name, location, version, exported_at = row
    decode = session.decode_text
    return ExportRecord(table_id, decode(name), decode(location), int(version), int(exported_at))
