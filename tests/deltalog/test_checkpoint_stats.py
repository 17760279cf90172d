"""Typed statistics: all at once or file by file, they are the same, and never wrong."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.actions.datatypes import StructType, schema_from_json
from deltalakedb.deltalog.checkpoint_rows import StatsParser, spread
from deltalakedb.deltalog.checkpoints import stats_from_struct


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}, **more}


SCHEMA = schema_from_json(
    json.dumps(
        {
            "type": "struct",
            "fields": [
                field("id", "long"),
                field("small", "byte"),
                field("when", "timestamp"),
                field("wall", "timestamp_ntz"),
                field("day", "date"),
                field("price", "decimal(10,2)"),
                field("ratio", "float"),
                field("wide", "double"),
                field("flag", "boolean"),
                field("inner", {"type": "struct", "fields": [field("name", "string")]}),
                field("renamed", "long", metadata={"delta.columnMapping.physicalName": "col-1"}),
            ],
        }
    )
)
VALUES = {
    "id": 2**62,
    "small": -128,
    "when": "2024-01-02T03:04:05.678Z",
    "wall": "2024-01-02T03:04:05.678",
    "day": "2024-01-02",
    "price": 12345678.25,
    "ratio": 0.1,
    "wide": -1e300,
    "inner": {"name": "\U0001f600 \x00 é"},
    "col-1": 9,
}
FULL = {
    "numRecords": 3,
    "minValues": VALUES,
    "maxValues": VALUES,
    "nullCount": {"id": 0, "flag": 1, "inner": {"name": 2}, "col-1": 1},
    "tightBounds": False,
}


def parser(schema: StructType = SCHEMA) -> StatsParser:
    return StatsParser(schema)


def at_once(*texts: str | None) -> list[Any]:
    """What Arrow makes of a batch; the test fails where it gives up."""
    found = parser()._at_once(pa.array(texts, pa.string()))
    assert found is not None
    found.validate(full=True)
    values: list[Any] = found.to_pylist()
    return values


def one_by_one(*texts: str | None) -> list[Any]:
    found: list[Any] = parser()._one_by_one(pa.array(texts, pa.string())).to_pylist()
    return found


def bounds(parsed: Any, name: str) -> Any:
    return parsed["minValues"][name]


def test_a_batch_is_parsed_at_once_with_every_type() -> None:
    (first, missing, second) = at_once(json.dumps(FULL), None, json.dumps({"numRecords": 7}))
    assert missing is None
    assert first["numRecords"] == 3
    assert first["tightBounds"] is False
    assert first["minValues"] == first["maxValues"]
    assert first["minValues"] == {
        "id": 2**62,
        "small": -128,
        "when": datetime(2024, 1, 2, 3, 4, 5, 678000, UTC),
        "wall": datetime(2024, 1, 2, 3, 4, 5, 678000),  # noqa: DTZ001 - it has no zone
        "day": date(2024, 1, 2),
        "price": Decimal("12345678.25"),
        "ratio": pytest.approx(0.1),
        "wide": -1e300,
        "inner": {"name": "\U0001f600 \x00 é"},
        "col-1": 9,
    }
    assert first["nullCount"]["flag"] == 1
    assert first["nullCount"]["inner"] == {"name": 2}
    assert first["nullCount"]["when"] is None
    assert (second["numRecords"], second["minValues"], second["nullCount"]) == (7, None, None)


def test_both_ways_give_the_same() -> None:
    texts = (json.dumps(FULL), None, "{}", '{"minValues":{}}', '{"numRecords":1,"more":[1]}')
    assert at_once(*texts) == one_by_one(*texts)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("ratio", "NaN"),
        ("wide", '"NaN"'),
        ("wide", "1e400"),
        ("ratio", "1e39"),
        ("id", "9223372036854775808"),
        ("small", "128"),
        ("id", '"1"'),
        ("id", "true"),
        ("price", "1.005"),
        ("price", "123456789.00"),
        ("day", '"2024-02-30"'),
        ("day", '"0000-01-01"'),
        ("when", '"2024-01-01T00:00:00"'),
        ("when", '"0001-01-01T00:00:00+14:00"'),
        ("wall", '"2024-01-01T00:00:00+02:00"'),
        ("when", "17"),
        ("inner", "5"),
    ],
)
def test_what_is_no_value_of_its_column_is_unknown_and_the_rest_stays(
    column: str, text: str
) -> None:
    good = json.dumps({"numRecords": 1, "minValues": {"col-1": 1}})
    odd = f'{{"numRecords":5,"minValues":{{"{column}":{text},"col-1":2}}}}'
    first, second = parser().parse(pa.array([good, odd])).to_pylist()
    assert (first["numRecords"], bounds(first, "col-1")) == (1, 1)
    assert (second["numRecords"], bounds(second, "col-1")) == (5, 2)
    assert bounds(second, column) is None


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "\x00", '"{}"', "{}{}x"])
def test_what_is_no_json_object_gives_no_statistics(text: str) -> None:
    found = parser().parse(pa.array([text, '{"numRecords":1}'])).to_pylist()
    assert found[0] is None
    assert found[1]["numRecords"] == 1


def test_two_objects_in_one_text_do_not_shift_the_others() -> None:
    texts = pa.array(['{"numRecords":1}{"numRecords":2}', "", '{"numRecords":3}'])
    assert [f and f["numRecords"] for f in parser().parse(texts).to_pylist()] == [None, None, 3]


def test_counts_are_never_negative() -> None:
    text = '{"numRecords":-1,"nullCount":{"id":-5,"col-1":3}}'
    (found,) = parser().parse(pa.array([text])).to_pylist()
    assert found["numRecords"] is None
    assert (found["nullCount"]["id"], found["nullCount"]["col-1"]) == (None, 3)


def test_of_a_repeated_key_the_last_one_counts() -> None:
    (found,) = parser().parse(pa.array(['{"numRecords":1,"numRecords":2}'])).to_pylist()
    assert found["numRecords"] == 2


def test_no_statistics_at_all() -> None:
    assert parser().parse(pa.array([None, None], pa.string())).to_pylist() == [None, None]
    assert parser().parse(pa.array([], pa.string())).to_pylist() == []


def test_what_is_parsed_becomes_the_same_json_again() -> None:
    text = json.dumps({**FULL, "maxValues": VALUES | {"when": "2024-01-02T03:04:05.999Z"}})
    (parsed,) = parser().parse(pa.array([text])).to_pylist()
    again = stats_from_struct(parsed, SCHEMA)
    assert again is not None
    assert json.loads(again) == json.loads(text)


def test_values_go_where_the_texts_are() -> None:
    texts = pa.array([None, "a", None, "b"])
    assert spread(pa.array([1, 2]), texts).to_pylist() == [None, 1, None, 2]
    assert spread(pa.array([1, 2]), texts.slice(1)).to_pylist() == [1, None, 2]


numbers = st.integers(-(2**63), 2**63 - 1)
documents = st.fixed_dictionaries(
    {},
    optional={
        "numRecords": st.integers(0, 2**63 - 1),
        "minValues": st.fixed_dictionaries(
            {},
            optional={
                "id": numbers | st.none(),
                "small": st.integers(-128, 127),
                "wide": st.floats(allow_nan=True, allow_infinity=False),
                "price": st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: n / 100),
                "day": st.dates().map(str),
                "when": st.datetimes().map(lambda t: t.isoformat(timespec="milliseconds") + "Z"),
                "wall": st.datetimes().map(lambda t: t.isoformat(timespec="milliseconds")),
                "inner": st.none() | st.fixed_dictionaries({}, optional={"name": st.text()}),
                "unknown": st.none() | st.integers() | st.lists(st.text()),
            },
        ),
        "nullCount": st.dictionaries(
            st.sampled_from(["id", "flag", "col-1"]), st.integers(0, 2**62)
        ),
        "tightBounds": st.booleans(),
    },
)


@given(st.lists(st.none() | documents.map(json.dumps), max_size=5))
def test_whatever_arrow_parses_is_what_python_parses(texts: list[str | None]) -> None:
    column = pa.array(texts, pa.string())
    try:
        quick = parser()._at_once(column)
    except pa.ArrowException:
        return
    assert quick is not None
    assert quick.to_pylist() == parser()._one_by_one(column).to_pylist()
