"""A snapshot's rows for other engines in this process; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from deltalakedb.arguments import optional_kind
from deltalakedb.errors import InvalidSchemaError, MissingDriverError
from deltalakedb.reading.dataset import SnapshotRows

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    import pyarrow.dataset as pads


def to_polars(rows: SnapshotRows, columns: Iterable[str] | None = None) -> pl.DataFrame:
    """All rows as a polars DataFrame, with all columns or those named."""
    try:
        import polars as pl
    except ImportError:
        raise _not_installed("polars") from None
    frame = pl.from_arrow(rows.to_table(columns=columns))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 -- a table never becomes a Series
    return frame


def to_duckdb(
    rows: pads.Dataset | SnapshotRows,
    connection: duckdb.DuckDBPyConnection | None = None,
    columns: Iterable[str] | None = None,
) -> duckdb.DuckDBPyRelation:
    """A DuckDB relation over the rows, read when it is queried.

    Without a connection it belongs to DuckDB's default one, as `duckdb.sql` does.
    """
    try:
        import duckdb
    except ImportError:
        raise _not_installed("duckdb") from None
    optional_kind("connection", connection, duckdb.DuckDBPyConnection, "a connection of DuckDB")
    opened = duckdb if connection is None else connection
    if columns is None:
        return opened.from_arrow(rows)
    names = list(columns)
    unknown = [name for name in names if name not in rows.schema.names]
    if unknown:
        raise InvalidSchemaError(
            f"The table has no column {unknown[0]!r}",
            fix=f"The columns are: {', '.join(rows.schema.names)}",
        )
    # DuckDB asks a dataset of pyarrow's for the columns that it needs, and a stream for all.
    source = rows.scanner(names) if isinstance(rows, SnapshotRows) else rows
    return opened.from_arrow(source).select(*map(duckdb.ColumnExpression, names))


def _not_installed(package: str) -> MissingDriverError:
    return MissingDriverError(
        f"The package {package} is not installed", fix=f"Install it: pip install {package}"
    )
