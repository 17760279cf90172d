"""Many pages are listed like one. Damaged ones harm nobody: the rows are the authority."""

from __future__ import annotations

import pytest

from deltalakedb.lake import Lake
from deltalakedb.snapshot import page_builder, pages
from deltalakedb.table import Table

from support.lake import add, new_lake_table


def damage(lake: Lake, table: Table) -> None:
    with lake.store.write() as session:
        (row,) = session.run("open_pages", table_id=table.table_id)
        page = {"table_id": table.table_id, "page_id": row[0]}
        query = "UPDATE dl_file_pages SET files = :files WHERE table_id = :table_id"
        params = {"files": b"no Arrow at all", **page}
        text = lake.store.dialect.sql(f"{query} AND page_id = :page_id")
        session.execute_count(text, params)


def test_a_damaged_page_is_passed_over_and_the_next_commit_succeeds(lake: Lake) -> None:
    table = new_lake_table(lake)
    table.commit([add(f"f{n}") for n in range(1_500)])
    assert table.snapshot().files().num_rows == 1_500
    assert "page_failures_total" not in lake.metrics.read()
    damage(lake, table)
    assert table.snapshot().files().num_rows == 1_500
    assert lake.metrics.read()["page_failures_total"] == 1
    # Pages are due, and for them the damaged one is read: the commit has happened all the same.
    removes = [{"remove": {"path": f"f{n}", "dataChange": True}} for n in range(1_400)]
    assert table.commit(removes, operation="DELETE") == 2
    assert lake.metrics.read()["page_failures_total"] == 2
    assert table.snapshot().num_files == 100
    assert table.snapshot().files().num_rows == 100


def test_many_pages_and_gaps_between_them_list_every_version(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_builder, "PAGE_FILES", 3)
    monkeypatch.setattr(pages, "LEAST_FILES", 0)
    monkeypatch.setattr(pages, "LEAST_STREAMED", 0)
    table = new_lake_table(lake)
    expected = [set[str]()]
    files = {f"f{n:02}" for n in range(60)}
    gone = {f"f{n:02}" for n in (*range(9, 18), *range(30, 33))}
    table.commit([add(path) for path in sorted(files)])
    expected.append(files)
    assert page_builder.make_pages(lake.store, table._record, 1)
    removes = [{"remove": {"path": path, "dataChange": True}} for path in sorted(gone)]
    table.commit(removes, operation="DELETE")
    expected.append(files - gone)
    # Whole pages in the middle end here; the numbers of the others have gaps.
    assert page_builder.make_pages(lake.store, table._record, 2)
    table.commit([add("late"), {"remove": {"path": "f00", "dataChange": True}}])
    expected.append(files - gone - {"f00"} | {"late"})
    for version, paths in enumerate(expected):
        snapshot = table.snapshot(version)
        found = pages.list_from_pages(
            lake.store, snapshot.table, version, ("path",), expected=len(paths)
        )
        if version:
            assert found is not None, "the pages tell"
            assert sorted(found["path"].to_pylist()) == sorted(paths)
        streamed = [path for batch in snapshot.iter_files(7) for path in batch["path"].to_pylist()]
        assert sorted(streamed) == sorted(paths)
    with lake.store.read() as session:
        assert len(list(session.pages_at(table.table_id, 1, with_stats=True))) == 20
        assert len(list(session.pages_at(table.table_id, 3, with_stats=True))) == 16
