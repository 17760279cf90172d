"""`SET column = expression` of UPDATE and MERGE, for columns and for fields of structs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from deltalakedb.actions.datatypes import StructType
from deltalakedb.errors import ConfigurationError, InvalidConditionError
from deltalakedb.spark.dml.conditions import as_column
from deltalakedb.spark.io.generated import recompute_columns
from deltalakedb.spark.io.scan import quoted, spark_types
from deltalakedb.spark.io.store_assignment import Value, fitted

_FIX: Final = "Correct it: columns are named as in the table"
_PART: Final = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")


class Assignments:
    """New values of columns, by their names in the table."""

    def __init__(
        self, schema: StructType, assignments: Mapping[str, Any], *, alias: str | None = None
    ) -> None:
        if not assignments:
            raise ConfigurationError(
                "No column is set",
                fix="Pass columns and their new values, e.g. {'price': 'price * 2'}",
            )
        self._schema = schema
        self._values: dict[tuple[str, ...], Column] = {}
        for name, value in assignments.items():
            path = _resolved(schema, name_parts(name), alias)
            if any(path[: len(o)] == o or o[: len(path)] == path for o in self._values):
                raise InvalidConditionError(
                    f"{'.'.join(path)!r} is set twice",
                    fix="Set each column once, and either a struct or fields of it",
                )
            self._values[path] = as_column(value, f"The value of {name!r}")

    @property
    def columns(self) -> frozenset[str]:
        """The columns that are set, or of which fields are set."""
        return frozenset(path[0] for path in self._values)

    def whole(self) -> dict[str, Column]:
        """The values of columns of new rows, in which fields of structs cannot be set."""
        for path in self._values:
            if len(path) > 1:
                raise InvalidConditionError(
                    f"{'.'.join(path)!r} is a field, and new rows get whole columns",
                    fix=f"Set {path[0]!r}, e.g. to named_struct(...)",
                )
        return {path[0]: value for path, value in self._values.items()}

    def applied(
        self, probe: DataFrame, *, alias: str | None = None, fix: str = _FIX
    ) -> list[Column]:
        """All columns of the table with their new values; `alias` is that of the table.

        - Values are cast to the types of their columns; `probe` has the columns they may name.
        - A struct with fields that are set is not null afterwards.
        - The column RECOMPUTE follows, if the table has generated columns.
        """
        types = spark_types(self._schema)
        prefix = "" if alias is None else f"{quoted(alias)}."
        values = [
            Value(".".join(path), value, _type_at(types[path[0]], path[1:]))
            for path, value in self._values.items()
        ]
        new = dict(zip(self._values, fitted(probe, values, fix), strict=True))
        columns = []
        for field in self._schema.fields:
            inside = {path[1:]: value for path, value in new.items() if path[0] == field.name}
            before = F.col(prefix + quoted(field.name))
            columns.append(_rebuilt(before, inside, types[field.name]))
        return [*columns, *recompute_columns(self._schema, self.columns)]


def _type_at(kind: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        kind = kind[part].dataType
    return kind


def _rebuilt(column: Column, inside: Mapping[tuple[str, ...], Column], kind: Any) -> Column:
    """A column with a new value, or with new values of fields inside it."""
    if not inside:
        return column
    if () in inside:
        return inside[()]
    parts = []
    for field in kind.fields:
        below = {path[1:]: value for path, value in inside.items() if path[0] == field.name}
        part = _rebuilt(column.getField(field.name), below, field.dataType)
        parts.append(part.alias(field.name))
    return F.struct(*parts)


def name_parts(name: str) -> tuple[str, ...]:
    """The parts of a name with dots and backticks."""
    parts = []
    position = 0
    while position <= len(name):
        match = _PART.match(name, position)
        if match is None:
            raise ConfigurationError(
                f"{name!r} names no column", fix="Write e.g. price, or `a.b` with backticks"
            )
        parts.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        position = match.end()
        if position == len(name):
            break
        if name[position] != ".":
            raise ConfigurationError(f"{name!r} names no column", fix="Separate names by dots")
        position += 1
    return tuple(parts)


def _resolved(schema: StructType, path: tuple[str, ...], alias: str | None) -> tuple[str, ...]:
    """The path as the schema spells it; it may begin with the alias of the table."""
    tried = [path]
    if alias is not None and len(path) > 1 and path[0].lower() == alias.lower():
        tried.insert(0, path[1:])
    for candidate in tried:
        spelled = _spelled(schema, candidate)
        if spelled is not None:
            return spelled
    raise InvalidConditionError(
        f"The table has no column {'.'.join(path)!r}",
        why=f"Its columns are: {', '.join(schema.names)}",
        fix="Name one of these",
    )


def _spelled(schema: StructType, path: tuple[str, ...]) -> tuple[str, ...] | None:
    spelled = []
    kind: Any = schema
    for part in path:
        field = kind.get(part) if isinstance(kind, StructType) else None
        if field is None:
            return None
        spelled.append(field.name)
        kind = field.type
    return tuple(spelled)
