"""CHECK constraints, column invariants and lengths of texts, asked of the rows to be written.

A row that makes a condition false or unknown is refused, as Delta does. A condition that says more
than `parse_where` understands is not skipped: the write is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from deltalakedb.actions.datatypes import StructType
from deltalakedb.actions.properties import CONSTRAINT_PREFIX, TableProperties
from deltalakedb.conditions.row_filter import row_filter
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import (
    ConstraintViolatedError,
    InvalidConditionError,
    UnsupportedFeatureError,
)
from deltalakedb.staging.lengths import limits

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.actions import Metadata
    from deltalakedb.snapshot import Snapshot

ENFORCED = frozenset({"checkConstraints", "invariants"})
"""What `Constraints` takes care of, by feature."""


class Constraints:
    """The conditions that every row of a table fulfils."""

    def __init__(
        self, metadata: Metadata, table: str, more: Mapping[str, str] | None = None
    ) -> None:
        self._table = table
        schema = metadata.schema
        self._limits = list(limits(schema))
        conditions = {
            **TableProperties(metadata.configuration).constraints,
            **dict(invariants(schema)),
            **(more or {}),
        }
        self._filters: list[tuple[str, str, Any]] = []
        for name, condition in conditions.items():
            try:
                predicate = parse_where(condition, schema, metadata.partition_columns)
                self._filters.append((name, condition, row_filter(predicate)))
            except InvalidConditionError as error:
                raise UnsupportedFeatureError(
                    f"Rows of table {table!r} cannot be written here: its constraint {name!r} "
                    f"({condition}) cannot be evaluated",
                    why=str(error),
                    fix="Write through Spark, which evaluates any SQL expression",
                ) from error

    def check(self, batch: pa.RecordBatch) -> None:
        """Refuse a batch with a row that breaks a condition."""
        import pyarrow as pa

        for limit in self._limits:
            longest = limit.longest(batch.column(limit.column))
            if longest > limit.length:
                raise ConstraintViolatedError(
                    f"Rows that were to be written to table {self._table!r} have texts that are "
                    f"too long for column {str(limit)!r}",
                    why=f"It has {limit.length} characters at most, and one of them has {longest}",
                    fix="Shorten them, or leave those rows out",
                )
        if not self._filters or not batch.num_rows:
            return
        rows = pa.Table.from_batches([batch])
        for name, condition, expression in self._filters:
            broken = batch.num_rows - rows.filter(expression).num_rows
            if broken:
                raise ConstraintViolatedError(
                    f"{broken} of the rows to be written to table {self._table!r} break its "
                    f"constraint {name!r}",
                    why=f"Every row has to fulfil: {condition}",
                    fix="Correct those rows, or leave them out",
                )


def check_rows(snapshot: Snapshot, constraints: Mapping[str, str]) -> None:
    """Refuse CHECK constraints, by the names of their properties, that rows of a table break."""
    named = {name.removeprefix(CONSTRAINT_PREFIX): text for name, text in constraints.items()}
    asked = Constraints(snapshot.metadata, snapshot.table.name, named)
    for batch in snapshot.to_arrow_dataset().to_batches():
        asked.check(batch)


def invariants(schema: StructType) -> Iterator[tuple[str, str]]:
    """The conditions that columns of a table bring along, by a name for each."""
    for field in schema.fields:
        text = field.metadata.get("delta.invariants")
        if isinstance(text, str):
            yield f"invariant of {field.name}", json.loads(text)["expression"]["expression"]
