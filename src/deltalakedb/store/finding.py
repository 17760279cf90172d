"""Which table is meant: by its name, or by its location."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.errors import (
    ConfigurationError,
    InvalidArgumentError,
    TableExistsError,
    TableNotFoundError,
)
from deltalakedb.storage import normalise_location
from deltalakedb.store.exports import exported_error, newest_export

if TYPE_CHECKING:
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session


def find_table(store: Store, session: Session, name: object) -> TableRecord:
    """The table of that name or location; one that is not there is told with its likeliest name."""
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"{name!r} is no name of a table", fix="Pass its name or its location as text"
        )
    found = store.table_by_name(session, name)
    location = None
    if found is None:
        location = as_location(name)
        if location is not None:
            found = store.table_by_location(session, location)
    if found is None:
        left = newest_export(session, name, location)
        if left is not None:
            raise exported_error(left)
        close = _closest(name, [record.name for record in store.tables(session)])
        raise TableNotFoundError(
            f"{store.dialect.url.display} has no table {name!r}",
            fix=f"Did you mean {close!r}?" if close else "See lake.tables()",
        )
    return found


def as_location(name: str) -> str | None:
    """The location that a name may be, or None where no table can be."""
    if "/" not in name and not name.startswith("file:"):
        return None
    try:
        return normalise_location(name)
    except ConfigurationError:
        return None


def _closest(name: str, known: list[str]) -> str | None:
    import difflib

    found = difflib.get_close_matches(name, known, n=1)
    return found[0] if found else None


def table_exists(name: str, location: str, other: str, other_location: str) -> TableExistsError:
    """What to say of a new table whose name or location another one has."""
    if name == other:
        return TableExistsError(
            f"A table named {name!r} exists already (at {other_location})",
            fix=f"Choose another name, or open that table: lake.table({name!r})",
        )
    return TableExistsError(
        f"The location {location} belongs to table {other!r} already",
        fix=f"Choose another location, or open that table: lake.table({other!r})",
    )
