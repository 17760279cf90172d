"""Random histories, of which a part is imported and the rest adopted: nobody can tell which."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltalakedb.clock import ManualClock
from deltalakedb.lake import Lake
from deltalakedb.table import Table
from property.test_histories import PROPERTIES, State, Step, check, commit, histories

from support.lake import schema_json
from support.profiles import examples


def commit_files(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


def times(table: Table) -> list[int]:
    return [record.committed_at for record in table.history(limit=None)]


@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.too_slow])
@given(history=histories, data=st.data())
def test_an_adopted_history_is_the_one_that_was_written(
    shared_lake: Lake,
    tmp_path_factory: pytest.TempPathFactory,
    history: list[Step],
    data: st.DataObject,
) -> None:
    lake = shared_lake
    assert isinstance(lake.store.clock, ManualClock)
    here, there = (tmp_path_factory.mktemp(name) for name in ("here", "there"))
    written = lake.create_table(
        f"w.{uuid4()}",
        location=str(there),
        schema=schema_json("id", ("day", "string")),
        properties=PROPERTIES,
    )
    states = [State()]
    for step in history:
        lake.store.clock.advance(step.wait)
        states.append(commit(written, states[-1], step))
    lake.mirror.run_once()
    files = commit_files(there)
    begin = data.draw(st.integers(1, len(files)))
    (here / "_delta_log").mkdir()
    for path in files[:begin]:
        shutil.copy2(path, here / "_delta_log")
    taken = lake.import_table(str(here), name=f"t.{uuid4()}")
    while begin < len(files):
        end = data.draw(st.integers(begin + 1, len(files)))
        for path in files[begin:end]:
            shutil.copy2(path, here / "_delta_log")
        adopted = lake.adopt(taken.name)
        assert [version.version for version in adopted.versions] == list(range(begin, end))
        begin = end
    assert times(taken) == times(written)
    for version in {0, len(states) // 2, len(states) - 1}:
        check(lake, taken.snapshot(version), states[version])
    verification = lake.verify(taken.name)
    assert verification.findings == ()
    assert verification.compared == len(states)
