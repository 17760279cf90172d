"""Clustering columns, which are stored in the domain `delta.clustering`.

The domain has physical names, which a renaming does not change; users see logical names, with dots
between the fields of a struct.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from deltalakedb.actions.datatypes import (
    BOOLEAN,
    ColumnPath,
    DataType,
    StructType,
    physical_name,
)
from deltalakedb.actions.jsonvalue import dumps, loads
from deltalakedb.actions.planning import has_order
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.statistics import covered_columns, parse_column_list
from deltalakedb.actions.values import Action, DomainMetadata, Metadata
from deltalakedb.errors import ConfigurationError, InvalidSchemaError, UnsupportedFeatureError

DOMAIN: Final = "delta.clustering"
FEATURE: Final = "clustering"
MOST_COLUMNS: Final = 4
"""As Delta has it: with more of them, none rules out many files."""


def clustering_domain(metadata: Metadata, columns: Sequence[str]) -> DomainMetadata:
    """The action that clusters a table by columns, or by none; refused where that is no use."""
    if isinstance(columns, str):
        columns = [columns]
    if metadata.partition_columns:
        raise UnsupportedFeatureError(
            f"Table {metadata.name!r} cannot be clustered",
            why=f"It is partitioned, by {', '.join(metadata.partition_columns)}",
            fix="Use one of the two: clustering columns can stand for partitions",
        )
    if len(columns) > MOST_COLUMNS:
        raise ConfigurationError(
            f"Table {metadata.name!r} cannot be clustered by {len(columns)} columns",
            why=f"{MOST_COLUMNS} are the most that are of use",
            fix="Choose those that conditions name most often",
        )
    paths = [_resolved(metadata, name) for name in columns]
    if len({logical for logical, _, _ in paths}) < len(paths):
        raise ConfigurationError(
            f"A column is named twice: {', '.join(columns)}", fix="Name each of them once"
        )
    _check_covered(metadata, paths)
    named = {"clusteringColumns": [list(path) for _, path, _ in paths], "domainName": DOMAIN}
    return DomainMetadata(DOMAIN, dumps(named), removed=False)


def clustering_paths(metadata: Metadata, domains: Mapping[str, str]) -> list[ColumnPath] | None:
    """The clustering columns by their names in the schema; None where a table has no such domain.

    A column that is gone is left out.
    """
    text = domains.get(DOMAIN)
    if text is None:
        return None
    paths = []
    for path in loads(text).get("clusteringColumns") or ():
        logical = _logical(metadata.schema, path)
        if logical is not None:
            paths.append(logical)
    return paths


def dotted(path: ColumnPath) -> str:
    """A column as users write it."""
    return ".".join(
        step if step.isidentifier() else "`" + step.replace("`", "``") + "`" for step in path
    )


def reclustered(
    before: Metadata, after: Metadata, domains: Mapping[str, str]
) -> tuple[Action, ...]:
    """What keeps a table clustered whose columns are replaced by others."""
    paths = clustering_paths(before, domains)
    if not paths:
        return ()
    names = [dotted(path) for path in paths]
    try:
        return (clustering_domain(after, names),)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"The columns of table {before.name!r} cannot be replaced by these",
            why=f"It is clustered by {', '.join(names)}: {error.what}",
            fix="Keep these columns, or cluster the table by others first",
        ) from None


def check_still_covered(metadata: Metadata, domains: Mapping[str, str]) -> None:
    """Refuse properties that would end the statistics of clustering columns."""
    paths = clustering_paths(metadata, domains) or []
    _check_covered(metadata, [_resolved(metadata, dotted(path)) for path in paths])


def _resolved(metadata: Metadata, name: str) -> tuple[ColumnPath, ColumnPath, DataType]:
    """A column's names in the schema and in files, and its type."""
    try:
        (path,) = parse_column_list(name)
    except (InvalidSchemaError, ValueError):
        path = (name,)
    here: DataType = metadata.schema
    logical, physical = [], []
    for step in path:
        field = here.get(step) if isinstance(here, StructType) else None
        if field is None:
            raise ConfigurationError(
                f"Table {metadata.name!r} cannot be clustered by {name!r}: there is no such column",
                fix=f"Its columns are: {', '.join(metadata.schema.names)}",
            )
        logical.append(field.name)
        physical.append(physical_name(field) if metadata.has_column_mapping else field.name)
        here = field.type
    if not has_order(here) or here == BOOLEAN:
        raise ConfigurationError(
            f"Table {metadata.name!r} cannot be clustered by {name!r}",
            why=f"Its type is {here}, which has no bounds",
            fix="Choose columns of numbers, texts, dates or times",
        )
    return tuple(logical), tuple(physical), here


def _check_covered(
    metadata: Metadata, paths: Sequence[tuple[ColumnPath, ColumnPath, DataType]]
) -> None:
    properties = TableProperties(metadata.configuration)
    covered = covered_columns(
        metadata.schema,
        partition_columns=metadata.partition_columns,
        num_indexed=properties.num_indexed_cols,
        named=properties.stats_columns,
    )
    for logical, _, _ in paths:
        if logical not in covered:
            raise ConfigurationError(
                f"Table {metadata.name!r} cannot be clustered by {dotted(logical)!r}: files would "
                "have no statistics of it",
                why="Statistics cover the first columns, or those that a property lists",
                fix="List it in delta.dataSkippingStatsColumns, or move the column to the front",
            )


def _logical(schema: StructType, path: Sequence[str]) -> ColumnPath | None:
    here: DataType = schema
    names = []
    for step in path:
        fields = here.fields if isinstance(here, StructType) else ()
        named = next((f for f in fields if step in (physical_name(f), f.name)), None)
        if named is None:
            return None
        names.append(named.name)
        here = named.type
    return tuple(names)
