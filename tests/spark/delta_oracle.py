"""Delta on Spark does to a table of its own what a story does to ours."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltalakedb.deltalog.names import LOG, LogKind, parse_name
from interop.readers import DeltaSpark, Reader, Refused

Row = tuple[Any, ...]


def quoted(name: str) -> str:
    """A column in Spark's SQL."""
    return f"`{name}`"


def counted(found: pa.Table) -> Counter[Row]:
    """Rows, and how often each is there; structs and lists as tuples."""
    return Counter(_frozen(row) for row in found.to_pylist())


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(_frozen(one) for one in value.values())
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


def literal(value: Any) -> str:
    """A value in Spark's SQL; a tuple is a struct of a number and of words."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00'"
    if isinstance(value, tuple):
        number, words = value
        tags = "NULL" if words is None else f"array({', '.join(map(literal, words))})"
        return (
            f"named_struct('n', CAST({literal(number)} AS BIGINT), "
            f"'tags', CAST({tags} AS ARRAY<STRING>))"
        )
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return f"{value}L"


class DeltaOracle:
    """One table of Delta on Spark; `reader` reads it too, and is faster."""

    def __init__(
        self,
        engine: DeltaSpark,
        reader: Reader,
        folder: Path,
        *,
        types: Mapping[str, str],
        partition_by: Sequence[str],
        properties: Any,
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._folder = folder
        self._name = f"delta.`{folder}`"
        self._types = types
        parts = f"PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
        named = {"delta.enableChangeDataFeed": "false", **properties}
        shown = ", ".join(f"'{key}' = '{value}'" for key, value in named.items())
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in types.items())
        self.run(f"CREATE TABLE {{t}} ({columns}) USING delta {parts} TBLPROPERTIES ({shown})")

    def run(self, statement: str) -> None:
        """A statement, with `{t}` for the table."""
        self._engine.run(statement.replace("{t}", self._name))

    def insert(self, how: str, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """INSERT, in one of its ways, of rows with these columns."""
        types = [self._types.get(name, "string") for name in columns]
        names = [*map(quoted, columns)]
        cast = ", ".join(
            f"CAST({name} AS {kind}) AS {name}" for name, kind in zip(names, types, strict=True)
        )
        # A row that is left out again says what the columns are when there are no others.
        blank = {"bigint": 0, "string": ""}
        first: Row = tuple(blank.get(kind) for kind in types)
        values = ", ".join(
            f"({', '.join(map(literal, (*row, kept)))})"
            for row, kept in [(first, 0), *((row, 1) for row in rows)]
        )
        named = ", ".join((*names, "kept"))
        self.run(f"{how} SELECT {cast} FROM VALUES {values} AS s({named}) WHERE kept = 1")

    @property
    def version(self) -> int:
        """The newest version."""
        names = (parse_name(path.name) for path in (self._folder / LOG).iterdir())
        return max(name.version for name in names if name and name.kind is LogKind.COMMIT)

    def has(self, columns: Sequence[str], rows: Counter[Row]) -> bool:
        """Whether the newest version has just these rows: Delta has the last word."""
        try:
            found = counted(self._reader.read(self._folder).select(list(columns)))
        except (Refused, KeyError):
            found = Counter()
        return found == rows or self.rows(columns) == rows

    def rows(self, columns: Sequence[str], version: int | None = None) -> Counter[Row]:
        """The rows now, or at a version."""
        at = "" if version is None else f" VERSION AS OF {version}"
        names = ", ".join(map(quoted, columns))
        return counted(self._engine.sql(f"SELECT {names} FROM {self._name}{at}"))

    def changes(self, columns: Sequence[str], version: int) -> Counter[Row]:
        """The feed of a version."""
        path = self._name.removeprefix("delta.").strip("`")
        found = self._engine.sql(
            f"SELECT _change_type, {', '.join(map(quoted, columns))} "
            f"FROM table_changes_by_path('{path}', {version}, {version})"
        )
        return counted(found)
