"""A condition on any column lists the same files from pages, from rows and at every version."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest

from deltalakedb.lake import Lake
from deltalakedb.snapshot import Snapshot, matching, page_builder, page_texts, pages
from deltalakedb.table import Table

from support.lake import Json, new_lake_table, schema_json

SCHEMA = schema_json("id", ("name", "string"), ("price", "double"), ("day", "date"))
CONDITIONS = (
    "id BETWEEN 300 AND 420",
    "id = 77 OR price > 90",
    "name LIKE 'n12%'",
    "name IN ('n0007', 'n0400', 'n0999')",
    "price < 3.5 AND id > 100",
    "day = DATE '2026-11-03'",
    "day IS NULL",
    "id IS NULL",
    "price <> 4.0",
    "id > 100000",
    "day > DATE '2026-11-02' AND name < 'n0300'",
)


def file(number: int, rng: random.Random) -> Json:
    low = rng.randrange(1_000)
    high = low + rng.randrange(20)
    stats: Any = {
        "numRecords": 10,
        "minValues": {"id": low, "name": f"n{low:04}", "price": low / 10},
        "maxValues": {"id": high, "name": f"n{high:04}", "price": high / 10},
        "nullCount": {"id": rng.choice([0, 0, 10, 3]), "name": 0, "price": 0},
    }
    day = rng.choice(["2026-11-01", "2026-11-02", "2026-11-03", None])
    body = {
        "path": f"f{number:05}",
        "partitionValues": {"day": day},
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
        "stats": rng.choice([json.dumps(stats)] * 9 + [None]),
    }
    return {"add": body}


@pytest.fixture
def history(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table whose files are in several pages, some removed and some added since."""
    monkeypatch.setattr(page_builder, "PAGE_FILES", 50)
    monkeypatch.setattr(page_builder, "LEAST_CHANGES", 40)
    monkeypatch.setattr(pages, "LEAST_FILES", 1)
    monkeypatch.setattr(matching, "LEAST_FILES", 1)
    rng = random.Random(7)
    table = new_lake_table(lake, schema=SCHEMA, partition_by=["day"])
    table.commit([file(number, rng) for number in range(240)])
    for version in range(4):
        first = 240 + version * 15
        removes = [
            {"remove": {"path": f"f{number:05}", "dataChange": True}}
            for number in range(version * 30, version * 30 + 12)
        ]
        added = [file(number, rng) for number in range(first, first + 15)]
        table.commit([*added, *removes])
    return table


def of_rows(snapshot: Snapshot, where: str) -> list[Json]:
    """The same listing, decided file by file from the rows of the catalog."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "LEAST_FILES", 10**9)
        return listed(snapshot.files(where))


def listed(files: Any) -> list[Json]:
    rows: list[Json] = files.sort_by("path").to_pylist()
    return rows


def check_every_version(table: Table) -> int:
    matches = 0
    for version in range(1, table.snapshot().version + 1):
        snapshot = table.snapshot(version)
        for where in CONDITIONS:
            expected = of_rows(snapshot, where)
            assert listed(snapshot.files(where)) == expected, (version, where)
            batches = [row for batch in snapshot.iter_files(7, where) for row in batch.to_pylist()]
            assert sorted(batches, key=lambda row: str(row["path"])) == expected
            paths = snapshot.files(where, columns=["path"], limit=5, offset=2)["path"].to_pylist()
            assert paths == [row["path"] for row in expected][2:7]
            matches += len(expected)
    return matches


def test_pages_and_rows_agree_at_every_version(lake: Lake, history: Table) -> None:
    assert check_every_version(history) > 1_000
    assert "page_failures_total" not in lake.metrics.read()


WIDER: list[tuple[str, str, list[Any], dict[str, str]]] = [
    # Old and new type, the values of three files, and the files that a condition lists.
    ("integer", "double", [-5, 7, 300], {"= 7": "1", "< 7": "0", "<= 7.5D": "01", "= 6": ""}),
    ("decimal(4,2)", "decimal(10,6)", [1.25, 7.5, 12.75], {"= 7.5": "1", "> 7.499999": "12"}),
    (
        *("date", "timestamp_ntz", ["2024-01-01", "2024-01-02", "2024-01-03"]),
        {"= TIMESTAMP_NTZ '2024-01-02'": "1", "> TIMESTAMP_NTZ '2024-01-02 01:00:00'": "2"},
    ),
]


@pytest.mark.parametrize("wider", WIDER, ids=[w[1] for w in WIDER])
def test_a_page_from_before_a_type_change_is_not_pruned_by_the_order_of_the_new_type(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, wider: tuple[str, str, list[Any], dict[str, str]]
) -> None:
    old, new, values, conditions = wider
    monkeypatch.setattr(page_builder, "LEAST_CHANGES", 2)
    monkeypatch.setattr(pages, "LEAST_FILES", 1)
    monkeypatch.setattr(matching, "LEAST_FILES", 1)
    properties = {"delta.enableTypeWidening": "true", "delta.feature.timestampNtz": "supported"}
    table = new_lake_table(lake, schema=schema_json(("x", old)), properties=properties)
    table.commit([of_value(f"f{n}", value) for n, value in enumerate(values)])
    with lake.store.read() as session:
        assert session.run("open_pages", table_id=table.table_id)
    change = {"delta.typeChanges": [{"fromType": old, "toType": new}]}
    fields = [{"name": "x", "type": new, "nullable": True, "metadata": change}]
    metadata = table.snapshot().metadata
    schema = json.dumps({"type": "struct", "fields": fields})
    table.commit([dataclasses.replace(metadata, schema_string=schema)])
    for condition, numbers in conditions.items():
        paths = table.snapshot().files(f"x {condition}", columns=["path"])["path"].to_pylist()
        assert sorted(paths) == [f"f{n}" for n in numbers], condition
    literal = f"DATE '{values[1]}'" if old == "date" else values[1]
    assert table.snapshot(1).files(f"x = {literal}")["path"].to_pylist() == ["f1"]


def of_value(path: str, value: Any) -> Json:
    stats = {
        "numRecords": 10,
        "minValues": {"x": value},
        "maxValues": {"x": value},
        "nullCount": {"x": 0},
    }
    body = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1}
    return {"add": {**body, "dataChange": True, "stats": json.dumps(stats)}}


def test_pages_whose_bounds_are_not_kept_are_parsed(lake: Lake, history: Table) -> None:
    """As in a catalog that an older release has written."""
    with lake.store.write() as session:
        session.changed("forget_page_columns", table_id=history.table_id)
    assert check_every_version(history) > 1_000


def test_a_page_that_cannot_match_is_not_read(
    lake: Lake, history: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = matching.MatchingFiles._each

    def counted(query: Any, session: Any, numbers: list[int], *rest: Any, **more: Any) -> Any:
        read.extend(numbers)
        return original(query, session, numbers, *rest, **more)

    few = page_texts.read_few

    def counted_few(
        session: Any, table_id: str, version: int, matches: Any, *rest: Any, **more: Any
    ) -> Any:
        read.extend(matches)
        return few(session, table_id, version, matches, *rest, **more)

    monkeypatch.setattr(matching.MatchingFiles, "_each", counted)
    monkeypatch.setattr(matching, "read_few", counted_few)
    assert history.snapshot().files("id > 100000 AND id < 100010").num_rows < 60
    assert history.snapshot().files("name = 'zzz'", columns=["path"]).num_rows
    everything = len(read)
    read.clear()
    ordered = new_lake_table(lake, "ordered", schema=schema_json("id"))
    for first in range(0, 500, 50):
        bounds = [(n * 10, n * 10 + 9) for n in range(first, first + 50)]
        ordered.commit([plain(f"g{low:05}", low, high) for low, high in bounds])
    assert ordered.snapshot().files("id = 1234")["path"].to_pylist() == ["g01230"]
    assert len(read) == 1 < everything


def plain(path: str, low: int, high: int) -> Json:
    stats = {"numRecords": 1, "minValues": {"id": low}, "maxValues": {"id": high}}
    body = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1}
    text = json.dumps({**stats, "nullCount": {"id": 0}})
    return {"add": {**body, "dataChange": True, "stats": text}}


def test_pages_built_anew_never_answer_for_pages_of_an_older_list(
    lake: Lake, history: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file moves from the second page to the first, to the place of a removed one."""
    del history  # pages are small
    table = new_lake_table(lake, "moved", schema=schema_json("id"))
    for version, first in ((1, 0), (2, 50)):
        table.commit([plain(f"f{n:03}", n * 10, n * 10 + 9) for n in range(first, first + 50)])
        page_builder.make_pages(lake.store, table._record, version)
    table.commit([{"remove": {"path": f"f{n:03}", "dataChange": True}} for n in range(25, 50)])
    page_builder.make_pages(lake.store, table._record, 3, most_gone=0.6)
    snapshot = table.snapshot()
    listed_pages = pages.pages_of

    def then_built_anew(*args: Any) -> Any:
        result = listed_pages(*args)
        with lake.store.write() as session:
            lake.store.forget_pages(session, table.table_id)
        assert page_builder.make_pages(lake.store, table._record, 3)
        return result

    monkeypatch.setattr(matching, "pages_of", then_built_anew)
    assert snapshot.files("id = 533")["path"].to_pylist() == ["f053"]


def test_a_build_that_began_before_pages_were_deleted_gives_up(
    lake: Lake, history: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed = page_builder._indexed

    def then_deleted(*args: Any) -> Any:
        with lake.store.write() as session:
            lake.store.forget_pages(session, history.table_id)
        return indexed(*args)

    version = history.snapshot().version
    with monkeypatch.context() as patch:
        patch.setattr(page_builder, "_indexed", then_deleted)
        assert not page_builder.make_pages(lake.store, history._record, version)
    with lake.store.read() as session:
        assert pages.pages_of(session, history._record, version) is None
    assert page_builder.make_pages(lake.store, history._record, version)
    check_every_version(history)
    assert "page_failures_total" not in lake.metrics.read()


def test_a_damaged_page_is_passed_over(lake: Lake, history: Table) -> None:
    expected = of_rows(history.snapshot(), "id BETWEEN 300 AND 420")
    with lake.store.write() as session:
        text = "UPDATE dl_page_columns SET bounds = :bounds WHERE table_id = :table_id"
        sql = lake.store.dialect.sql(text)
        session.execute_count(sql, {"bounds": b"no Arrow at all", "table_id": history.table_id})
    assert listed(history.snapshot().files("id BETWEEN 300 AND 420")) == expected
    assert lake.metrics.read()["page_failures_total"] == 1
