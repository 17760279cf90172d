"""Planned columns: the columns whose bounds the catalog has as typed keys of each file.

A condition on a planned column uses an index instead of the statistics of all files. There is room
for `SLOTS` of them: those that the table property `deltalakedb.planningColumns` lists, then the
partition columns in their order. The plan follows from the metadata alone, so every writer
of a version agrees on it; the catalog stores the plan of its keys as text.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final, NamedTuple

from deltalakedb.actions.datatypes import (
    BINARY,
    VOID,
    ColumnPath,
    DataType,
    StructField,
    StructType,
    physical_name,
    schema_from_json,
    was_float,
    without_physical_names,
)
from deltalakedb.actions.order_keys import SLOTS, has_order_key
from deltalakedb.actions.statistics import parse_column_list
from deltalakedb.actions.values import Metadata
from deltalakedb.errors import ConfigurationError, InvalidSchemaError

PLANNING_COLUMNS: Final = "deltalakedb.planningColumns"


class PlannedColumn(NamedTuple):
    """A leaf column with bounds; `physical` is its path in statistics and data files."""

    physical: ColumnPath
    type: DataType
    is_partition: bool = False


Plan = tuple[PlannedColumn, ...]


def plan_of(metadata: Metadata) -> Plan:
    """The planned columns of a table, by slot. What cannot be planned is left out: never raises."""
    listed, _ = _listed(*_key(metadata))
    return listed


def check_plan(metadata: Metadata) -> None:
    """Raise ConfigurationError where the property lists what cannot be planned."""
    _, problem = _listed(*_key(metadata))
    if problem:
        raise ConfigurationError(
            f"The table property {PLANNING_COLUMNS!r} cannot be "
            f"{metadata.configuration.get(PLANNING_COLUMNS)!r}",
            why=problem,
            fix=f"List up to {SLOTS} columns of numbers, strings, dates or times, e.g. 'id, ts'",
        )


def _key(metadata: Metadata) -> tuple[str | None, bool, tuple[str, ...], str | None]:
    return (
        metadata.schema_string,
        metadata.has_column_mapping,
        tuple(metadata.partition_columns),
        metadata.configuration.get(PLANNING_COLUMNS),
    )


def plan_text(plan: Plan) -> str | None:
    """The plan as the catalog keeps it; None where there is none."""
    if not plan:
        return None
    # ASCII is stored as it is by every engine, whatever the names of columns hold.
    return json.dumps(
        [{"partition": c.is_partition, "path": list(c.physical), "type": str(c.type)} for c in plan]
    )


def has_order(data_type: DataType) -> bool:
    """Whether values of the type have order keys."""
    return has_order_key(data_type) and data_type != BINARY  # statistics have no bounds of bytes


@lru_cache(maxsize=256)
def _listed(
    schema_string: str | None,
    mapped: bool,  # noqa: FBT001 - part of the key
    partition_columns: tuple[str, ...],
    listed: str | None,
) -> tuple[Plan, str]:
    """Return the plan, and the problem of the property, if there is one."""
    if not partition_columns and listed is None:
        return (), ""
    schema = StructType(()) if schema_string is None else schema_from_json(schema_string)
    if not mapped:
        schema = without_physical_names(schema)
    partitions = {name.lower() for name in partition_columns}
    chosen: dict[ColumnPath, PlannedColumn] = {}
    paths, problem = _paths(listed)
    for path in paths:
        column = _resolve(schema, path, partitions)
        if column is None:
            problem = problem or f"there is no column {'.'.join(path)!r}"
        elif column.type == VOID:
            continue
        elif not has_order(column.type):
            problem = problem or f"the column {'.'.join(path)!r} ({column.type}) has no bounds"
        elif len(chosen) == SLOTS:
            problem = problem or f"it lists {len(paths)} columns, and there is room for {SLOTS}"
        else:
            chosen[column.physical] = column
    for name in partition_columns:
        column = _resolve(schema, (name,), partitions)
        if column is not None and has_order(column.type) and len(chosen) < SLOTS:
            chosen.setdefault(column.physical, column)
    return tuple(chosen.values()), problem


def _paths(listed: str | None) -> tuple[list[ColumnPath], str]:
    try:
        return ([] if listed is None else parse_column_list(listed)), ""
    except InvalidSchemaError as error:
        return [], error.why or error.what


def _resolve(schema: StructType, path: ColumnPath, partitions: set[str]) -> PlannedColumn | None:
    here: DataType = schema
    field: StructField | None = None
    physical: list[str] = []
    for step in path:
        field = here.get(step) if isinstance(here, StructType) else None
        if field is None:
            return None
        physical.append(physical_name(field))
        here = field.type
    is_partition = len(path) == 1 and path[0].lower() in partitions
    if not is_partition and field is not None and was_float(field):
        return PlannedColumn(tuple(physical), VOID)  # Its old bounds are not those of doubles.
    return PlannedColumn(tuple(physical), here, is_partition)
