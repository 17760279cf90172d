"""The files that a dataset reads: listed before, or asked of the catalog for each scan.

A list may hold files without a matching row, and never leaves one out that has any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from deltalakedb.actions.datatypes import DOUBLE, FLOAT
from deltalakedb.conditions.predicate import (
    And,
    Constant,
    Opaque,
    Or,
    Predicate,
    conjunction,
    disjunction,
)
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import InvalidConditionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa
    import pyarrow.compute as pc

    from deltalakedb.actions import Metadata
    from deltalakedb.actions import Protocol as TableProtocol
    from deltalakedb.actions.schema import StructType
    from deltalakedb.store import TableRecord

_NAN: Final = re.compile(r"\bnan\b", re.IGNORECASE)
COLUMNS: Final = ("path", "partition_values", "deletion_vector", "size_bytes")
"""What reading takes of `Snapshot.files()`."""


class ReadableSnapshot(Protocol):
    """What reading needs of a snapshot, which belongs to a higher room."""

    @property
    def table(self) -> TableRecord: ...
    @property
    def metadata(self) -> Metadata: ...
    @property
    def protocol(self) -> TableProtocol: ...
    @property
    def schema(self) -> StructType: ...
    @property
    def partition_columns(self) -> tuple[str, ...]: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def storage_options(self) -> Mapping[str, str]: ...

    def files(self, where: Any = None, *, columns: Iterable[str] | None = None) -> pa.Table:
        """The files that can have rows which fulfil `where`."""


class FileList(Protocol):
    """Files of one table at one version."""

    def narrowed(self, condition: pc.Expression) -> FileList:
        """Those that may hold rows which fulfil a condition of pyarrow's; perhaps more."""

    def table(self) -> pa.Table:
        """The files, with `COLUMNS`."""


@dataclass(frozen=True, slots=True)
class ListedFiles:
    """Files that were listed before."""

    files: pa.Table

    def narrowed(self, condition: pc.Expression) -> ListedFiles:  # noqa: ARG002 -- nothing is known
        return self

    def table(self) -> pa.Table:
        return self.files


@dataclass(frozen=True, slots=True)
class CatalogFiles:
    """The files of a snapshot, listed by the catalog each time they are asked for."""

    snapshot: ReadableSnapshot
    predicate: Predicate

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has no connection to the catalog.
        return ListedFiles, (self.table(),)

    def narrowed(self, condition: pc.Expression) -> CatalogFiles:
        planned = _plannable(condition, self.snapshot)
        return CatalogFiles(self.snapshot, conjunction([self.predicate, planned]))

    def table(self) -> pa.Table:
        where = None if self.predicate == Constant(value=True) else self.predicate
        return self.snapshot.files(where, columns=COLUMNS)


def _plannable(condition: pc.Expression, snapshot: ReadableSnapshot) -> Predicate:
    """What the catalog can decide of a condition that means what it means in pyarrow."""
    # To pyarrow NaN is unequal and in no order, to us as to Spark it is the greatest number.
    if _NAN.search(str(condition)):
        return Constant(value=True)
    try:
        predicate = parse_where(
            condition, snapshot.schema, snapshot.partition_columns, strict=False
        )
    except InvalidConditionError:
        # pyarrow, which filters the rows, compares some types that we do not.
        return Constant(value=True)
    return _without_floats(predicate)


def _without_floats(predicate: Predicate) -> Predicate:
    if isinstance(predicate, And):
        return conjunction(_without_floats(part) for part in predicate.parts)
    if isinstance(predicate, Or):
        return disjunction(_without_floats(part) for part in predicate.parts)
    if isinstance(predicate, Constant | Opaque) or predicate.column.type not in (FLOAT, DOUBLE):
        return predicate
    return Opaque(str(predicate))
