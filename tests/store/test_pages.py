"""Pages that are damaged harm neither a listing nor a commit: the rows are the authority."""

from __future__ import annotations

from deltalakedb.lake import Lake
from deltalakedb.table import Table

from fix_lake import add, new_lake_table


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
