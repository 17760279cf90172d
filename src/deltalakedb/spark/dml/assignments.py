"""`SET column = expression` of UPDATE and MERGE, for columns and for fields of structs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions.datatypes import StructType
from deltalakedb.errors import ConfigurationError, InvalidConditionError
from deltalakedb.spark.dml.conditions import as_column
from deltalakedb.spark.dml.generated import anew
from deltalakedb.spark.dml.store_assignment import Value, fitted
from deltalakedb.spark.io.scan import quoted, spark_types

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FIX: Final = "Correct it: columns are named as in the table"
_PART: Final = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")


class Assignments:
    """New values of columns, by the names that the table gives them."""

    def __init__(
        self, schema: StructType, given: Mapping[str, Any], *, alias: str | None = None
    ) -> None:
        if not given:
            raise ConfigurationError(
                "There is nothing to set",
                fix="Pass columns and their new values, e.g. {'price': 'price * 2'}",
            )
        self._schema = schema
        self._values: dict[tuple[str, ...], Column] = {}
        for name, value in given.items():
            path = _resolved(schema, name_parts(name), alias)
            if any(path[: len(o)] == o or o[: len(path)] == path for o in self._values):
                raise InvalidConditionError(
                    f"{'.'.join(path)!r} is set twice",
                    fix="Set each column once, and either a struct or fields of it",
                )
            self._values[path] = as_column(value, f"The value of {name!r}")

    @property
    def columns(self) -> frozenset[str]:
        """The columns that get new values, or new values of fields."""
        return frozenset(path[0] for path in self._values)

    def whole(self) -> dict[str, Column]:
        """The values of columns, for rows that are new: fields of structs cannot be set there."""
        for path in self._values:
            if len(path) > 1:
                raise InvalidConditionError(
                    f"{'.'.join(path)!r} is a field, and new rows get whole columns",
                    fix=f"Give a value for {path[0]!r}, e.g. named_struct(...)",
                )
        return {path[0]: value for path, value in self._values.items()}

    def applied(
        self, probe: DataFrame, *, alias: str | None = None, fix: str = _FIX
    ) -> list[Column]:
        """All columns of the table with their new values; `alias` is that of the table.

        Values are fitted to their columns, with what a `probe` knows of them. A struct some of
        whose fields are set is one afterwards, also where it was null. Behind all of them stands
        which generated columns follow from them, if there are any.
        """
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        types = spark_types(self._schema)
        prefix = "" if alias is None else f"{quoted(alias)}."
        values = [
            Value(".".join(path), value, _type_at(types[path[0]], path[1:]))
            for path, value in self._values.items()
        ]
        made = dict(zip(self._values, fitted(probe, values, fix), strict=True))
        columns = []
        for field in self._schema.fields:
            inside = {path[1:]: value for path, value in made.items() if path[0] == field.name}
            before = F.col(prefix + quoted(field.name))
            columns.append(_rebuilt(before, inside, types[field.name]))
        return [*columns, *anew(self._schema, self.columns)]


def _type_at(kind: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        kind = kind[part].dataType
    return kind


def _rebuilt(column: Column, inside: Mapping[tuple[str, ...], Column], kind: Any) -> Column:
    """A column with new values of its own, or of fields inside it."""
    from pyspark.sql import functions as F  # noqa: N812

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
    """A name with dots and backticks, in its parts."""
    parts = []
    position = 0
    while position <= len(name):
        found = _PART.match(name, position)
        if found is None:
            raise ConfigurationError(
                f"{name!r} names no column", fix="Write e.g. price, or `a.b` with backticks"
            )
        parts.append(
            found.group(2) if found.group(1) is None else found.group(1).replace("``", "`")
        )
        position = found.end()
        if position == len(name):
            break
        if name[position] != ".":
            raise ConfigurationError(f"{name!r} names no column", fix="Separate names by dots")
        position += 1
    return tuple(parts)


def _resolved(schema: StructType, path: tuple[str, ...], alias: str | None) -> tuple[str, ...]:
    """The same path as the schema spells it; the alias of the table may stand before it."""
    tried = [path]
    if alias is not None and len(path) > 1 and path[0].lower() == alias.lower():
        tried.insert(0, path[1:])
    for candidate in tried:
        found = _spelled(schema, candidate)
        if found is not None:
            return found
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
