"""Random histories, damaged at random: what is damaged is found and made whole, byte for byte."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltalakedb.clock import ManualClock
from deltalakedb.deltalog.names import commit_key
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint
from deltalakedb.mirror.verification import Kind
from property.test_histories import PROPERTIES, State, Step, commit, histories

from support.lake import schema_json
from support.profiles import examples
from support.published import log_of, record_of, storage_of


def log_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.too_slow])
@given(history=histories, data=st.data())
def test_damage_is_found_and_repaired(
    shared_lake: Lake,
    tmp_path_factory: pytest.TempPathFactory,
    history: list[Step],
    data: st.DataObject,
) -> None:
    lake = shared_lake
    assert isinstance(lake.store.clock, ManualClock)
    table = lake.create_table(
        f"v.{uuid4()}",
        location=str(tmp_path_factory.mktemp("table")),
        schema=schema_json("id", ("day", "string")),
        properties={**PROPERTIES, "delta.checkpointInterval": "1000"},
    )
    state = State()
    for step in history:
        lake.store.clock.advance(step.wait)
        state = commit(table, state, step)
    published = data.draw(st.integers(1, 3)) > 1
    if published:
        lake.mirror.run_once()
        for version in data.draw(st.sets(st.integers(0, table.version), max_size=3)):
            write_checkpoint(lake.store, storage_of(table), record_of(lake, table), version)
    whole = lake.verify(table.name)
    assert whole.findings == ()
    assert whole.compared + whole.pending == table.version + 1
    assert whole.files == (len(state.files) if published else 0)
    if not published:
        return
    log = log_of(table)
    before = log_files(log)
    expected: dict[int, Kind] = {}
    for version in data.draw(st.sets(st.integers(0, table.version), max_size=4)):
        path = log / Path(commit_key(version)).name
        content = path.read_bytes()
        left = data.draw(st.integers(-1, len(content) - 1))
        if left < 0:
            path.unlink()
            expected[version] = Kind.MISSING_COMMIT
        else:
            path.write_bytes(content[:left])
            expected[version] = Kind.TRUNCATED_COMMIT
    found = lake.verify(table.name)
    assert {finding.version: finding.kind for finding in found.findings} == expected
    done = lake.repair(table.name)
    assert (done.left, len(done.steps)) == ((), len(expected))
    assert log_files(log) == before
