"""Conditions asked of the partition values of a file, as the log writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from deltalakedb.actions.datatypes import physical_name
from deltalakedb.actions.partition import decode_partition_value
from deltalakedb.conditions.predicate import (
    Constant,
    Predicate,
    columns_of,
    conjunction,
    conjuncts,
    is_exact,
)
from deltalakedb.conditions.row_filter import row_filter

if TYPE_CHECKING:
    from deltalakedb.actions import Metadata

PartitionTest: TypeAlias = Callable[[Mapping[str, str | None]], bool]


def partition_test(predicate: Predicate, metadata: Metadata) -> PartitionTest | None:
    """Whether a file of a partition has only rows for the condition; None where rows differ."""
    if isinstance(predicate, Constant):
        always = bool(predicate.value)
        return lambda _values: always
    partitions = {name.lower() for name in metadata.partition_columns}
    if not all(len(c.path) == 1 and c.path[0].lower() in partitions for c in columns_of(predicate)):
        return None
    expression = row_filter(predicate)
    columns = [metadata.schema.field(name) for name in metadata.partition_columns]

    def test(values: Mapping[str, str | None]) -> bool:
        import pyarrow as pa

        from deltalakedb.actions.arrow import type_to_arrow

        arrays = {
            column.name: pa.array(
                [decode_partition_value(values.get(physical_name(column)), column.type)],
                type_to_arrow(column.type),
            )
            for column in columns
        }
        return bool(pa.table(arrays).filter(expression).num_rows)

    return test


def partitions_read(predicate: Predicate, metadata: Metadata) -> PartitionTest:
    """Whether a file with these partition values could have rows for the condition."""
    names = {name.lower() for name in metadata.partition_columns}
    known = [
        part
        for part in conjuncts(predicate)
        if is_exact(part)
        and columns_of(part)
        and all(len(c.path) == 1 and c.path[0].lower() in names for c in columns_of(part))
    ]
    test = partition_test(conjunction(known), metadata) if known else None
    if test is not None:
        return test
    nothing = predicate == Constant(value=False)

    def any_partition(_: Mapping[str, str | None]) -> bool:
        return not nothing

    return any_partition
