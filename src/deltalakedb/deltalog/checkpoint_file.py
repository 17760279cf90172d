"""The writer of the Parquet files of checkpoints; memory holds one row group.

After an error the content of the sink is invalid, and the caller discards it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import IO, TYPE_CHECKING, Any, Final, Self

from deltalakedb.actions import Action, to_dict

if TYPE_CHECKING:
    import pyarrow as pa

# The most values that a row group holds of a kind of file action.
ROW_GROUP: Final = 20_000
# Row groups become smaller where statistics are wide.
_GROUP_BYTES: Final = 32 * 1024 * 1024
# Columns of few different values. A dictionary of others would be built in vain.
_REPEATED: Final = (
    "partitionValues.key_value.key",
    "partitionValues.key_value.value",
    "tags.key_value.key",
    "modificationTime",
    "deletionTimestamp",
    "deletionVector.storageType",
    "deletionVector.pathOrInlineDv",
    "defaultRowCommitVersion",
    "clusteringProvider",
)


class CheckpointFile:
    """A Parquet file of actions that is written to `sink`; `rows` counts them."""

    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self.schema = schema
        self.rows = 0
        self._writer = pq.ParquetWriter(
            sink,
            schema,
            compression="snappy",
            use_dictionary=[
                f"{kind}.{column}"
                for kind in ("add", "remove")
                if kind in schema.names
                for column in _REPEATED
            ],
            # Bounds of paths and JSON are of no use, and cost as much as the columns.
            write_statistics=False,
            store_schema=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # Also after an error: a writer that is left to the collector writes to its sink much later.
        with nullcontext() if kind is None else suppress(Exception):
            self._writer.close()

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows, in row groups of a bounded size."""
        if not rows.num_rows:
            return
        step = max(1, min(ROW_GROUP, rows.num_rows * _GROUP_BYTES // max(1, rows.nbytes)))
        for start in range(0, rows.num_rows, step):
            self._writer.write_batch(rows.slice(start, step))
        self.rows += rows.num_rows

    def write_actions(self, actions: Iterable[Action]) -> None:
        """Write control actions, which are few."""
        self.write(control_rows(list(actions), self.schema))


def control_rows(actions: Sequence[Action], schema: pa.Schema) -> pa.RecordBatch:
    """Actions as rows; fields that the schema does not have are left out."""
    import pyarrow as pa

    documents = [to_dict(action) for action in actions]
    columns = []
    for field in schema:
        values = [_shaped(document.get(field.name), field.type) for document in documents]
        columns.append(pa.array(values, field.type))
    return pa.record_batch(columns, schema=schema)


def _shaped(value: Any, kind: pa.DataType) -> Any:
    """A value of the log as Arrow takes it: maps as lists of pairs."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_map(kind):
        return list(value.items())
    if pa.types.is_struct(kind):
        return {field.name: _shaped(value.get(field.name), field.type) for field in kind.fields}
    return value
