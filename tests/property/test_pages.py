"""Pages against a replay: whenever they are made, every version lists what it listed without."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltalakedb.clock import ManualClock
from deltalakedb.lake import Lake
from deltalakedb.snapshot import listing, page_builder, pages
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.snapshot.page_builder import make_all_pages, make_pages
from deltalakedb.table import Table
from property.test_histories import (
    PROPERTIES,
    State,
    Step,
    commit,
    expected_files,
    histories,
    listed,
)

from support.lake import new_lake_table
from support.profiles import examples


@pytest.fixture(autouse=True, scope="module")
def tiny_pages() -> Iterator[None]:
    """Pages of two files for any table: a few files are many pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_builder, "PAGE_FILES", 2)
        patch.setattr(page_builder, "LEAST_CHANGES", 3)
        patch.setattr(page_builder, "_SHARE", 2)
        patch.setattr(pages, "LEAST_FILES", 0)
        patch.setattr(pages, "LEAST_STREAMED", 0)
        yield


def check_versions(lake: Lake, table: Table, states: list[State]) -> int:
    """Every version lists what the replay tells; how many of them pages served."""
    served = 0
    for version, state in enumerate(states):
        snapshot = table.snapshot(version)
        expected = expected_files(state)
        found = pages.list_from_pages(
            lake.store, snapshot.table, version, COLUMNS, expected=len(expected)
        )
        rows = listing.read_table(
            lake.store, snapshot.table, listing.files_at(snapshot.table, version, COLUMNS)
        )
        assert listed(rows) == expected
        with lake.store.read() as session:
            there = list(session.pages_at(table.table_id, version, with_stats=True))
        assert (found is not None) == bool(there), "a wrong number of files would be passed over"
        if found is not None:
            served += 1
            order = [("path", "ascending"), ("dv_id", "ascending")]
            assert found.sort_by(order).to_pylist() == rows.sort_by(order).to_pylist()
        assert listed(snapshot.files()) == expected
        streamed = list(snapshot.iter_files(3, columns=COLUMNS))
        assert all(batch.num_rows == 3 for batch in streamed[:-1])
        assert sorted(row for batch in streamed for row in listed(batch)) == expected
        stream = pages.stream_pages(
            lake.store, snapshot.table, version, ("size_bytes",), expected=len(expected)
        )
        assert (stream is not None) == bool(there)
        if stream is not None:
            sizes = [size.as_py() for batch in stream for size in batch["size_bytes"]]
            assert sorted(sizes) == sorted(row[2] for row in expected)
    return served


@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.too_slow])
@given(
    history=histories,
    when=st.lists(st.booleans(), min_size=16, max_size=16),
    most_gone=st.sampled_from([0.0, 0.2, 0.6]),
)
def test_pages_tell_what_rows_tell(
    shared_lake: Lake, history: list[Step], when: list[bool], most_gone: float
) -> None:
    lake = shared_lake
    assert isinstance(lake.store.clock, ManualClock)
    table = new_lake_table(lake, f"p.{uuid4()}", properties=PROPERTIES)
    states = [State()]
    made = False
    for number, step in enumerate(history):
        lake.store.clock.advance(step.wait)
        states.append(commit(table, states[-1], step))
        if when[number]:
            made = make_pages(lake.store, table._record, table.version, most_gone=most_gone)
            assert made
    served = check_versions(lake, table, states)
    if made and states[-1].files and when[len(history) - 1]:
        assert served
    make_all_pages(lake.store, table._record)
    check_versions(lake, table, states)


@settings(max_examples=examples(3), suppress_health_check=[HealthCheck.too_slow])
@given(history=histories)
def test_pages_of_a_whole_history_tell_what_rows_tell(
    shared_lake: Lake, history: list[Step]
) -> None:
    lake = shared_lake
    assert isinstance(lake.store.clock, ManualClock)
    table = new_lake_table(lake, f"p.{uuid4()}", properties=PROPERTIES)
    states = [State()]
    for step in history:
        lake.store.clock.advance(step.wait)
        states.append(commit(table, states[-1], step))
    with lake.store.write() as session:
        lake.store.forget_pages(session, table.table_id)
    make_all_pages(lake.store, table._record)
    served = check_versions(lake, table, states)
    assert served or not states[-1].files
    assert not make_pages(lake.store, table._record, table.version - 1), "never backwards"
