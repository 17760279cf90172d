"""Delta on Spark means the same by the options of a write that say what its files are like."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from interop.readers import DeltaSpark, Peers, Refused

ROWS = "SELECT /*+ REPARTITION(4) */ id, id % 2 AS part FROM range(0, 40)"


@pytest.fixture
def delta(peers: Peers) -> DeltaSpark:
    found = peers.there.get(DeltaSpark.name)
    if not isinstance(found, DeltaSpark):
        pytest.skip(f"{DeltaSpark.name}: {peers.missing[DeltaSpark.name]}")
    return found


def files(path: Path, version: int) -> list[dict[str, Any]]:
    """The files that a version adds and removes."""
    text = (path / "_delta_log" / f"{version:020}.json").read_text()
    actions = [json.loads(line) for line in text.splitlines()]
    return [
        {**file, "kind": kind}
        for action in actions
        for kind, file in action.items()
        if kind in ("add", "remove")
    ]


def test_delta_has_the_same_files(delta: DeltaSpark, tmp_path: Path) -> None:
    path = tmp_path / "t"
    delta.write(ROWS, path, mode="error")
    assert len(files(path, 0)) == 4
    delta.write(ROWS, path, mode="overwrite", optimizeWrite="true")
    assert [file["kind"] for file in files(path, 1)].count("add") == 1
    one = ROWS.replace("4", "1", 1)
    delta.write(one, path, mode="overwrite", maxRecordsPerFile="15", compression="gzip")
    added = [file for file in files(path, 2) if file["kind"] == "add"]
    assert sorted(json.loads(file["stats"])["numRecords"] for file in added) == [10, 15, 15]
    footer = pq.read_metadata(path / added[0]["path"])
    assert footer.row_group(0).column(0).compression == "GZIP"
    delta.write(one, path, mode="overwrite", maxRecordsPerFile="-1")
    assert [file["kind"] for file in files(path, 3)].count("add") == 1
    delta.write(one, path, mode="overwrite", dataChange="false")
    assert {file["dataChange"] for file in files(path, 4)} == {False}
    new = f"SELECT *, 1 AS x FROM ({one})"
    for query, options in (
        (one, {"replaceWhere": "id >= 0"}),
        (one, {"replaceUsing": "id"}),
        (new, {"mergeSchema": "true"}),
        (new, {"overwriteSchema": "true"}),
    ):
        with pytest.raises(Refused):
            delta.write(query, path, mode="overwrite", dataChange="false", **options)
    for wrong in ({"optimizeWrite": "2"}, {"dataChange": "no"}, {"compression": "no such"}):
        with pytest.raises(Refused):
            delta.write(one, path, mode="overwrite", **wrong)
