"""The pages that an import makes at once are those that commits would have made one by one."""

from collections import Counter
from pathlib import Path

from deltalakedb.lake import Lake
from deltalakedb.snapshot.page_builder import make_all_pages
from deltalakedb.snapshot.pages import read_batch
from deltalakedb.table import Table

from support.delta_log import PROTOCOL, metadata, write_commit
from support.lake import add, remove

COMMITS = 60


def write_history(folder: Path) -> None:
    """Every commit adds a hundred files; half are gone ten commits later, and some come back."""
    write_commit(folder, 0, [PROTOCOL, metadata()])
    for version in range(1, COMMITS):
        actions = [add(f"{version}-{number}") for number in range(100)]
        if version > 10:
            actions += [remove(f"{version - 10}-{number}") for number in range(50)]
        if version > 20:
            actions += [add(f"{version - 20}-{number}") for number in range(0, 50, 7)]
        write_commit(folder, version, actions)


def pages(lake: Lake, table: Table) -> tuple[object, Counter[tuple[object, ...]]]:
    """The version that pages reach, and each file of each with the version that removed it."""
    columns = "valid_from, valid_to, num_files, files, removed"
    with lake.store.read() as session:
        paged = session.run("paged_table", table_id=table.table_id)[0][0]
        rows = session.execute(
            lake.store.dialect.sql(
                f"SELECT {columns} FROM dl_file_pages WHERE table_id = :table_id"
            ),
            {"table_id": table.table_id},
        )
    found: Counter[tuple[object, ...]] = Counter()
    for valid_from, valid_to, num_files, files, removed in rows:
        batch = read_batch(files)
        assert batch.num_rows == num_files
        until = [None] * num_files if removed is None else read_batch(removed)[0].to_pylist()
        for path, at in zip(batch["path"].to_pylist(), until, strict=True):
            found[valid_from, valid_to, path, at] += 1
    return paged, found


def test_an_import_makes_the_pages_that_its_commits_would_have_made(
    lake: Lake, tmp_path: Path
) -> None:
    write_history(tmp_path)
    table = lake.import_table(str(tmp_path), name="t")
    paged, at_once = pages(lake, table)
    with lake.store.write() as session:
        lake.store.forget_pages(session, table.table_id)
    with lake.store.read() as session:
        record = lake.store.table_by_name(session, "t")
    assert record is not None
    make_all_pages(lake.store, record)
    assert pages(lake, table) == (paged, at_once)
    # There are pages for old versions, and some that serve several.
    assert len({(first, last) for first, last, _, _ in at_once}) > 5
