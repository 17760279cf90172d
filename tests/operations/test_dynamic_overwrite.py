"""A dynamic overwrite replaces the partitions that its rows are in, by value, on every engine."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb.actions.partition import decode_path
from deltalakedb.lake import Lake
from deltalakedb.snapshot.snapshot import Snapshot
from deltalakedb.table import Table


def make(lake: Lake, folder: Path, columns: dict[str, pa.DataType], **options: Any) -> Table:
    return lake.create_table(
        "t", location=str(folder / "t"), schema=pa.schema(list(columns.items())), **options
    )


def ids(table: Table) -> list[int]:
    return sorted(table.snapshot().to_arrow()["id"].to_pylist())


def respelled(table: Table, spelling: dict[str, str | None]) -> None:
    """Let another writer's log have put the files: partition values in other words."""
    actions: list[dict[str, Any]] = []
    for file in table.snapshot().files().to_pylist():
        body = {"path": file["path"], "dataChange": True}
        actions.append({"remove": {**body, "deletionTimestamp": 1}})
        moved = f"again-{len(actions)}.parquet"
        folder = Path(table.location.removeprefix("file://"))
        (folder / moved).write_bytes((folder / decode_path(file["path"])).read_bytes())
        actions.append(
            {
                "add": {
                    **body,
                    "path": moved,
                    "partitionValues": spelling,
                    "size": file["size_bytes"],
                    "modificationTime": file["modification_time"],
                    "stats": file["stats"],
                }
            }
        )
    table.commit(actions)


@pytest.mark.parametrize(
    ("kind", "value", "spelling"),
    [
        (pa.timestamp("us", tz="UTC"), datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01 00:00:00"),
        (pa.timestamp("us"), datetime(2026, 1, 1), "2026-01-01 00:00:00.000"),  # noqa: DTZ001
        (pa.float64(), 10_000_000.0, "1.0E7"),
        (pa.float32(), 0.1, "0.10"),
        (pa.float64(), float("nan"), "nan"),
        (pa.float64(), float("inf"), "+Infinity"),
        (pa.decimal128(10, 2), Decimal("1.50"), "1.50"),
        (pa.int32(), 7, "+7"),
        (pa.bool_(), True, "TRUE"),
        (pa.string(), "é/x y", "é/x y"),
        (pa.binary(), b"\xff\x01", "\\u00ff\\u0001"),
        (pa.string(), None, ""),
        (pa.date32(), None, None),
    ],
    ids=str,
)
def test_a_partition_is_the_same_however_a_log_spells_it(
    lake: Lake, tmp_path: Path, kind: pa.DataType, value: Any, spelling: str | None
) -> None:
    table = make(lake, tmp_path, {"id": pa.int64(), "key": kind}, partition_by=["key"])
    table.append(pa.table({"id": [1], "key": pa.array([value], kind)}))
    respelled(table, {"key": spelling})
    table.overwrite(pa.table({"id": [2], "key": pa.array([value], kind)}), dynamic=True)
    assert ids(table) == [2]


def test_partitions_of_several_columns_are_replaced_and_no_others(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"id": pa.int64(), "day": pa.string(), "on": pa.bool_()}
    table = make(
        lake,
        tmp_path,
        columns,
        partition_by=["day", "on"],
        properties={"delta.columnMapping.mode": "name"},
    )
    table.append(
        pa.table(
            {
                "id": range(6),
                "day": ["a", "a", "b", "b", None, None],
                "on": [True, False, True, False, True, None],
            }
        )
    )
    listed: list[int] = []
    files = Snapshot.files

    def counted(self: Snapshot, where: Any = None, **options: Any) -> pa.Table:
        found = files(self, where, **options)
        listed.append(found.num_rows)
        return found

    monkeypatch.setattr(Snapshot, "files", counted)
    new = {"id": [10, 14], "day": ["a", None], "on": [True, True]}
    table.overwrite(pa.table(new), dynamic=True)
    # The catalog was asked for what the rows name, and not for all there is.
    assert listed == [2]
    assert ids(table) == [1, 2, 3, 5, 10, 14]
    table.overwrite(
        pa.table({"id": [20, 21], "day": ["a", "b"], "on": [True, False]}), dynamic=True
    )
    assert ids(table) == [1, 2, 5, 14, 20, 21]
    table.overwrite(table.snapshot().to_arrow().slice(0, 0), dynamic=True)
    assert ids(table) == [1, 2, 5, 14, 20, 21]
