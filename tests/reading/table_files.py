"""Small tables of Parquet files, for tests of reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltalakedb.actions.datatypes import (
    COLUMN_ID,
    PHYSICAL_NAME,
    DataType,
    StructField,
    StructType,
)
from deltalakedb.reading.dataset import SnapshotRows, open_dataset


def column(name: str, kind: DataType, identity: int | None = None) -> StructField:
    """A column; with an id it is mapped, and its physical name is p<id>."""
    metadata = {} if identity is None else {COLUMN_ID: identity, PHYSICAL_NAME: f"p{identity}"}
    return StructField(name, kind, metadata=metadata)


def with_id(name: str, kind: pa.DataType, identity: int) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(identity).encode()})


def files_table(adds: list[dict[str, Any]]) -> pa.Table:
    """The columns of `Snapshot.files()` that reading needs."""
    values = [json.dumps(add["partitionValues"]) for add in adds]
    vectors = [
        json.dumps(add["deletionVector"]) if "deletionVector" in add else None for add in adds
    ]
    return pa.table(
        {
            "path": pa.array([add["path"] for add in adds], pa.string()),
            "partition_values": pa.array(values, pa.string()),
            "deletion_vector": pa.array(vectors, pa.string()),
            "size_bytes": pa.array([add["size"] for add in adds], pa.int64()),
        }
    )


class Making:
    """Writes files below a folder, and opens them as a dataset."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.adds: list[dict[str, Any]] = []

    def write(self, table: pa.Table, **options: Any) -> dict[str, Any]:
        """Write a file; what is returned becomes its add, and may be changed."""
        add: dict[str, Any] = {"path": f"part-{len(self.adds)}.parquet", "partitionValues": {}}
        pq.write_table(table, self.folder / str(add["path"]), **options)
        add["size"] = (self.folder / str(add["path"])).stat().st_size
        self.adds.append(add)
        return add

    def open(
        self,
        *fields: StructField,
        partitions: tuple[str, ...] = (),
        mode: str = "none",
        row_filter: pc.Expression | None = None,
    ) -> SnapshotRows:
        return open_dataset(
            files_table(self.adds),
            location=self.folder.as_uri(),
            schema=StructType(fields),
            partition_columns=partitions,
            column_mapping_mode=mode,
            row_filter=row_filter,
        )
