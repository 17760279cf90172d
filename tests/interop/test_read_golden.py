"""Tables of other engines, imported here, have the rows that those engines read."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

import deltalakedb
from deltalakedb.errors import DataFileError, DeltaLakeDbError, UnsupportedFeatureError
from deltalakedb.lake import Lake
from deltalakedb.snapshot import Snapshot

from support.golden import GoldenTable, golden_names
from support.store import Catalogs

# Who DuckDB's delta extension cannot judge, and why; delta-rs does.
DELTA_RS = {
    "delta-data-reader-timestamp_ntz-name-mode": "gives null for mapped partition columns",
    "delta-parquet-all-types-legacy-format": "fails on lists of the legacy format",
    "delta-spark__table-with-dv-special-char": "fails on an absolute path of a vector",
    "delta-rs-spark-variant-checkpoint": "gives decoded variants instead of their bytes",
    "delta-kernel__spark-variant-checkpoint": "gives decoded variants instead of their bytes",
    "delta-spark-variant-checkpoint": "gives decoded variants instead of their bytes",
}
# Nobody reads these from the folder alone: a catalog has to speak first. The rows are counted.
NO_JUDGE = {"delta-rs-data_err_logs__table_d", "delta-kbench__basic_catalog_managed"}
SHREDDED = {
    "delta-spark__variant-stats-no-checkpoint",
    "delta-spark__variant-stats-state-reconstruction",
}
# These lie there as only the tests that made them can read them.
INCOMPLETE = {
    "delta-spark__partitioned-table-with-dv-large",
    "delta-spark__table-with-dv-large",
    "delta-spark__table-with-dv-small",
    "delta-spark__table-with-dv-special-char",
}


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url, mirror="worker") as lake:
        yield lake


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    package = Path(
        str(distribution("duckdb_extension_delta").locate_file("duckdb_extension_delta"))
    )
    extension = next(package.rglob("delta.duckdb_extension"))
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as made:
        made.execute(f"LOAD '{extension}'")
        made.execute("SET TimeZone = 'UTC'")
        yield made


def taken_over(lake: Lake, golden: GoldenTable) -> Snapshot | None:
    """Its newest snapshot; None where a refusal is as good."""
    try:
        return golden.import_into(lake).snapshot()
    except DeltaLakeDbError:
        if golden.must_import:
            raise
        return None


@pytest.mark.parametrize("name", golden_names())
def test_rows_are_those_that_other_engines_read(
    name: str,
    golden_tables: dict[str, GoldenTable],
    lake: Lake,
    connection: duckdb.DuckDBPyConnection,
    tmp_path: Path,
) -> None:
    golden = golden_tables[name]
    if not golden.facts["data_complete"]:
        pytest.skip("the table has no data files, only its log")
    if name in SHREDDED:
        check_shredded(lake, golden)
        return
    if name in INCOMPLETE:
        golden = golden.copy_to(tmp_path)
    snapshot = taken_over(lake, golden)
    if snapshot is None:
        return
    ours = snapshot.to_arrow()
    ours.validate(full=True)
    assert ours.num_rows == snapshot.to_arrow_dataset().count_rows()
    assert ours.num_rows == golden.facts["expected_rows"]
    check_partition_by_partition(snapshot, ours)
    if name not in NO_JUDGE:
        check_beside_another_engine(connection, golden, ours)


def check_shredded(lake: Lake, golden: GoldenTable) -> None:
    """A shredded variant is refused, but its neighbours are read."""
    dataset = golden.import_into(lake).snapshot().to_arrow_dataset()
    with pytest.raises(UnsupportedFeatureError, match="shredded"):
        dataset.to_table()
    others = [column for column in dataset.schema.names if column not in {"v", "nv"}]
    assert dataset.to_table(columns=others).num_rows == golden.facts["expected_rows"]


def check_partition_by_partition(snapshot: Snapshot, ours: pa.Table) -> None:
    """By each value of the first partition column, all rows are found again."""
    for name in snapshot.partition_columns[:1]:
        column = pc.field(name)
        found = [
            snapshot.to_arrow(column == value if value.is_valid else column.is_null(), columns=[])
            for value in ours[name].unique()
        ]
        assert sum(table.num_rows for table in found) == ours.num_rows


def check_beside_another_engine(
    connection: duckdb.DuckDBPyConnection, golden: GoldenTable, ours: pa.Table
) -> None:
    if golden.facts["folder"] in DELTA_RS:
        query = QueryBuilder().register("t", DeltaTable(str(golden.path)))
        theirs = pa.table(query.execute("SELECT * FROM t").read_all())
        connection.register("theirs", theirs)
    else:
        connection.execute(f"CREATE VIEW theirs AS SELECT * FROM delta_scan('{golden.path}')")
    connection.register("ours", ours)
    columns = "SELECT column_name, column_type FROM (DESCRIBE {})"
    described = connection.execute(columns.format("ours")).fetchall()
    assert described == connection.execute(columns.format("theirs")).fetchall()
    missing = connection.execute("FROM theirs EXCEPT ALL FROM ours").fetchall()
    added = connection.execute("FROM ours EXCEPT ALL FROM theirs").fetchall()
    assert (missing, added) == ([], [])


def test_a_vector_that_is_not_there_is_named(
    golden_tables: dict[str, GoldenTable], catalogs: Catalogs
) -> None:
    golden = golden_tables["delta-spark__table-with-dv-small"]
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url, mirror="worker") as lake:
        snapshot = golden.import_into(lake).snapshot()
        with pytest.raises(DataFileError, match=r"is missing: deletion_vector_.*\.bin"):
            snapshot.to_arrow()


def test_there_are_tables_to_read(golden_tables: dict[str, GoldenTable]) -> None:
    assert sum(golden.facts["data_complete"] for golden in golden_tables.values()) > 80
