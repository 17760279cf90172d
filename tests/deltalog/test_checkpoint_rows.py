"""Files of the catalog as rows of a checkpoint: what the reader of checkpoints gives back."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb.actions import (
    AddFile,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from deltalakedb.actions.datatypes import schema_from_json
from deltalakedb.deltalog.checkpoint_file import CheckpointFile
from deltalakedb.deltalog.checkpoint_rows import (
    ADD_COLUMNS,
    REMOVE_COLUMNS,
    RowMaker,
    maps,
    typed_values,
    vectors,
)
from deltalakedb.deltalog.checkpoint_schema import CheckpointForm
from deltalakedb.deltalog.checkpoints import read_control_actions, read_file_actions
from deltalakedb.errors import CorruptCatalogError
from deltalakedb.store.arrow import schema_of

VECTOR = DeletionVectorDescriptor("u", "0" * 20, 36, 2, offset=1)
INLINE = DeletionVectorDescriptor("i", "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", 40, 6)


def vector_json(vector: DeletionVectorDescriptor) -> str:
    fields = {
        "storageType": vector.storage_type,
        "pathOrInlineDv": vector.path_or_inline_dv,
        "sizeInBytes": vector.size_in_bytes,
        "cardinality": vector.cardinality,
        "later": {"x": [1]},
    }
    return json.dumps(fields | ({} if vector.offset is None else {"offset": vector.offset}))


def listing(columns: tuple[str, ...], *rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=schema_of(columns))


def written(rows: list[pa.RecordBatch], *, actions: list[Any] | None = None) -> bytes:
    sink = io.BytesIO()
    with CheckpointFile(sink, RowMaker(CheckpointForm()).schema) as file:
        file.write_actions(actions or [])
        for batch in rows:
            file.write(batch)
    return sink.getvalue()


def test_adds_come_back_as_they_were() -> None:
    files = listing(
        ADD_COLUMNS,
        {
            "path": "a%20b",
            "partition_values": '{"day":null,"x":"ü \\u0000 \\"q\\""}',
            "size_bytes": 1,
            "modification_time": 2,
            "tags": '{"k":null}',
            "deletion_vector": vector_json(VECTOR),
            "base_row_id": 3,
            "default_row_commit_version": 4,
            "clustering_provider": "liquid",
            "stats": '{"numRecords":9}',
        },
        {
            "path": "b",
            "partition_values": "{}",
            "size_bytes": 5,
            "modification_time": 6,
            "deletion_vector": vector_json(INLINE),
        },
        {"path": "c", "partition_values": "{}", "size_bytes": 7, "modification_time": 8},
    )
    data = written([RowMaker(CheckpointForm()).adds(files)])
    assert list(read_file_actions(data, file="x")) == [
        AddFile(
            "a%20b",
            {"day": None, "x": 'ü \x00 "q"'},
            1,
            2,
            data_change=False,
            stats='{"numRecords":9}',
            tags={"k": None},
            deletion_vector=VECTOR,
            base_row_id=3,
            default_row_commit_version=4,
            clustering_provider="liquid",
        ),
        AddFile("b", {}, 5, 6, data_change=False, deletion_vector=INLINE),
        AddFile("c", {}, 7, 8, data_change=False),
    ]


def test_removes_come_back_and_promise_only_what_they_have() -> None:
    files = listing(
        REMOVE_COLUMNS,
        {
            "path": "a",
            "deletion_timestamp": 1,
            "extended_file_metadata": True,
            "partition_values": '{"day": null}',
            "size_bytes": 2,
            "deletion_vector": vector_json(VECTOR),
            "base_row_id": 3,
            "default_row_commit_version": 4,
        },
        {"path": "b", "deletion_timestamp": 1, "extended_file_metadata": True, "size_bytes": 2},
        {"path": "c"},
    )
    data = written([RowMaker(CheckpointForm()).removes(files)])
    assert list(read_file_actions(data, file="x")) == [
        RemoveFile(
            "a",
            data_change=False,
            deletion_timestamp=1,
            extended_file_metadata=True,
            partition_values={"day": None},
            size=2,
            deletion_vector=VECTOR,
            base_row_id=3,
            default_row_commit_version=4,
        ),
        RemoveFile(
            "b", data_change=False, deletion_timestamp=1, extended_file_metadata=False, size=2
        ),
        RemoveFile("c", data_change=False),
    ]


def test_other_actions_come_back_as_they_were() -> None:
    actions = [
        Protocol(3, 7, ("deletionVectors",), ("deletionVectors", "domainMetadata")),
        Metadata("id", schema_string="{}", partition_columns=("a",), configuration={"k": "v"}),
        DomainMetadata("d", "{}", removed=False),
        Txn("app", 2**40, 5),
        Txn("other", 1),
    ]
    data = written([], actions=actions)
    assert sorted(map(repr, read_control_actions(data, file="x"))) == sorted(map(repr, actions))


def test_legacy_protocols_have_no_lists_of_features() -> None:
    data = written([], actions=[Protocol(1, 2)])
    assert read_control_actions(data, file="x") == [Protocol(1, 2)]


def test_maps_of_the_same_text_share_their_parsing() -> None:
    texts = pa.array(['{"a":"1"}', None, '{"a":"1"}', "{}"])
    assert maps(texts).to_pylist() == [[("a", "1")], None, [("a", "1")], []]
    assert maps(pa.array([None], pa.string())).to_pylist() == [None]
    assert maps(texts.slice(2)).to_pylist() == [[("a", "1")], []]


def test_typed_partition_values_are_null_where_they_cannot_be_read() -> None:
    schema = schema_from_json(
        json.dumps(
            {
                "type": "struct",
                "fields": [
                    {"name": "n", "type": "integer", "nullable": True, "metadata": {}},
                    {"name": "b", "type": "binary", "nullable": True, "metadata": {}},
                ],
            }
        )
    )
    values: list[dict[str, str | None]] = [
        {"n": "5", "b": "x"},
        {"n": None, "b": ""},
        {},
        {"n": "five", "b": "x"},
    ]
    assert typed_values(values, schema).to_pylist() == [
        {"n": 5, "b": b"x"},
        {"n": None, "b": None},
        {"n": None, "b": None},
        None,
    ]


@pytest.mark.parametrize("text", ["{", '{"storageType":5}', '{"storageType":"u"}{}'])
def test_a_damaged_deletion_vector_is_refused(text: str) -> None:
    with pytest.raises(CorruptCatalogError, match="deletion vector"):
        vectors(pa.array([None, text]))


def test_wide_rows_are_written_in_several_groups_and_none_is_lost() -> None:
    rows = [
        {
            "path": f"f{number}",
            "partition_values": "{}",
            "size_bytes": 1,
            "modification_time": 1,
            "stats": json.dumps({"numRecords": 1, "minValues": {"text": "x" * 200_000}}),
        }
        for number in range(400)
    ]
    data = written([RowMaker(CheckpointForm()).adds(listing(ADD_COLUMNS, *rows))])
    assert pq.ParquetFile(pa.BufferReader(data)).num_row_groups == 3
    found = [action.path for action in read_file_actions(data, file="x")]
    assert found == [row["path"] for row in rows]
