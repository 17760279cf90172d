"""Spark's executors parse a log: the same rows as in this process, and the same refusals."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltalakedb.errors import ConfigurationError, InvalidLogError
from deltalakedb.importing import parsing
from deltalakedb.lake import Lake

from support.golden import GoldenTable
from support.lake import row_counts
from support.large_log import COMMITS, content, write_history

pytestmark = pytest.mark.parametrize("engine", ["sqlite"])


def test_a_generated_log_gives_the_same_rows(
    lake: Lake, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_history(tmp_path)
    expected = content(lake, lake.import_table(str(tmp_path), name="here"))
    lake.drop_table("here")
    monkeypatch.setattr(parsing, "_BATCH_COMMITS", 4)
    table = lake.import_table(str(tmp_path), name="there", spark=spark)
    assert content(lake, table) == expected
    assert len(expected["dl_table_versions"]) == COMMITS


def test_damage_is_told_with_its_file_and_line(
    lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    write_history(tmp_path)
    (tmp_path / "_delta_log" / f"{7:020d}.json").write_text('{"txn":{}}\n')
    before = row_counts(lake)
    with pytest.raises(InvalidLogError, match=r"0007\.json, line 1, is damaged"):
        lake.import_table(str(tmp_path), name="t", spark=spark)
    assert row_counts(lake) == before


def test_what_is_no_session_is_refused(lake: Lake, tmp_path: Path) -> None:
    write_history(tmp_path, 2)
    with pytest.raises(ConfigurationError, match="to be a Spark session"):
        lake.import_table(str(tmp_path), name="t", spark="local[2]")


@pytest.mark.parametrize(
    "name", ["delta-rs-checkpoint_with_partitions", "delta-log-replay-special-characters"]
)
def test_a_golden_table_gives_the_same_rows(
    lake: Lake, spark: SparkSession, golden_tables: dict[str, GoldenTable], name: str
) -> None:
    golden = golden_tables[name]
    expected = content(lake, golden.import_into(lake))
    lake.drop_table(name)
    table = lake.import_table(str(golden.path), name=name, spark=spark)
    assert content(lake, table) == expected
