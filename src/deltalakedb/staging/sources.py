"""Sources of rows: Arrow data, other Arrow producers, and DataFrames of extensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from deltalakedb.actions.arrow import schema_to_arrow
from deltalakedb.actions.datatypes import StructType
from deltalakedb.errors import InvalidArgumentError
from deltalakedb.extensions import extension
from deltalakedb.staging.layout import StagePlan
from deltalakedb.staging.stage import stage

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.actions import AddFile


class Source(Protocol):
    """Rows with their columns, which can be staged once."""

    generates: ClassVar[bool]
    """Whether generated columns are computed and checked on the way."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        ...

    def zone(self) -> tzinfo:
        """The time zone of times without a zone in conditions on the rows."""
        ...

    def stage(self, plan: StagePlan) -> list[AddFile]:
        """Write the rows as data files of a table."""
        ...


@dataclass(slots=True)
class ArrowSource:
    """Batches of this process."""

    generates: ClassVar[bool] = False
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def zone(self) -> tzinfo:
        """UTC, as everywhere outside of Spark."""
        return UTC

    def stage(self, plan: StagePlan) -> list[AddFile]:
        """Write the batches one after the other."""
        return stage(plan, self.batches)


def source_of(data: Any, columns: StructType | None = None) -> Source:
    """Return the source of the rows that a user passes; raises InvalidArgumentError.

    An empty list has no rows of `columns`.
    """
    import pyarrow as pa

    if hasattr(type(data), "generates"):
        ready: Source = data
        return ready
    other = extension(type(data).__module__.partition(".")[0])
    if other is not None:
        source: Source = other.frame_source(data)
        return source
    if isinstance(data, pa.RecordBatch):
        return ArrowSource(data.schema, iter([data]))
    if isinstance(data, pa.Table):
        return ArrowSource(data.schema, iter(data.to_batches()))
    if isinstance(data, (list, tuple)) and not data and columns is not None:
        return ArrowSource(schema_to_arrow(columns), iter(()))
    if isinstance(data, (list, tuple)) and data and all(isinstance(row, Mapping) for row in data):
        # The columns of all rows: pyarrow takes those of the first row only.
        names = dict.fromkeys(name for row in data for name in row)
        table = pa.table({name: [row.get(name) for row in data] for name in names})
        return ArrowSource(table.schema, iter(table.to_batches()))
    if isinstance(data, pa.RecordBatchReader):
        return ArrowSource(data.schema, iter(data))
    scanner = getattr(data, "scanner", None)
    if scanner is not None:
        reader = scanner().to_reader()
        return ArrowSource(reader.schema, iter(reader))
    if hasattr(data, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(data)
        return ArrowSource(reader.schema, iter(reader))
    raise InvalidArgumentError(
        f"A {type(data).__module__}.{type(data).__qualname__} cannot be written",
        fix="Pass a Spark DataFrame, a pyarrow Table, RecordBatch, reader or dataset, a polars or "
        "pandas data frame, or a list of dicts",
    )
