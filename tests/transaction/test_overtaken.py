"""A commit that others overtake between its first look and its turn at the head.

Only Postgres lets others commit at that moment: SQLite and DuckDB hold the writer's lock from the
start of the transaction.
"""

from __future__ import annotations

import pytest

import deltalakedb
from deltalakedb.errors import ConcurrentDeleteDeleteError
from deltalakedb.lake import Lake
from deltalakedb.table import Table

from support.lake import add, new_lake_table, remove

MORE_THAN_ARE_READ_UNDER_LOCK = 70


class Rival:
    """Commits to a table, once, just before another commit takes the head."""

    def __init__(self, lake: Lake, table: Table, *, app_version: int | None) -> None:
        self._lake = lake
        self._name = table.name
        self._app_version = app_version
        self._done = False

    def __call__(self, step: str) -> None:
        if step != "take" or self._done:
            return
        self._done = True
        table = self._lake.table(self._name)
        table.commit(
            [remove("old.parquet"), add("rival.parquet")],
            app_txn=None if self._app_version is None else ("load", self._app_version),
        )
        for number in range(MORE_THAN_ARE_READ_UNDER_LOCK):
            table.commit([add(f"{number}.parquet")])


@pytest.fixture
def ours(postgres_url: str) -> Lake:
    return deltalakedb.connect(postgres_url, mirror="worker")


def _overtaken(lake: Lake, rivals: Lake, *, app_version: int | None) -> Table:
    table = new_lake_table(lake)
    table.commit([add("old.parquet")])
    lake._committer._step = Rival(rivals, table, app_version=app_version)
    return table


def test_the_same_work_done_by_another_is_no_conflict(postgres_url: str, ours: Lake) -> None:
    with ours, deltalakedb.connect(postgres_url, mirror="worker") as rivals:
        table = _overtaken(ours, rivals, app_version=7)
        result = table.commit([remove("old.parquet"), add("rival.parquet")], app_txn=("load", 7))
        assert result.already_committed
        assert result == 2
        assert table.snapshot().version == 2 + MORE_THAN_ARE_READ_UNDER_LOCK


def test_other_work_that_removed_the_same_file_is_one(postgres_url: str, ours: Lake) -> None:
    with ours, deltalakedb.connect(postgres_url, mirror="worker") as rivals:
        table = _overtaken(ours, rivals, app_version=None)
        with pytest.raises(ConcurrentDeleteDeleteError):
            table.commit([remove("old.parquet"), add("ours.parquet")], app_txn=("load", 7))
        assert table.snapshot().version == 2 + MORE_THAN_ARE_READ_UNDER_LOCK


def test_independent_work_is_rebased(postgres_url: str, ours: Lake) -> None:
    with ours, deltalakedb.connect(postgres_url, mirror="worker") as rivals:
        table = _overtaken(ours, rivals, app_version=None)
        result = table.commit([add("ours.parquet")], app_txn=("load", 7))
        assert not result.already_committed
        assert result == 3 + MORE_THAN_ARE_READ_UNDER_LOCK
