"""A table of Delta on Spark goes on here, then there again, and here once more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.table import Table
from interop.limits import Case, judge, judge_all
from interop.readers import DeltaSpark, Peers

from support.profiles import SOAK
from support.store import Catalogs

REGIONS = ("plain", "with space", "a/b", "100%", "ünï/日本")


@pytest.fixture
def spark(peers: Peers) -> DeltaSpark:
    found = peers.there.get(DeltaSpark.name)
    if not isinstance(found, DeltaSpark):
        pytest.skip(f"{DeltaSpark.name}: {peers.missing[DeltaSpark.name]}")
    return found


@pytest.fixture
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def check(table: Table, folder: Path, peers: Peers, expected: dict[int, str | None]) -> None:
    """The words by id at the head, and every reader at every version (or at three)."""
    rows = table.snapshot().to_arrow().to_pylist()
    assert {row["id"]: row["word"] for row in rows} == expected
    assert len(rows) == len(expected)
    problems = []
    for record in table.history(None if SOAK else 3):
        snapshot = table.snapshot(record.version)
        case, ours = Case(folder, snapshot, head=table.version), snapshot.to_arrow()
        readers = (r for r in peers if not r.slow or record.version == table.version)
        problems += [judge(reader, case, ours) for reader in readers]
    judge_all(problems)


def test_a_table_of_spark_goes_on_here_and_there(
    spark: DeltaSpark, lake: Lake, peers: Peers, tmp_path: Path
) -> None:
    folder = tmp_path / "table"
    there = f"delta.`{folder}`"
    spark.sql(
        f"CREATE TABLE {there} (id BIGINT, region STRING, word STRING) USING delta "
        "PARTITIONED BY (region) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    words: dict[int, str | None] = {number: f"w{number}" for number in range(10)}
    values = ", ".join(f"({n}, '{REGIONS[n % 5]}', '{word}')" for n, word in words.items())
    spark.sql(f"INSERT INTO {there} VALUES {values}, (10, NULL, NULL)")
    spark.sql(f"DELETE FROM {there} WHERE id = 3")
    spark.sql(f"ALTER TABLE {there} ADD COLUMNS (extra INT)")
    del words[3]
    words[10] = None

    table = lake.import_table(str(folder), "spark's")
    check(table, folder, peers, words)
    table.append(pa.table({"id": [11], "region": ["a/b"], "word": ["ours"], "extra": [1]}))
    table.overwrite(
        pa.table({"id": [12], "region": ["100%"], "word": ["ours"]}), where="region = '100%'"
    )
    words = {number: word for number, word in words.items() if number % 5 != 3}
    words |= {11: "ours", 12: "ours"}
    check(table, folder, peers, words)

    spark.sql(f"UPDATE {there} SET word = 'theirs' WHERE id = 11")
    spark.sql(f"DELETE FROM {there} WHERE region = 'plain' AND id > 0")
    adopted = lake.adopt("spark's")
    assert [version.operation for version in adopted.versions] == ["UPDATE", "DELETE"]
    words = {**words, 11: "theirs"}
    del words[5]
    table.refresh()
    check(table, folder, peers, words)
    table.append([{"id": 13, "region": None, "word": "ours"}])
    check(table, folder, peers, {**words, 13: "ours"})
    assert lake.verify("spark's").ok
