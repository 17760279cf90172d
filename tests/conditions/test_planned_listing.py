"""Conditions on planned columns: which key is looked up, what is found, and what is refused."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

import deltalakedb
from conditions.planned_tables import by_id, check_keys, file, found, uses_keys
from deltalakedb.actions.datatypes import COLUMN_ID, PHYSICAL_NAME
from deltalakedb.actions.planning import PLANNING_COLUMNS, plan_of
from deltalakedb.conditions import planned
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import InvalidConditionError
from deltalakedb.lake import Lake
from deltalakedb.snapshot.matching import MatchingFiles
from deltalakedb.store.url import Engine

from support.delta_log import PROTOCOL, metadata, write_commit
from support.lake import SCHEMA, add, new_lake_table, row_counts, schema_json
from support.store import Catalogs

# --- which key ----------------------------------------------------------------------------


def test_the_column_that_leads_to_fewer_files_is_looked_up(lake: Lake, engine: Engine) -> None:
    if engine == "duckdb":
        pytest.skip("DuckDB compares the keys of all planned columns in one scan")
    properties = {PLANNING_COLUMNS: "wide, narrow"}
    schema = schema_json("wide", "narrow")
    table = new_lake_table(lake, schema=schema, properties=properties)
    actions = []
    for n in range(50):
        bounds = {"wide": 0, "narrow": n}, {"wide": 1_000, "narrow": n}
        made = add(f"f{n}", rows=None)
        made["add"]["stats"] = json.dumps({"minValues": bounds[0], "maxValues": bounds[1]})
        actions.append(made)
    table.commit(actions)
    snapshot = table.snapshot()

    def slot(where: str) -> int | None:
        predicate = parse_where(where, snapshot.schema, ())
        keys = planned.keys_of(predicate, snapshot.table.plan)
        assert keys is not None
        return lake.store.dialect.ask(lambda s: planned.best_slot(s, keys, table.table_id))

    assert slot("wide = 5 AND narrow = 7") == 2
    assert slot("narrow = 7 AND wide = 5") == 2
    assert slot("wide = 5") == 1
    assert slot("wide = 5000 AND narrow > 7") == 1
    assert found(table, "wide = 5 AND narrow = 7") == ["f7"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planned, "FEW", 2)
        assert slot("wide = 5 AND narrow = 7") == 2
        assert slot("wide = 5 AND narrow > 7") is None
        assert found(table, "wide = 5 AND narrow > 47") == ["f48", "f49"]


def test_a_condition_that_contradicts_itself_asks_for_no_file(lake: Lake) -> None:
    table = by_id(lake)
    with pytest.MonkeyPatch.context() as patch:
        for way in ("_ways", "_of_rows"):
            patch.setattr(MatchingFiles, way, None)
        for where in ("id = 5 AND id = 7", "id > 5 AND id < 3", "id = 5 AND FALSE"):
            assert found(table, where) == []


@pytest.mark.parametrize("few", [0, planned.FEW], ids=["scan", "index"])
def test_ten_thousand_values_find_each_file_once(lake: Lake, few: int) -> None:
    table = by_id(lake, 200)
    table.commit([file("everything"), file("wide", 0, 10**6), file("null", None)])
    values = ", ".join(str(n * 7) for n in range(10_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planned, "FEW", few)
        paths = found(table, f"id IN ({values})")
        assert paths == sorted([*(f"f{n:05}" for n in range(200)), "everything", "null", "wide"])
        few_values = ", ".join(str(n) for n in (5, 15, 1_000, 10**9, -4, 1_995))
        assert found(table, f"id IN ({few_values}) AND id < 1000") == sorted(
            ["f00000", "f00001", "everything", "null", "wide"]
        )


def test_texts_that_begin_alike_are_told_apart(lake: Lake) -> None:
    table = new_lake_table(lake, properties={PLANNING_COLUMNS: "day"})
    long = "a prefix that no key can hold "
    texts = [
        "12345678",
        "12345678a",
        "12345678b",
        "2026-11-01",
        "2026-11-02",
        f"{long}1",
        f"{long}2",
    ]
    table.commit([file(f"f{n}", text, column="day") for n, text in enumerate(texts)])
    for n, text in enumerate(texts):
        assert found(table, f"day = '{text}'") == [f"f{n}"]
        assert uses_keys(table, f"day = '{text}'")
    assert found(table, "day > '2026-11-01'") == ["f4", "f5", "f6"]
    assert found(table, "day < '12345678b' AND day > '12345678'") == ["f1"]
    assert found(table, "day LIKE '2026-11-%'") == ["f3", "f4"]
    assert found(table, f"day LIKE '{long}%' AND day <> '{long}1'") == ["f6"]


@pytest.mark.parametrize("few", [0, planned.FEW], ids=["scan", "index"])
def test_a_part_of_what_is_found_is_in_the_order_of_paths(
    lake: Lake, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "FEW", few)
    table = by_id(lake, 30)
    wanted = [f"f{n:05}" for n in range(10, 21)]
    where = "id BETWEEN 100 AND 205"
    assert found(table, where, limit=100) == wanted
    assert found(table, where, limit=3, offset=2) == wanted[2:5]
    assert found(table, where, offset=9) == wanted[9:]
    assert found(table, where, limit=0) == []
    assert found(table, where, limit=5, offset=11) == []


def test_a_part_that_is_not_understood_narrows_nothing(lake: Lake) -> None:
    table = by_id(lake)
    snapshot = table.snapshot()
    where = parse_where("id = 25 AND length(day) = 3", snapshot.schema, (), strict=False)
    assert found(table, where) == ["f00002"]
    assert uses_keys(table, where)
    either = parse_where("id = 25 OR length(day) = 3", snapshot.schema, (), strict=False)
    assert len(found(table, either)) == 20
    assert not uses_keys(table, either)


# --- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("nope = 1", "nope"),
        ("id = 'one'", "id"),
        ("day > 5 AND id = 1", "day"),
        ("id.x = 1", "id"),
        ("id = 1; DROP TABLE dl_tables", ""),
        ("id = 1) OR (1 = 1", ""),
        ("id = (SELECT 1)", ""),
        ("id IN (SELECT id FROM dl_tables)", ""),
        ("id = :table_id", ""),
        ("id = 1 UNION SELECT 1", ""),
        ("", ""),
    ],
)
def test_a_wrong_condition_is_refused_and_nothing_is_asked(
    lake: Lake, where: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = by_id(lake)
    snapshot, before = table.snapshot(), row_counts(lake)
    monkeypatch.setattr(lake.store.dialect, "list_files", lambda _: pytest.fail("asked"))
    monkeypatch.setattr(lake.store.dialect, "ask", lambda _: pytest.fail("asked"))
    for ask in (snapshot.files, lambda w: list(snapshot.iter_files(where=w))):
        with pytest.raises(InvalidConditionError) as caught:
            ask(where)
        assert says in str(caught.value)
        assert caught.value.fix
    monkeypatch.undo()
    assert row_counts(lake) == before


@pytest.mark.parametrize("few", [0, planned.FEW], ids=["scan", "index"])
def test_a_value_never_becomes_sql(lake: Lake, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "FEW", few)
    table = new_lake_table(lake, partition_by=["day"])
    evil = [
        "'); DROP TABLE dl_tables; --",
        "%s %(x)s :plan $1 ?",
        "\\'",
        '"; SELECT 1',
        "' OR '1'='1",
    ]
    table.commit([file(f"f{n}", values={"day": text}) for n, text in enumerate(evil)])
    before = row_counts(lake)
    for n, text in enumerate(evil):
        written = text.replace("\\", "\\\\").replace("'", "''")
        assert found(table, f"day = '{written}'") == [f"f{n}"]
    assert row_counts(lake) == before


# --- odd values ---------------------------------------------------------------------------

ODD = ("\x00", "\ue000", "\ue0000", "\ue0001", "a\x00\ue0001b", "\uefff", "", "plain")


@pytest.mark.parametrize("few", [0, planned.FEW], ids=["scan", "index"])
@pytest.mark.parametrize("partition_by", [["day"], []], ids=["partition", "statistics"])
def test_characters_that_postgres_cannot_hold_are_found(
    lake: Lake, few: int, partition_by: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.compute as pc

    monkeypatch.setattr(planned, "FEW", few)
    table = new_lake_table(lake, partition_by=partition_by, properties={PLANNING_COLUMNS: "day"})
    for n, text in enumerate(ODD):
        values = {"day": text} if partition_by else {}
        table.commit([file(f"f{n}", None if partition_by else text, column="day", values=values)])
    check_keys(lake, table)
    for n, text in enumerate(ODD):
        assert f"f{n}" in found(table, pc.field("day") == text)
        # Readers do not agree whether an empty partition value is null.
        assert len(found(table, pc.field("day") == text)) <= 2
    table.set_properties({PLANNING_COLUMNS: "day, id"})
    check_keys(lake, table)


def test_columns_may_have_any_name(lake: Lake) -> None:
    odd = "\ue000 \x7f'\"é.:id"
    schema = schema_json("id", (odd, "string"))
    properties = {PLANNING_COLUMNS: f"`{odd}`", "delta.columnMapping.mode": "name"}
    table = new_lake_table(lake, schema=schema, properties=properties)
    physical = plan_of(table.snapshot().metadata)[0].physical[0]
    table.commit([file(f"f{n}", f"v{n}", column=physical) for n in range(5)])
    assert found(table, f"`{odd}` = 'v3'") == ["f3"]
    assert uses_keys(table, f"`{odd}` = 'v3'")
    check_keys(lake, table)


def test_physical_names_mean_nothing_without_column_mapping(lake: Lake, tmp_path: Path) -> None:
    """Some writer left them behind; partition values and statistics have the names themselves."""
    document = json.loads(SCHEMA)
    for number, field in enumerate(document["fields"]):
        field["metadata"] = {PHYSICAL_NAME: f"col-{number}", COLUMN_ID: number}
    begin = metadata(
        {PLANNING_COLUMNS: "id"}, partitionColumns=["day"], schemaString=json.dumps(document)
    )
    write_commit(tmp_path, 0, [PROTOCOL, begin])
    write_commit(tmp_path, 1, [file(f"f{n}", n, values={"day": f"d{n}"}) for n in range(5)])
    table = lake.import_table(str(tmp_path), name="imported")
    assert found(table, "day = 'd3'") == ["f3"]
    assert found(table, "id = 3") == ["f3"]
    assert found(table, "id < 3 AND day > 'd0'") == ["f1", "f2"]
    assert uses_keys(table, "id = 3")
    assert table.snapshot().metadata.schema_string == json.dumps(document)
    table.commit([file("f5", 5, values={"day": "d5"})])
    assert found(table, "day = 'd5'") == ["f5"]
    check_keys(lake, table)


def test_a_custom_schema_of_postgres_is_planned(catalogs: Catalogs) -> None:
    with catalogs.empty("postgres") as url:
        odd = 'it\'s "odd" ä%\\'
        joint = "&" if "?" in url else "?"
        with deltalakedb.connect(f"{url}{joint}schema={quote(odd)}", mirror="worker") as lake:
            table = by_id(lake)
            for few in (0, planned.FEW):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(planned, "FEW", few)
                    assert found(table, "id = 25") == ["f00002"]
                    assert found(table, "id >= 185") == ["f00018", "f00019"]
            table.set_properties({PLANNING_COLUMNS: "day"})
            assert found(table, "id = 25") == ["f00002"]
            check_keys(lake, table)
