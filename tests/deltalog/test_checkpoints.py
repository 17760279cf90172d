"""Checkpoints: every form gives the same actions; statistics come back as JSON."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb.actions import AddFile, CheckpointMetadata, Metadata, Protocol, RemoveFile
from deltalakedb.actions.datatypes import schema_from_json
from deltalakedb.deltalog.checkpoints import (
    check_header,
    read_control_actions,
    read_file_actions,
    stats_from_struct,
)
from deltalakedb.errors import InvalidLogError

MAP = pa.map_(pa.string(), pa.string())


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}, **more}


SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            field("id", "long"),
            field("when", "timestamp"),
            field("wall", "timestamp_ntz"),
            field("day", "date"),
            field("price", "decimal(10,2)"),
            field("ratio", "float"),
            field("flag", "boolean"),
            field("inner", {"type": "struct", "fields": [field("name", "string")]}),
            field("renamed", "long", metadata={"delta.columnMapping.physicalName": "col-1"}),
        ],
    }
)
VALUES = {
    "id": 5,
    "when": datetime(2024, 1, 2, 3, 4, 5, 678901, UTC),
    "wall": datetime(2024, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001 - it has no zone
    "day": date(2024, 1, 2),
    "price": Decimal("1.50"),
    "ratio": 0.5,
    "flag": True,
    "inner": {"name": "x" * 40},
    "col-1": 9,
}
PARSED = {
    "numRecords": 3,
    "minValues": VALUES,
    "maxValues": VALUES,
    "nullCount": {"id": 0, "inner": {"name": 2}, "col-1": 1},
    "tightBounds": False,
}


def parquet(rows: list[dict[str, Any]], schema: pa.Schema) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), out)
    return out.getvalue()


def test_struct_statistics_become_json() -> None:
    text = stats_from_struct(PARSED, schema_from_json(SCHEMA))
    assert text is not None
    stats = json.loads(text)
    assert stats["numRecords"] == 3
    assert stats["tightBounds"] is False
    assert stats["nullCount"] == {"id": 0, "inner": {"name": 2}, "col-1": 1}
    assert stats["minValues"] == {
        "id": 5,
        "when": "2024-01-02T03:04:05.678Z",
        "wall": "2024-01-02T03:04:05.678",
        "day": "2024-01-02",
        "price": 1.5,
        "ratio": 0.5,
        "inner": {"name": "x" * 40},
        "col-1": 9,
    }
    assert '"price":1.50' in text


def test_bounds_of_the_wrong_type_leave_the_count() -> None:
    schema = schema_from_json(SCHEMA)
    text = stats_from_struct({"numRecords": 4, "minValues": {"id": "text"}}, schema)
    assert json.loads(text or "")["numRecords"] == 4
    assert json.loads(text or "")["minValues"] == {}
    assert stats_from_struct({"minValues": {"id": "text"}}, schema) is None


def test_statistics_are_regenerated_only_where_there_are_none() -> None:
    add = pa.struct(
        {
            "path": pa.string(),
            "partitionValues": MAP,
            "size": pa.int64(),
            "modificationTime": pa.int64(),
            "dataChange": pa.bool_(),
            "stats": pa.string(),
            "stats_parsed": pa.struct({"numRecords": pa.int64()}),
            "partitionValues_parsed": pa.struct({"p": pa.int32()}),
        }
    )
    row = {"path": "a", "partitionValues": {"p": None}, "size": 1, "modificationTime": 2}
    row["stats_parsed"] = {"numRecords": 7}
    rows: list[dict[str, Any]] = [
        {"add": row},
        {"add": None},
        {"add": {**row, "path": "b", "stats": '{"numRecords":8}'}},
    ]
    data = parquet(rows, pa.schema({"add": add}))
    metadata = Metadata("id", schema_string=SCHEMA)
    first, second = read_file_actions(data, file="f", metadata=metadata)
    assert isinstance(first, AddFile)
    assert isinstance(second, AddFile)
    assert json.loads(first.stats or "")["numRecords"] == 7
    assert second.stats == '{"numRecords":8}'
    assert (first.partition_values, first.data_change, first.extra) == ({"p": None}, False, {})
    (without, _) = read_file_actions(data, file="f")
    assert without.stats is None


def test_lists_that_a_legacy_protocol_must_not_have_are_dropped_where_empty() -> None:
    names = pa.list_(pa.string())
    protocol = pa.struct(
        {
            "minReaderVersion": pa.int32(),
            "minWriterVersion": pa.int32(),
            "readerFeatures": names,
            "writerFeatures": names,
        }
    )
    legacy = {"minReaderVersion": 1, "minWriterVersion": 2, "readerFeatures": []}
    modern = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": []}
    rows = [{"protocol": legacy}, {"protocol": {**modern, "writerFeatures": ["x"]}}]
    data = parquet(rows, pa.schema({"protocol": protocol}))
    assert read_control_actions(data, file="f") == [Protocol(1, 2), Protocol(3, 7, (), ("x",))]


def test_json_checkpoints_are_split_the_same_way() -> None:
    lines = [
        {"checkpointMetadata": {"version": 3}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"sidecar": {"path": "s.parquet", "sizeInBytes": 1, "modificationTime": 2}},
        {"remove": {"path": "gone", "dataChange": False}},
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    control = read_control_actions(data, file="f", is_json=True)
    assert [type(a).__name__ for a in control] == ["CheckpointMetadata", "Protocol", "Sidecar"]
    (gone,) = read_file_actions(data, file="f", is_json=True)
    assert isinstance(gone, RemoveFile)
    check_header(control, version=3, file="f")
    with pytest.raises(InvalidLogError, match="version"):
        check_header([CheckpointMetadata(3)], version=4, file="f")


def test_damage_names_the_file() -> None:
    whole = parquet([{"txn": None}], pa.schema({"txn": pa.struct({"appId": pa.string()})}))
    broken = parquet(
        [{"txn": {"appId": "x"}}], pa.schema({"txn": pa.struct({"appId": pa.string()})})
    )
    for data in (b"", b"no parquet", whole[: len(whole) // 2], broken):
        with pytest.raises(InvalidLogError, match="some-file"):
            read_control_actions(data, file="some-file")
    assert read_control_actions(whole, file="some-file") == []
