"""Rows of a catalog: all of a table, to compare; and versions marked as published."""

from __future__ import annotations

from typing import Any

from deltalakedb.lake import Lake
from deltalakedb.store import Store
from deltalakedb.store.relations import (
    FILE_PAGES,
    PAGE_COLUMNS,
    PAGE_TEXTS,
    PAGED_TABLES,
    RELATIONS,
)
from deltalakedb.table import Table

Rows = dict[str, list[str]]


def mark_published(lake: Lake, table: Table, up_to: int | None = None) -> None:
    """Say of versions that they are in `_delta_log`, whether they are or not."""
    text = (
        "UPDATE dl_mirror_status SET status = 'SUCCEEDED', payload = NULL "
        "WHERE table_id = :table_id AND version <= :version"
    )
    params: dict[str, Any] = {
        "table_id": table.table_id,
        "version": 2**62 if up_to is None else up_to,
    }
    with lake.store.write() as session:
        session.execute_count(lake.store.dialect.sql(text), params)


def all_rows(lake: Lake, table: Table) -> Rows:
    """Every row that the catalog has of a table, by relation; pages follow from the others."""
    return rows_of(lake.store, table.table_id)


def rows_of(store: Store, table_id: str) -> Rows:
    """The same, by the id of the table."""
    found: Rows = {}
    with store.read() as session:
        for relation in RELATIONS:
            if relation in (FILE_PAGES, PAGE_COLUMNS, PAGE_TEXTS, PAGED_TABLES):
                continue
            text = f"SELECT {', '.join(relation.columns)} FROM {relation.name}"
            sql = store.dialect.sql(f"{text} WHERE table_id = :table_id")
            rows = session.execute(sql, {"table_id": table_id})
            found[relation.name] = sorted(map(repr, rows))
    return found
