"""Texts of pages in groups: each file has its own, whichever files of the page are read."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb.lake import Lake
from deltalakedb.snapshot import matching, page_builder, page_texts
from deltalakedb.store.arrow import schema_of
from deltalakedb.store.relations import LIVE
from deltalakedb.table import Table
from snapshot.test_matching import CONDITIONS, check_every_version, history, listed, of_rows

__all__ = ["history"]
GROUPS = "SELECT group_id FROM dl_page_texts WHERE table_id = :table_id"


def groups_of(lake: Lake, table: Table) -> set[int]:
    with lake.store.read() as session:
        sql = lake.store.dialect.sql(GROUPS)
        return {row[0] for row in session.execute(sql, {"table_id": table.table_id})}


class Answers:
    """A session that has one page and its groups."""

    def __init__(self, page_id: int, files: pa.Table) -> None:
        self.column = [(page_id, page_texts.TYPE, page_texts.files_batch(files))]
        self.groups = {row[1]: row[1:] for row in page_texts.text_rows("t", page_id, files)}

    def page_bounds(self, *_: Any, **__: Any) -> Any:
        return self.column

    def page_texts(self, _: str, numbers: list[int], *, with_stats: bool) -> Any:
        return [self.groups[number][: 3 if with_stats else 2] for number in numbers]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 64, 100])
def test_each_file_has_its_own_texts(size: int) -> None:
    rng = random.Random(size)
    text = ["", "é" * 300, "plain", "\0", "𝄞x", '{"numRecords":1}' * 20]
    rows = [
        {
            "path": f"{n}{rng.choice(text)}",
            "dv_id": "",
            "stats": rng.choice([*text, None]),
            "size_bytes": n,
            "removed_version": LIVE,
        }
        for n in range(size)
    ]
    columns = ("path", "dv_id", "stats", "size_bytes", "removed_version")
    files = pa.Table.from_pylist(rows, schema=schema_of(columns))
    session: Any = Answers(3, files)
    for count in range(1, size + 1, max(1, size // 7)):
        chosen = sorted(rng.sample(range(size), count))
        for names in (["stats", "path", "size_bytes"], ["path"], ["size_bytes"], ["stats"]):
            at = pa.array(chosen, pa.uint64())
            (batch,) = page_texts.read_few(session, "t", 0, {3: at}, names).values()
            assert batch.to_pylist() == [{k: rows[n][k] for k in names} for n in chosen]


def test_files_are_the_same_by_groups(
    lake: Lake, history: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    few = page_texts.read_few

    def counted(*arguments: Any, **options: Any) -> Any:
        batches = few(*arguments, **options)
        read.extend(batches)
        return batches

    monkeypatch.setattr(matching, "is_few", lambda *_: True)
    monkeypatch.setattr(matching, "read_few", counted)
    assert check_every_version(history) > 1_000
    assert read
    assert "page_failures_total" not in lake.metrics.read()


def test_pages_without_groups_are_decoded(lake: Lake, history: Table) -> None:
    """As in a catalog that an older release has written, or when one is deleted meanwhile."""
    with lake.store.write() as session:
        session.changed("forget_page_texts", table_id=history.table_id, first=0, last=LIVE)
    assert check_every_version(history) > 1_000
    assert "page_failures_total" not in lake.metrics.read()


def test_only_pages_of_the_newest_version_have_groups(lake: Lake, history: Table) -> None:
    with lake.store.read() as session:
        open_pages = {row[0] for row in session.run("open_pages", table_id=history.table_id)}
    assert {group // 4_096 for group in groups_of(lake, history)} == open_pages
    version = history.snapshot().version
    adds = [{"remove": {"path": f"f{n:05}", "dataChange": True}} for n in range(12, 30)]
    history.commit(adds)
    assert page_builder.make_pages(lake.store, history._record, version + 1, most_gone=0.0)
    with lake.store.read() as session:
        moved = {row[0] for row in session.run("open_pages", table_id=history.table_id)}
    assert moved != open_pages
    assert {group // 4_096 for group in groups_of(lake, history)} == moved
    snapshot = history.snapshot()
    for where in CONDITIONS:
        assert listed(snapshot.files(where)) == of_rows(snapshot, where)
    with lake.store.write() as session:
        lake.store.forget_pages(session, history.table_id)
    assert not groups_of(lake, history)
