"""Files of the catalog as rows of a checkpoint, a batch at a time, column by column.

The catalog keeps maps and deletion vectors as JSON text. Vectors are parsed by Arrow all at once.
Maps have keys of their own and no schema, so each *different* text is parsed in Python; files of
the same partition share theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltalakedb.actions.datatypes import StructType, physical_name
from deltalakedb.actions.partition import decode_partition_value
from deltalakedb.deltalog.checkpoint_schema import (
    CheckpointForm,
    add_type,
    checkpoint_schema,
    map_type,
    partitions_type,
    remove_type,
    sidecar_schema,
    vector_type,
)
from deltalakedb.deltalog.checkpoint_stats import StatsParser, read_objects, spread
from deltalakedb.errors import CorruptCatalogError, DeltaLakeDbError

if TYPE_CHECKING:
    import pyarrow as pa

ADD_COLUMNS = (
    "path",
    "partition_values",
    "size_bytes",
    "modification_time",
    "tags",
    "deletion_vector",
    "base_row_id",
    "default_row_commit_version",
    "clustering_provider",
    "stats",
)
"""What an `add` is made of."""

REMOVE_COLUMNS = (
    "path",
    "deletion_timestamp",
    "extended_file_metadata",
    "partition_values",
    "size_bytes",
    "deletion_vector",
    "base_row_id",
    "default_row_commit_version",
)
"""What a `remove` is made of."""


class RowMaker:
    """Makes rows of the checkpoint (or sidecars) of one table."""

    def __init__(self, form: CheckpointForm, *, sidecars: bool = False) -> None:
        self._form = form
        self.schema = sidecar_schema(form) if sidecars else checkpoint_schema(form)
        self._add = add_type(form)
        self._stats = None if form.stats_struct is None else StatsParser(form.stats_struct)

    def adds(self, files: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of `add` from a listing with ADD_COLUMNS."""
        import pyarrow as pa

        values, parsed = _partition_values(files.column("partition_values"), self._form.partitions)
        columns: dict[str, pa.Array] = {
            "path": files.column("path"),
            "partitionValues": values,
            "size": files.column("size_bytes"),
            "modificationTime": files.column("modification_time"),
            "dataChange": pa.repeat(False, files.num_rows),  # noqa: FBT003 -- a value
            "tags": maps(files.column("tags")),
            "deletionVector": vectors(files.column("deletion_vector")),
            "baseRowId": files.column("base_row_id"),
            "defaultRowCommitVersion": files.column("default_row_commit_version"),
            "clusteringProvider": files.column("clustering_provider"),
            "stats": files.column("stats"),
        }
        if self._stats is not None:
            columns["stats_parsed"] = self._stats.parse(files.column("stats"))
        if parsed is not None:
            columns["partitionValues_parsed"] = parsed
        return self._rows("add", self._add, columns)

    def removes(self, files: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of `remove` from tombstones with REMOVE_COLUMNS."""
        import pyarrow as pa
        import pyarrow.compute as pc

        sizes, texts = files.column("size_bytes"), files.column("partition_values")
        # Readers fail where it is promised and not there.
        extended = pc.and_(
            files.column("extended_file_metadata"), pc.and_(sizes.is_valid(), texts.is_valid())
        )
        columns: dict[str, pa.Array] = {
            "path": files.column("path"),
            "deletionTimestamp": files.column("deletion_timestamp"),
            "dataChange": pa.repeat(False, files.num_rows),  # noqa: FBT003 -- a value
            "extendedFileMetadata": extended,
            "partitionValues": maps(texts),
            "size": sizes,
            "deletionVector": vectors(files.column("deletion_vector")),
            "baseRowId": files.column("base_row_id"),
            "defaultRowCommitVersion": files.column("default_row_commit_version"),
        }
        return self._rows("remove", remove_type(), columns)

    def _rows(self, name: str, kind: pa.DataType, columns: Mapping[str, pa.Array]) -> Any:
        import pyarrow as pa

        struct = pa.StructArray.from_arrays(
            [columns[field.name] for field in kind.fields], fields=list(kind.fields)
        )
        return pa.record_batch(
            [struct if f.name == name else pa.nulls(len(struct), f.type) for f in self.schema],
            schema=self.schema,
        )


# --- maps ---------------------------------------------------------------------------------


def maps(texts: pa.Array) -> pa.MapArray:
    """JSON objects of strings and nulls as maps."""
    import pyarrow as pa

    if texts.null_count == len(texts):
        return pa.nulls(len(texts), map_type())
    coded = texts.dictionary_encode()
    return _map_array([_object(t) for t in coded.dictionary.to_pylist()]).take(coded.indices)


def _partition_values(
    texts: pa.Array, columns: StructType | None
) -> tuple[pa.MapArray, pa.StructArray | None]:
    """The partition values of each file: as the protocol writes them, and typed if asked for."""
    coded = texts.dictionary_encode()
    different = [_object(text) for text in coded.dictionary.to_pylist()]
    values = _map_array(different).take(coded.indices)
    if columns is None:
        return values, None
    return values, typed_values(different, columns).take(coded.indices)


def typed_values(values: Sequence[Mapping[str, str | None]], columns: StructType) -> pa.StructArray:
    """Partition values as values of their columns; null where one of them cannot be read."""
    import pyarrow as pa

    rows: list[dict[str, Any] | None] = []
    for given in values:
        try:
            rows.append(
                {
                    physical_name(column): decode_partition_value(
                        given.get(physical_name(column)), column.type
                    )
                    for column in columns.fields
                }
            )
        except DeltaLakeDbError:
            rows.append(None)
    return pa.array(rows, partitions_type(columns))


def _map_array(objects: Sequence[Mapping[str, str | None]]) -> pa.MapArray:
    import pyarrow as pa

    ends = [0]
    names: list[str] = []
    values: list[str | None] = []
    for item in objects:
        names += item.keys()
        values += item.values()
        ends.append(len(names))
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
    )


def _object(text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = json.loads(text)
    return found


# --- deletion vectors ---------------------------------------------------------------------


def vectors(texts: pa.Array) -> pa.StructArray:
    """JSON descriptors as structs; null where a file has no deletion vector."""
    import pyarrow as pa

    kind = vector_type()
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    present = texts.drop_null()
    try:
        table = read_objects(present, pa.schema(list(kind.fields)))
    except pa.ArrowException as error:
        raise _unreadable(str(error)) from error
    if table is None:
        raise _unreadable("one of them is more than one object")
    (found,) = table.to_struct_array().chunks
    return spread(found, texts)


def _unreadable(why: str) -> CorruptCatalogError:
    return CorruptCatalogError(
        "A deletion vector in the catalog cannot be read",
        why=why,
        fix="Restore a backup of the catalog, or import the table again from its _delta_log",
    )
