"""Random histories whose old versions expire: what is left is what it was, and all comes back."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltalakedb.actions import AddFile, RemoveFile, serialise_commit
from deltalakedb.clock import ManualClock
from deltalakedb.errors import VersionNotFoundError
from deltalakedb.lake import Lake
from deltalakedb.retention.archive import (
    Manifest,
    complete,
    parts_of,
    read_rows,
    relation_of,
    write_part,
)
from deltalakedb.retention.expire import removed_rows
from deltalakedb.snapshot.page_builder import make_pages
from deltalakedb.storage import open_storage
from deltalakedb.store import Store
from deltalakedb.store.retention import (
    EXPIRING,
    Horizon,
    delete_expired,
    expiring_rows,
    restore_rows,
)
from deltalakedb.table import Table
from property.test_histories import PROPERTIES, State, Step, check, commit, histories
from property.test_store_roundtrip import Document, parsed, write
from property.test_store_roundtrip import commits as odd_commits

from support.catalog_rows import all_rows, mark_published, rows_of
from support.lake import new_lake_table
from support.profiles import examples
from support.store import commit as append_one
from support.store import new_table

DAY_MS = 86_400_000


def commits(lake: Lake, table: Table, first: int) -> list[bytes]:
    with lake.store.read() as session:
        return [
            serialise_commit(lake.store.actions_of(session, table.table_id, version))
            for version in range(first, table.version + 1)
        ]


def check_history(lake: Lake, table: Table, states: list[State], first: int) -> None:
    """From `first` on everything is there; before, nothing is, and whoever asks is told so."""
    fresh = lake.table(table.name)
    for version in range(first):
        with pytest.raises(VersionNotFoundError, match=f"versions {first} "):
            fresh.snapshot(version)
    # Each costs dozens of queries.
    for version in {first, (first + len(states)) // 2, len(states) - 1}:
        check(lake, fresh.snapshot(version), states[version])
    history = [record.version for record in fresh.history(limit=None)]
    assert history == list(range(len(states) - 1, first - 1, -1))
    with lake.store.read() as session:
        assert lake.store.check_active_files(session, table.table_id) == []
        for version in range(first):
            assert lake.store.actions_of(session, table.table_id, version) == []


@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.too_slow])
@given(history=histories, data=st.data())
def test_retained_versions_are_untouched_and_expired_ones_come_back(
    shared_lake: Lake,
    tmp_path_factory: pytest.TempPathFactory,
    history: list[Step],
    data: st.DataObject,
) -> None:
    lake = shared_lake
    assert isinstance(lake.store.clock, ManualClock)
    archive = str(tmp_path_factory.mktemp("archive"))
    options = {
        "delta.deletedFileRetentionDuration": data.draw(st.sampled_from(["1 day", "9 days"]))
    }
    table = new_lake_table(lake, f"t.{uuid4()}", properties={**PROPERTIES, **options})
    states = [State()]
    for step in history:
        lake.store.clock.advance(DAY_MS)
        states.append(commit(table, states[-1], step))
        if data.draw(st.integers(0, 3)) == 0:
            make_pages(lake.store, table._record, table.version)
    mark_published(lake, table, data.draw(st.integers(0, len(states) - 1)))
    before = all_rows(lake, table)
    actions = commits(lake, table, 0)
    first = 0
    for _ in range(data.draw(st.integers(1, 3))):
        days = data.draw(st.integers(0, len(states)))
        expired = lake.expire(table.name, older_than=timedelta(days=days), archive=archive)
        assert expired.oldest_version == max(first, expired.oldest_version)
        assert expired.versions == expired.oldest_version - first
        first = expired.oldest_version
        check_history(lake, table, states, first)
        assert commits(lake, table, first) == actions[first:]
    with lake.store.write() as session:
        kept = all_rows(lake, table)
        lake.store.rebuild_active_files(session, table.table_id)
    assert all_rows(lake, table)["dl_active_files"] == kept["dl_active_files"]
    if first:
        restored = lake.restore_expired(table.name, archive)
        assert (restored.first_version, restored.last_version) == (0, first - 1)
    assert all_rows(lake, table) == before
    check_history(lake, table, states, 0)
    assert commits(lake, table, 0) == actions


@settings(max_examples=examples(15))
@given(documents=odd_commits)
def test_any_row_comes_back_from_an_archive_as_it_was(
    shared_store: Store, documents: list[Document]
) -> None:
    store = shared_store
    actions = [parsed(write(document, ascii_only=False)) for document in documents]
    table_id = new_table(store, actions=actions)
    append_one(
        store,
        table_id,
        [
            RemoveFile(a.path, data_change=True)
            for a in actions
            if isinstance(a, AddFile) and a.deletion_vector is None
        ],
    )
    before = rows_of(store, table_id)
    horizon = Horizon(table_id, 0, 1, -1, 0)
    archive = open_storage(f"memory:///{table_id}")
    with store.read() as session:
        files = tuple(
            write_part(archive, part)
            for relation in EXPIRING
            for part in parts_of(relation, expiring_rows(session, relation, horizon), folder="run")
        )
    manifest = complete(archive, "run", Manifest(table_id, "t", "file:///t", 0, 0, 0, files))
    with store.write() as session:
        gone = {r.name: delete_expired(session, r, horizon) for r in EXPIRING}
    assert {name: n for name, n in gone.items() if n} == {
        name: n for name, n in removed_rows(manifest.files).items() if n
    }
    assert rows_of(store, table_id) != before
    again = Manifest.from_json(archive.get("run/manifest.json"), where="run")
    assert again == manifest
    with store.write() as session:
        for file in again.files:
            for rows in read_rows(file, archive.get(f"run/{file.key}")):
                restore_rows(session, relation_of(file), rows)
    assert rows_of(store, table_id) == before


@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.too_slow])
@given(history=histories, later=histories)
def test_a_table_whose_history_expires_goes_on(
    shared_lake: Lake,
    tmp_path_factory: pytest.TempPathFactory,
    history: list[Step],
    later: list[Step],
) -> None:
    lake = shared_lake
    assert isinstance(lake.store.clock, ManualClock)
    archive = str(tmp_path_factory.mktemp("archive"))
    table = new_lake_table(lake, f"t.{uuid4()}", properties=PROPERTIES)
    reader = lake.table(table.name)
    states = [State()]
    for number, step in enumerate([*history, *later]):
        lake.store.clock.advance(DAY_MS)
        states.append(commit(table, states[-1], step))
        mark_published(lake, table)
        if number % 4 == 3:
            reader.cached_snapshot()
            lake.expire(table.name, older_than="2 days", archive=archive)
            assert sorted(reader.cached_snapshot().files()["path"].to_pylist()) == sorted(
                path for path, _ in states[-1].files
            )
    oldest = min(record.version for record in table.history(limit=None))
    check_history(lake, table, states, oldest)
    lake.restore_expired(table.name, archive)
    check_history(lake, table, states, 0)
    assert Path(archive).is_dir()
