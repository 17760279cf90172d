"""Settings of the catalog, which every program that connects to it shares: the warehouse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalakedb.errors import ConfigurationError, Fix

if TYPE_CHECKING:
    from deltalakedb.store.dialect import Session
    from deltalakedb.store.store import Store

_WAREHOUSE: Final = "warehouse"


def read_warehouse(session: Session) -> str | None:
    """The location below which tables without one lie; None if there is none."""
    row = session.one("read_setting", key=_WAREHOUSE)
    return None if row is None else session.decode_text(row[0])


def write_warehouse(store: Store, location: str | None) -> None:
    """Set another warehouse, or none. Tables stay where they are."""
    with store.write() as session:
        if location is None:
            session.changed("delete_setting", key=_WAREHOUSE)
        else:
            session.changed("write_setting", **_row(store, location))


def require_warehouse(store: Store, location: str) -> None:
    """Set the warehouse of a catalog without one; ConfigurationError if it has another."""
    with store.read() as session:
        current = read_warehouse(session)
    if current is None:
        with store.write() as session:
            session.changed("add_setting", **_row(store, location))
            # Another program may have been faster.
            current = read_warehouse(session)
    if current != location:
        raise ConfigurationError(
            f"The warehouse of {store.dialect.url.display} is {current}, and not {location}",
            why="A catalog has one warehouse, for all programs that use it",
            fix="Connect without a warehouse, or with that one; to change it: "
            f"{Fix('lake.set_warehouse', location)}",
        )


def _row(store: Store, location: str) -> dict[str, object]:
    return {"key": _WAREHOUSE, "value": location, "updated_at": store.clock.now_ms()}
