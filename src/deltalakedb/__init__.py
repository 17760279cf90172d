"""Delta Lake tables whose transaction log lives in a SQL database.

    import deltalakedb
    lake = deltalakedb.connect("sqlite:///lake.db")

Importing this package imports no driver; `connect` brings in what its URL needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalakedb.lake import Lake

__all__ = ["connect", "errors", "migrate"]


def connect(url: str, **options: Any) -> Lake:
    """Open the catalog at `url`: sqlite:///lake.db, duckdb:///lake.duckdb, postgresql://….

    An empty database gets its schema, any other is checked. `committer` is the name written with
    each commit (default: the user of this process), `retry` a RetryPolicy. The result is also a
    context manager.
    """
    from deltalakedb.lake import Lake

    return Lake.connect(url, **options)


def migrate(url: str) -> list[str]:
    """Bring the schema of the catalog at `url` up to date; the names of what was applied."""
    from deltalakedb.store import Store

    store = Store.open(url)
    try:
        return [f"{m.version:04d}_{m.name}" for m in store.migrator.up()]
    finally:
        store.close()
