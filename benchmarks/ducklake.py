"""The peer DuckLake: a catalog whose tables are filled as its specification describes.

`ducklake_add_data_files` would need real files; the rows that it writes are inserted instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.lakes import COLUMNS, ROWS, Shape, commits_of

_TYPES = {
    "long": "BIGINT",
    "date": "DATE",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "timestamp": "TIMESTAMPTZ",
}
_META = "__ducklake_metadata_lake"
_BATCH = 100_000


def attach_ducklake(target: str, folder: str) -> Any:
    """A connection of DuckDB with the catalog `target` as `lake`, made where there is none."""
    import duckdb

    connection: Any = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute(f"LOAD '{_extension('ducklake')}'")
    if target.startswith("postgres:"):
        connection.execute(f"LOAD '{_extension('postgres_scanner')}'")
    connection.execute(
        f"ATTACH 'ducklake:{target}' AS lake "
        f"(DATA_PATH '{folder}/ducklake/', DATA_INLINING_ROW_LIMIT 0)"
    )
    return connection


class DuckLake:
    """One table `lake.t` in a catalog of its own; `target` is a file, or `postgres:` and its DSN.

    ImportError where the extension of DuckDB is not installed.
    """

    def __init__(self, target: str, folder: Path, shape: Shape) -> None:
        self.shape = shape
        self._connection = attach_ducklake(target, str(folder))
        run = self._connection.execute
        columns = ", ".join(f"{name} {_TYPES[kind]}" for name, kind in COLUMNS.items())
        run(f"CREATE TABLE lake.t ({columns})")
        run("ALTER TABLE lake.t SET PARTITIONED BY (day)")
        newest = "SELECT max(snapshot_id) FROM lake.snapshots()"
        ((self._first,),) = self._connection.execute(newest).fetchall()
        self._fill()

    def close(self) -> None:
        """Release the catalog."""
        self._connection.close()

    def list_files(self, version: int | None = None) -> Any:
        """The live files at the head, or at a version of the shape, as an Arrow table."""
        at = "" if version is None else f", snapshot_version => {self._first + version}"
        return self._connection.execute(
            f"FROM ducklake_list_files('lake', 't'{at})"
        ).to_arrow_table()

    # --- its metadata -------------------------------------------------------------------------

    def _fill(self) -> None:
        shape, run = self.shape, self._connection.execute
        ends = {
            number: self._first + commit.version
            for commit in commits_of(shape)
            for number in commit.removes
        }
        run("BEGIN")
        next_file = 0
        files: list[tuple[int, int, int]] = []
        snapshots: list[tuple[int, int]] = []
        for commit in commits_of(shape):
            for number in commit.adds:
                files.append((next_file, number, self._first + commit.version))
                next_file += 1
            snapshots.append((self._first + commit.version, next_file))
            if len(files) >= _BATCH:
                self._insert_files(files, ends)
                files = []
        self._insert_files(files, ends)
        self._insert_snapshots(snapshots)
        live = shape.live_files * ROWS
        run(f"DELETE FROM {_META}.ducklake_table_stats WHERE table_id = 1")
        size = sum(shape.size(number) for number in range(shape.live_files))
        run(
            f"INSERT INTO {_META}.ducklake_table_stats "
            f"VALUES (1, {live}, {next_file * ROWS}, {size})"
        )
        run("COMMIT")
        if self.list_files().num_rows != shape.live_files:
            raise AssertionError(f"DuckLake lists {self.list_files().num_rows} files")

    def _insert_snapshots(self, snapshots: list[tuple[int, int]]) -> None:
        import pyarrow as pa

        rows = pa.table(
            {
                "snapshot_id": [snapshot for snapshot, _ in snapshots],
                "next_file_id": [next_file for _, next_file in snapshots],
            }
        )
        self._insert(
            "ducklake_snapshot",
            "snapshot_id, now() + to_milliseconds(snapshot_id) AS snapshot_time, "
            "2 AS schema_version, 3 AS next_catalog_id, next_file_id",
            rows,
        )
        self._insert(
            "ducklake_snapshot_changes",
            "snapshot_id, 'inserted_into_table:1' AS changes_made",
            rows,
        )

    def _insert_files(self, files: list[tuple[int, int, int]], ends: dict[int, int]) -> None:
        import pyarrow as pa

        shape = self.shape
        rows = pa.table(
            {
                "data_file_id": [file for file, _, _ in files],
                "path": [shape.path(number) for _, number, _ in files],
                "day": [shape.day(number) for _, number, _ in files],
                "begin_snapshot": [begin for _, _, begin in files],
                "end_snapshot": pa.array([ends.get(n) for _, n, _ in files], pa.int64()),
                "file_size_bytes": [shape.size(number) for _, number, _ in files],
            }
        )
        self._insert(
            "ducklake_data_file",
            "data_file_id, 1 AS table_id, begin_snapshot, end_snapshot, path, "
            "true AS path_is_relative, 'parquet' AS file_format, "
            f"{ROWS} AS record_count, file_size_bytes, 500 AS footer_size, "
            f"data_file_id * {ROWS} AS row_id_start, 2 AS partition_id",
            rows,
        )
        self._insert(
            "ducklake_file_partition_value",
            "data_file_id, 1 AS table_id, 0 AS partition_key_index, day AS partition_value",
            rows,
        )
        ids, columns, lows, highs = zip(*self._statistics(files), strict=True)
        self._insert(
            "ducklake_file_column_stats",
            "data_file_id, 1 AS table_id, column_id, 800 AS column_size_bytes, "
            f"{ROWS} AS value_count, 0 AS null_count, min_value, max_value",
            pa.table(
                {"data_file_id": ids, "column_id": columns, "min_value": lows, "max_value": highs}
            ),
        )

    def _statistics(self, files: list[tuple[int, int, int]]) -> Iterator[tuple[int, int, str, str]]:
        order = {name: place for place, name in enumerate(COLUMNS, start=1)}
        for file, number, _ in files:
            for name, (low, high) in self.shape.bounds(number).items():
                yield file, order[name], str(low), str(high)

    def _insert(self, table: str, select: str, rows: Any) -> None:
        self._connection.register("rows", rows)
        self._connection.execute(f"INSERT INTO {_META}.{table} BY NAME SELECT {select} FROM rows")
        self._connection.unregister("rows")


def _extension(name: str) -> Path:
    """The file of an extension that came as a Python package: nothing is downloaded."""
    package = import_module(f"duckdb_extension_{name}")
    if package.__file__ is None:
        raise ImportError(f"duckdb_extension_{name} has no files")
    return next(Path(package.__file__).parent.rglob(f"{name}.duckdb_extension"))
