"""Delta on Spark does to a table of its own what a story does to ours."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deltalakedb.deltalog.names import LOG, LogKind, parse_name
from interop.readers import DeltaSpark, Reader, Refused

Row = tuple[Any, ...]


def literal(value: Any) -> str:
    """A value in Spark's SQL."""
    if value is None:
        return "NULL"
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
        partition_by: Sequence[str],
        properties: Any,
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._folder = folder
        self._name = f"delta.`{folder}`"
        parts = f"PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
        named = {"delta.enableChangeDataFeed": "false", **properties}
        shown = ", ".join(f"'{key}' = '{value}'" for key, value in named.items())
        self.run(
            "CREATE TABLE {t} (id BIGINT, part STRING, v BIGINT, word STRING) "
            f"USING delta {parts} TBLPROPERTIES ({shown})"
        )

    def run(self, statement: str) -> None:
        """A statement, with `{t}` for the table."""
        self._engine.run(statement.replace("{t}", self._name))

    def insert(self, how: str, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """INSERT, in one of its ways, of rows with these columns."""
        typed = [(n, "BIGINT" if n in ("id", "v") else "STRING") for n in columns]
        cast = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in typed)
        # A row that is left out again says what the columns are when there are no others.
        first: Row = tuple(0 if kind == "BIGINT" else "" for _, kind in typed)
        values = ", ".join(
            f"({', '.join(map(literal, (*row, kept)))})"
            for row, kept in [(first, 0), *((row, 1) for row in rows)]
        )
        names = ", ".join((*columns, "kept"))
        self.run(f"{how} SELECT {cast} FROM VALUES {values} AS s({names}) WHERE kept = 1")

    @property
    def version(self) -> int:
        """The newest version."""
        names = (parse_name(path.name) for path in (self._folder / LOG).iterdir())
        return max(name.version for name in names if name and name.kind is LogKind.COMMIT)

    def has(self, columns: Sequence[str], rows: Counter[Row]) -> bool:
        """Whether the newest version has just these rows: Delta has the last word."""
        try:
            found = self._reader.read(self._folder).select(list(columns)).to_pylist()
        except (Refused, KeyError):
            found = []
        return Counter(tuple(row.values()) for row in found) == rows or self.rows(columns) == rows

    def rows(self, columns: Sequence[str], version: int | None = None) -> Counter[Row]:
        """The rows now, or at a version."""
        at = "" if version is None else f" VERSION AS OF {version}"
        found = self._engine.sql(f"SELECT {', '.join(columns)} FROM {self._name}{at}")
        return Counter(tuple(row.values()) for row in found.to_pylist())

    def changes(self, columns: Sequence[str], version: int) -> Counter[Row]:
        """The feed of a version."""
        path = self._name.removeprefix("delta.").strip("`")
        found = self._engine.sql(
            f"SELECT _change_type, {', '.join(columns)} "
            f"FROM table_changes_by_path('{path}', {version}, {version})"
        )
        return Counter(tuple(row.values()) for row in found.to_pylist())
