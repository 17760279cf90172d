"""Checkpoints that other engines read: the same rows as from the commits, of every kind of table.

Each reader reads the table twice, once from its commits and once from the checkpoint alone (older
commits are deleted), and must see the same. What it sees is also compared with what the catalog
says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint, write_checksum
from deltalakedb.table import Table

from support.checkpoint_oracle import replayed
from support.lake import Json
from support.published import (
    Readers,
    folder_of,
    inline_vector,
    keep_only_checkpoint,
    log_of,
    publish,
    record_of,
    storage_of,
    stored_vector,
    write_file,
)

TYPED = {"delta.checkpoint.writeStatsAsStruct": "true"}
ONLY_TYPED = {**TYPED, "delta.checkpoint.writeStatsAsJson": "false"}
V2 = {"delta.feature.v2Checkpoint": "supported", "delta.checkpointPolicy": "v2"}
VECTORS = {"delta.enableDeletionVectors": "true"}
ROW_IDS = {"delta.enableRowTracking": "true"}
WIDENING = {"delta.enableTypeWidening": "true"}
DOMAINS = {"delta.feature.domainMetadata": "supported"}


def mapping(mode: str) -> dict[str, str]:
    return {"delta.columnMapping.mode": mode}


def field(name: str, kind: Any, *, nullable: bool = True) -> Json:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def schema(*fields: Json) -> str:
    return json.dumps({"type": "struct", "fields": list(fields)})


INNER = {"type": "struct", "fields": [field("name", "string"), field("deep", "double")]}
WIDE = schema(
    field("id", "long", nullable=False),
    field("word", "string"),
    field("small", "byte"),
    field("ratio", "float"),
    field("price", "decimal(12,3)"),
    field("day", "date"),
    field("moment", "timestamp"),
    field("flag", "boolean"),
    field("raw", "binary"),
    field("inner", INNER),
    field("list", {"type": "array", "elementType": "long", "containsNull": True}),
    field(
        "map",
        {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
    ),
)
START = datetime(2024, 2, 28, 23, 59, 58, 123456, UTC)


def wide_rows(first: int, count: int = 10) -> list[Json]:
    rows = [
        {
            "id": number,
            "word": f"wörd {number:03} " + "\U0001f600x" * 30,
            "small": number % 100 - 50,
            "ratio": number / 7,
            "price": Decimal(number * 1001) / 1000,
            "day": date(2024, 1, 1 + number % 28),
            "moment": START.replace(second=number % 60),
            "flag": number % 2 == 0,
            "raw": bytes([number % 256, 0]),
            "inner": {"name": f"n{number}", "deep": number * 1.5},
            "list": [number, None],
            "map": [("k", number)],
        }
        for number in range(first, first + count)
    ]
    # And a row of nulls.
    return [*rows, {"id": first + count}]


Make = Callable[..., Table]


@pytest.fixture
def make(lake: Lake, tmp_path: Path) -> Make:
    def create(properties: dict[str, str] | None = None, **options: Any) -> Table:
        options.setdefault("schema", WIDE)
        folder = tmp_path / "table"
        return lake.create_table("t", location=str(folder), properties=properties, **options)

    return create


def ids(rows: pa.Table) -> list[int]:
    found: list[int] = sorted(rows["id"].to_pylist())
    return found


def check(
    lake: Lake,
    table: Table,
    readers: Readers,
    *,
    names: tuple[str, ...] = ("delta_rs", "duckdb", "polars"),
    conditions: tuple[str, ...] = (),
    max_actions: int | None = None,
) -> None:
    """Every reader sees the same rows from the commits and from the checkpoint alone."""
    version = publish(lake, table)
    folder = folder_of(table)
    expected = ids(table.snapshot().to_arrow())
    before = {name: getattr(readers, name)(folder) for name in names}
    found = {where: readers.duckdb(folder, where) for where in conditions}
    record, storage = record_of(lake, table), storage_of(table)
    write_checksum(lake.store, storage, record, version)
    write_checkpoint(lake.store, storage, record, version, max_actions=max_actions)
    keep_only_checkpoint(table, version)
    for name in names:
        after = getattr(readers, name)(folder)
        assert ids(after) == ids(before[name]) == expected, name
        assert same_rows(after, before[name]), name
    for where, rows in found.items():
        assert same_rows(readers.duckdb(folder, where), rows), where
        assert ids(rows) == ids(table.snapshot().to_arrow(where=where)), where
    check_import(lake, table)
    # And commits go on from it.
    add = write_file(table, [{"id": 10_000}], dict.fromkeys(table.snapshot().partition_columns))
    table.commit([add])
    publish(lake, table)
    for name in names:
        assert ids(getattr(readers, name)(folder)) == sorted([*expected, 10_000]), name


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    assert left.schema == right.schema
    return sorted(map(repr, left.to_pylist())) == sorted(map(repr, right.to_pylist()))


def check_import(lake: Lake, table: Table) -> None:
    """Whoever has the checkpoint alone can take the table over as it is."""
    copied = folder_of(table).with_name("copy")
    folder_of(table).rename(copied)
    other = lake.import_table(str(copied), name="copy")
    mine, theirs = table.snapshot(), other.snapshot()
    assert (theirs.metadata, theirs.protocol) == (mine.metadata, mine.protocol)
    assert theirs.app_transactions == mine.app_transactions
    assert theirs.domain_metadata == mine.domain_metadata
    columns = [
        *("path", "dv_id", "size_bytes", "modification_time", "partition_values", "tags"),
        *("deletion_vector", "base_row_id", "default_row_commit_version", "clustering_provider"),
    ]
    assert listed(theirs, columns) == listed(mine, columns)
    statistics = {
        path: (json.loads(a), json.loads(b))
        for (path, a), (_, b) in zip(
            listed(theirs, ["path", "stats"]), listed(mine, ["path", "stats"]), strict=True
        )
    }
    assert all(a == b for a, b in statistics.values())
    lake.drop_table("copy")
    copied.rename(folder_of(table))


def listed(snapshot: Any, columns: list[str]) -> list[tuple[Any, ...]]:
    files = snapshot.files(columns=columns)
    rows = zip(*(files[name].to_pylist() for name in columns), strict=True)
    return sorted(rows, key=repr)


def fill(table: Table, *partitions: Json) -> None:
    """Files of each partition, of which some go again."""
    adds = [
        write_file(table, wide_rows(100 * number), values)
        for number, values in enumerate(partitions or ({},))
    ]
    for action in adds:
        table.commit([action])
    extra = write_file(table, wide_rows(9000), partitions[0] if partitions else {})
    table.commit([extra, {"txn": {"appId": "app", "version": 7}}])
    gone = {"path": extra["add"]["path"], "dataChange": True, "deletionTimestamp": 2**41}
    table.commit([{"remove": gone}])


CONDITIONS = (
    "id = 5",
    "id > 203",
    "price >= 200.2",
    "day = DATE '2024-01-08'",
    "moment > TIMESTAMP '2024-02-28 23:59:05'",
    "word IS NULL",
    "small < -45",
    "ratio > 28.5",
)


@pytest.mark.parametrize(
    ("limit", "statistics"),
    [
        pytest.param(None, {}, id="one file-json"),
        pytest.param(None, TYPED, id="one file-both"),
        pytest.param(2, ONLY_TYPED, id="parts-typed"),
        pytest.param(2, {}, id="parts-json", marks=pytest.mark.soak),
        pytest.param(2, TYPED, id="parts-both", marks=pytest.mark.soak),
        pytest.param(None, ONLY_TYPED, id="one file-typed", marks=pytest.mark.soak),
    ],
)
def test_tables_of_every_type(
    make: Make, lake: Lake, readers: Readers, statistics: dict[str, str], limit: int | None
) -> None:
    table = make(statistics)
    fill(table, {}, {}, {})
    check(lake, table, readers, conditions=CONDITIONS, max_actions=limit)


@pytest.mark.parametrize("statistics", [{}, ONLY_TYPED], ids=["json", "typed"])
def test_v2_checkpoints_with_sidecars(
    make: Make, lake: Lake, readers: Readers, statistics: dict[str, str]
) -> None:
    table = make({**V2, **statistics})
    fill(table, {}, {}, {})
    # polars refuses the feature.
    check(
        lake,
        table,
        readers,
        names=("delta_rs", "duckdb"),
        conditions=CONDITIONS,
        max_actions=2,
    )


WORDS = (None, "plain", "größe \U0001f600", "a b", "100%", "a%20b", "x=y", "'q'", '"', "a\\b")


@pytest.mark.parametrize("statistics", [{}, TYPED], ids=["json", "both"])
def test_partitions_with_nulls_and_odd_characters(
    make: Make, lake: Lake, readers: Readers, statistics: dict[str, str]
) -> None:
    columns = schema(field("id", "long"), field("word", "string"))
    table = make(statistics, schema=columns, partition_by=["word"])
    for number, word in enumerate((*WORDS, "a/b")):
        table.commit([write_file(table, [{"id": number}], {"word": word})])
    # polars goes by the names of directories, which it decodes once too often.
    check(
        lake,
        table,
        readers,
        names=("delta_rs", "duckdb"),
        conditions=("word IS NULL", "word = 'a%20b'", "word > 'p'"),
    )


PARTITIONS: dict[str, Any] = {
    "integer": 5,
    "decimal(12,3)": Decimal("1.500"),
    "date": date(2024, 2, 29),
    "timestamp": datetime(2024, 2, 29, 1, 2, 3, 456789, UTC),
    "boolean": True,
    "byte": -5,
    "double": 1.25,
}


@pytest.mark.parametrize("statistics", [{}, TYPED], ids=["json", "both"])
def test_partitions_of_many_types(
    make: Make, lake: Lake, readers: Readers, statistics: dict[str, str]
) -> None:
    names = {kind: f"p_{kind.partition('(')[0]}" for kind in PARTITIONS}
    columns = schema(field("id", "long"), *(field(name, kind) for kind, name in names.items()))
    table = make(statistics, schema=columns, partition_by=list(names.values()))
    values = {names[kind]: value for kind, value in PARTITIONS.items()}
    table.commit([write_file(table, [{"id": 1}, {"id": 2}], values)])
    table.commit([write_file(table, [{"id": 3}], dict.fromkeys(values))])
    check(
        lake,
        table,
        readers,
        names=("delta_rs", "duckdb"),
        conditions=("p_integer = 5", "p_date < DATE '2024-03-01'", "p_boolean IS NULL"),
    )


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("statistics", [{}, ONLY_TYPED], ids=["json", "typed"])
def test_column_mapping(
    make: Make, lake: Lake, readers: Readers, mode: str, statistics: dict[str, str]
) -> None:
    table = make({**mapping(mode), **statistics})
    fill(table, {}, {})
    check(
        lake,
        table,
        readers,
        names=("delta_rs", "duckdb"),
        conditions=("id = 5", "id > 103", "price < 1"),
    )


@pytest.mark.parametrize("form", [{}, V2], ids=["one file", "sidecars"])
def test_deletion_vectors(make: Make, lake: Lake, readers: Readers, form: dict[str, str]) -> None:
    table = make({**VECTORS, **form})
    adds = [write_file(table, wide_rows(100 * number)) for number in range(3)]
    table.commit(adds)
    for action, vector in (
        (adds[0], inline_vector({0, 3})),
        (adds[1], stored_vector(table, {1, 2, 5})),
    ):
        path = action["add"]["path"]
        gone = {"path": path, "dataChange": True, "deletionTimestamp": 2**41}
        table.commit([{"remove": gone}, {"add": {**action["add"], "deletionVector": vector}}])
    # And once more: what was hidden by the old vector is hidden by the new one too.
    stale = stored_vector(table, {1, 2, 5, 6})
    path = adds[1]["add"]["path"]
    old = table.snapshot().files(columns=["path", "deletion_vector"]).to_pylist()
    known = next(json.loads(f["deletion_vector"]) for f in old if f["path"] == path)
    table.commit(
        [
            {
                "remove": {
                    "path": path,
                    "dataChange": True,
                    "deletionTimestamp": 2**41,
                    "deletionVector": known,
                }
            },
            {"add": {**adds[1]["add"], "deletionVector": stale}},
        ]
    )
    check(lake, table, readers, names=("delta_rs", "duckdb"))


def test_row_ids_domains_and_app_transactions(make: Make, lake: Lake, readers: Readers) -> None:
    table = make({**ROW_IDS, **DOMAINS})
    fill(table)
    table.commit([{"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}}])
    assert table.snapshot().files(columns=["base_row_id"])["base_row_id"].null_count == 0
    check(lake, table, readers)
    assert set(table.snapshot().domain_metadata) == {"d", "delta.rowTracking"}


def test_widened_types(make: Make, lake: Lake, readers: Readers) -> None:
    """Statistics of a narrow type are bounds of the wide one."""
    table = make(
        {**WIDENING, **ONLY_TYPED},
        schema=schema(field("id", "integer"), field("price", "decimal(5,1)")),
    )
    table.commit([write_file(table, [{"id": 1, "price": Decimal("1.5")}])])
    metadata = json.loads(json.dumps(replay_metadata(lake, table)))
    columns = json.loads(metadata["schemaString"])["fields"]
    changes = {"id": ("integer", "long"), "price": ("decimal(5,1)", "decimal(10,2)")}
    for column in columns:
        old, new = changes[column["name"]]
        column["type"] = new
        column["metadata"]["delta.typeChanges"] = [{"fromType": old, "toType": new}]
    metadata["schemaString"] = schema(*columns)
    table.commit([{"metaData": metadata}])
    table.commit([write_file(table, [{"id": 2**40, "price": Decimal("12345678.25")}])])
    # delta-rs and polars refuse the feature.
    check(lake, table, readers, names=("duckdb",), conditions=("id > 1", "price < 2"))


def replay_metadata(lake: Lake, table: Table) -> Json:
    version = publish(lake, table)
    found = replayed(log_of(table), version).metadata
    assert found is not None
    return found
