"""Files of the catalog as rows of a checkpoint, a batch at a time, column by column.

The catalog keeps maps and deletion vectors as JSON text. Vectors are parsed by Arrow all at once.
Maps have no schema, so each *different* text is parsed in Python; files of the same partition share
theirs.

Typed statistics (`add.stats_parsed`) have the values of the JSON text. A value that is invalid for
its column (NaN, out of range, of another type, no JSON at all) becomes null, which means unknown;
nothing raises. Arrow parses a whole batch at once. It is stricter than this, so a batch that it
refuses, or in which it would be too lenient, is parsed file by file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from deltalakedb.actions.datatypes import DataType, DecimalType, StructType, physical_name
from deltalakedb.actions.partition import decode_partition_value
from deltalakedb.actions.scalars import fit_decimal
from deltalakedb.actions.statistics import UNKNOWN, decode_low, loads_tolerant
from deltalakedb.deltalog.checkpoint_schema import (
    CheckpointForm,
    add_type,
    bounds_type,
    checkpoint_schema,
    counts_type,
    has_bounds,
    map_type,
    partitions_type,
    remove_type,
    sidecar_schema,
    stats_type,
    vector_type,
)
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
"""The columns of the catalog that an `add` needs."""

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
"""The columns of the catalog that a `remove` needs."""


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
        # Readers fail where the flag is set without these fields.
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
    for texts in values:
        try:
            rows.append(
                {
                    physical_name(column): decode_partition_value(
                        texts.get(physical_name(column)), column.type
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
    values: dict[str, str | None] = json.loads(text)
    return values


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
    (structs,) = table.to_struct_array().chunks
    return spread(structs, texts)


def _unreadable(why: str) -> CorruptCatalogError:
    return CorruptCatalogError(
        "A deletion vector in the catalog cannot be read",
        why=why,
        fix="Restore a backup of the catalog, or import the table again from its _delta_log",
    )


# --- typed statistics ---------------------------------------------------------------------


_MAX_LONG: Final = 2**63 - 1
_COUNTS: Final = ("numRecords", "nullCount")
_Tree: TypeAlias = "dict[str, _Tree | DataType]"


class StatsParser:
    """Parses the statistics of one table; build it once for many batches."""

    def __init__(self, columns: StructType) -> None:
        self.type = stats_type(columns)
        self._bounds = _tree(columns, only_bounds=True)
        self._counts = _tree(columns, only_bounds=False)
        self._transport = _transport_schema(columns)

    def parse(self, texts: pa.Array) -> pa.StructArray:
        """The typed statistics of each file; null where a file has none."""
        import pyarrow as pa

        try:
            parsed = self._at_once(texts)
        except (pa.ArrowException, OverflowError, ValueError):
            parsed = None
        return self._one_by_one(texts) if parsed is None else parsed

    def _at_once(self, texts: pa.Array) -> pa.StructArray | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        present = texts.drop_null() if texts.null_count else texts
        if not len(present):
            return pa.nulls(len(texts), self.type)
        if not pc.all(pc.starts_with(present, "{")).as_py():
            return None
        table = read_objects(present, self._transport)
        if table is None:
            return None
        fields = [
            _shaped(table[field.name].combine_chunks(), field.type, counts=field.name in _COUNTS)
            for field in self.type.fields
        ]
        parsed = pa.StructArray.from_arrays(fields, fields=list(self.type.fields))
        return spread(parsed, texts) if texts.null_count else parsed

    def _one_by_one(self, texts: pa.Array) -> pa.StructArray:
        import pyarrow as pa

        return pa.array([self._file(text) for text in texts.to_pylist()], self.type)

    def _file(self, text: str | None) -> dict[str, Any] | None:
        document = loads_tolerant(text)
        if document is None:
            return None
        tight = document.get("tightBounds")
        return {
            "numRecords": _count(document.get("numRecords")),
            "minValues": _values(document.get("minValues"), self._bounds, _bound),
            "maxValues": _values(document.get("maxValues"), self._bounds, _bound),
            "nullCount": _values(document.get("nullCount"), self._counts, _null_count),
            "tightBounds": tight if isinstance(tight, bool) else None,
        }


def read_objects(texts: pa.Array, schema: pa.Schema) -> pa.Table | None:
    """JSON objects, one in each text, as a table; None where a text holds more than one."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as pj

    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    joined = pc.binary_join(whole, "\n")[0].as_buffer()
    table = pj.read_json(
        pa.BufferReader(joined),
        # One block: an object is never cut. Threads gain nothing, and break a forked child.
        read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    return table if table.num_rows == len(texts) else None


def spread(values: pa.Array, like: pa.Array) -> pa.Array:
    """The values in the places where `like` is not null, and nulls in the others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    present = like.is_valid()
    places = pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1)
    return values.take(pc.if_else(present, places, pa.scalar(None, pa.int64())))


# --- at once ------------------------------------------------------------------------------


def _transport_schema(columns: StructType) -> pa.Schema:
    """The types that Arrow parses the JSON to; dates and times are text, which is checked later."""
    import pyarrow as pa

    fields = {"numRecords": pa.int64()}
    bounds = bounds_type(columns)
    if bounds is not None:
        fields["minValues"] = fields["maxValues"] = _transported(bounds)
    counts = counts_type(columns)
    if counts is not None:
        fields["nullCount"] = counts
    fields["tightBounds"] = pa.bool_()
    return pa.schema(fields)


def _transported(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct({field.name: _transported(field.type) for field in kind.fields})
    return pa.string() if pa.types.is_temporal(kind) else kind


def _shaped(values: pa.Array, kind: pa.DataType, *, counts: bool = False) -> pa.Array:
    """Cast values that Arrow has parsed; raises where one does not fit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(kind):
        children = [
            _shaped(values.field(field.name), field.type, counts=counts) for field in kind.fields
        ]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind.fields), mask=mask)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(values), values, pa.scalar(None, kind))
    if pa.types.is_temporal(kind):
        # The cast is as strict as the protocol: a zone where there has to be one, else none.
        return _in_calendar(values.cast(kind))
    if counts and pc.any(pc.less(values, 0)).as_py():
        raise ValueError("a count is negative")
    return values


def _in_calendar(values: pa.Array) -> pa.Array:
    """Refuse dates and times outside the years 1 to 9999, which most readers cannot hold."""
    import pyarrow as pa
    import pyarrow.compute as pc

    years = pc.min_max(pc.year(values))
    lowest, highest = years["min"].as_py(), years["max"].as_py()
    if lowest is not None and not 1 <= lowest <= highest <= 9999:
        raise pa.ArrowInvalid("a year has not four digits")
    return values


# --- file by file -------------------------------------------------------------------------


def _tree(columns: StructType, *, only_bounds: bool) -> _Tree:
    tree: _Tree = {}
    for field in columns.fields:
        if isinstance(field.type, StructType):
            tree[physical_name(field)] = _tree(field.type, only_bounds=only_bounds)
        elif not only_bounds or has_bounds(field.type):
            tree[physical_name(field)] = field.type
    return tree


def _values(values: Any, tree: _Tree, decode: Any) -> dict[str, Any] | None:
    if not isinstance(values, Mapping):
        return None
    return {
        name: _values(values.get(name), inner, decode)
        if isinstance(inner, dict)
        else decode(values.get(name), inner)
        for name, inner in tree.items()
    }


def _bound(value: Any, data_type: DataType) -> Any:
    decoded: Any = UNKNOWN if value is None else decode_low(value, data_type)
    if decoded is UNKNOWN:
        return None
    if isinstance(data_type, DecimalType):
        try:
            return fit_decimal(decoded, data_type)
        except ValueError:
            return None
    return decoded


def _null_count(value: Any, _: DataType) -> int | None:
    return _count(value)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX_LONG else None
