"""The optional function for ranges over statistics, and the index that serves them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import uuid4

import pytest

from deltalakedb.store import Store
from deltalakedb.store.relations import LIVE, UNPLANNED_FILES

INDEX = """
    CREATE INDEX dl_active_files_range_id ON dl_active_files USING brin (
        dl_stat_number(stats, 'minValues', 'id'), dl_stat_number(stats, 'maxValues', 'id')
    ) WITH (pages_per_range = 8)
"""
RANGE = """
    SELECT path FROM dl_active_files
    WHERE table_id = %(table_id)s AND removed_version > %(version)s AND added_version <= %(version)s
      AND (dl_stat_number(stats, 'maxValues', 'id') >= %(low)s
           OR dl_stat_number(stats, 'maxValues', 'id') IS NULL)
      AND (dl_stat_number(stats, 'minValues', 'id') <= %(high)s
           OR dl_stat_number(stats, 'minValues', 'id') IS NULL)
"""
FILES = 20_000
PARAMS = {"version": 1, "low": 500_000, "high": 500_999}


@pytest.fixture
def catalog(postgres_url: str) -> Iterator[Store]:
    """A catalog whose schema is there."""
    store = Store.open(postgres_url)
    store.migrator.ensure()
    yield store
    store.close()


def _stats(number: int) -> str:
    low = number * 100
    return json.dumps({"minValues": {"id": low}, "maxValues": {"id": low + 99}})


def test_a_range_is_served_by_the_index_and_unknown_bounds_may_match(catalog: Store) -> None:
    table_id = str(uuid4())
    odd = {"nan": '{"maxValues":{"id":NaN}}', "none": None, "text": '{"maxValues":{"id":"x"}}'}
    files = [(f"part-{n:06d}", _stats(n)) for n in range(FILES)] + list(odd.items())
    rest = (1, 1, True, "{}")
    with catalog.write() as session:
        rows = [
            (table_id, path, "", 0, LIVE, *rest, stats, None, None, None, None, None, None)
            for path, stats in files
        ]
        session.insert(UNPLANNED_FILES, rows)
    assert catalog.migrator.apply_optional("range_statistics")
    with catalog.write() as session:
        session.script(INDEX)
        session.script("ANALYZE dl_active_files")
    with catalog.read() as session:
        session.read_all()
        params = {"table_id": table_id, **PARAMS}
        found = {row[0] for row in session.execute(RANGE, params)}
        plan = json.dumps(session.execute(f"EXPLAIN (FORMAT JSON) {RANGE}", params)[0][0])
    assert found == {f"part-{n:06d}" for n in range(5_000, 5_010)} | set(odd)
    assert "dl_active_files_range_id" in plan


def test_the_function_goes_with_the_indexes_that_use_it(catalog: Store) -> None:
    assert catalog.migrator.apply_optional("range_statistics")
    assert not catalog.migrator.apply_optional("range_statistics")
    with catalog.write() as session:
        session.script(INDEX)
    assert catalog.migrator.revert_optional("range_statistics")
    with catalog.read() as session:
        assert not session.execute(
            "SELECT 1 FROM pg_class WHERE relname = %(name)s", {"name": "dl_active_files_range_id"}
        )
        assert not session.execute("SELECT 1 FROM pg_proc WHERE proname = 'dl_stat_number'", {})
