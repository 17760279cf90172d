"""A snapshot's rows for other engines in this process; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from deltalakedb.arguments import optional_kind
from deltalakedb.errors import MissingDriverError
from deltalakedb.snapshot.dataset import SnapshotDataset

if TYPE_CHECKING:
    import duckdb
    import polars as pl


def to_polars(dataset: SnapshotDataset, columns: Iterable[str] | None = None) -> pl.DataFrame:
    """All rows as a polars DataFrame, with all columns or those named."""
    try:
        import polars as pl
    except ImportError:
        raise _not_installed("polars") from None
    frame = pl.from_arrow(dataset.to_table(columns=columns))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 -- a table never becomes a Series
    return frame


def to_duckdb(
    dataset: SnapshotDataset, connection: duckdb.DuckDBPyConnection | None = None
) -> duckdb.DuckDBPyRelation:
    """A DuckDB relation over the dataset, read when it is queried.

    Without a connection it belongs to DuckDB's default one, as `duckdb.sql` does.
    """
    try:
        import duckdb
    except ImportError:
        raise _not_installed("duckdb") from None
    optional_kind("connection", connection, duckdb.DuckDBPyConnection, "a connection of DuckDB")
    return (duckdb if connection is None else connection).from_arrow(dataset)


def _not_installed(package: str) -> MissingDriverError:
    return MissingDriverError(
        f"The package {package} is not installed", fix=f"Install it: pip install {package}"
    )
