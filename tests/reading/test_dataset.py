"""Rows of files, as the schema and the log of the table want them."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from deltalakedb.actions import z85
from deltalakedb.actions.datatypes import (
    BYTE,
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructType,
)
from deltalakedb.errors import (
    ConfigurationError,
    DataFileError,
    DataFileMissingError,
    InvalidActionError,
    InvalidSchemaError,
)
from deltalakedb.reading.dataset import open_dataset
from reading.table_files import Making, column, with_id


@pytest.fixture
def made(tmp_path: Path) -> Making:
    return Making(tmp_path)


def inline_vector(rows: list[int]) -> dict[str, Any]:
    data = struct.pack("<IQIIIHHI", 1681511377, 1, 0, 12346, 1, 0, len(rows) - 1, 16)
    data += struct.pack(f"<{len(rows)}H", *rows)
    return {
        "storageType": "i",
        "pathOrInlineDv": z85.encode(data + bytes(-len(data) % 4)),
        "sizeInBytes": len(data),
        "cardinality": len(rows),
    }


# --- columns and types --------------------------------------------------------------------


def test_columns_come_in_the_order_of_the_schema_and_absent_ones_are_null(made: Making) -> None:
    made.write(pa.table({"b": [1], "dropped": ["x"]}))
    dataset = made.open(column("a", STRING), column("b", LONG))
    assert dataset.to_table().to_pylist() == [{"a": None, "b": 1}]


def test_names_ignore_case_where_the_file_has_no_exact_match(made: Making) -> None:
    made.write(pa.table({"ID": [1], "x": [2], "X": [3]}))
    dataset = made.open(column("id", LONG), column("X", LONG))
    assert dataset.to_table().to_pylist() == [{"id": 1, "X": 3}]


MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123456)  # noqa: DTZ001 -- a timestamp_ntz has no zone
BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 -- as above
CHANGES: dict[str, tuple[pa.Array, DataType, Any]] = {
    "byte to long": (pa.array([7], pa.int8()), LONG, 7),
    "int to byte": (pa.array([7], pa.int32()), BYTE, 7),
    "int to short": (pa.array([-7], pa.int32()), SHORT, -7),
    "int to double": (pa.array([7], pa.int32()), DOUBLE, 7.0),
    "int to decimal": (pa.array([7], pa.int32()), DecimalType(12, 2), Decimal("7.00")),
    "float to double": (pa.array([0.5], pa.float32()), DOUBLE, 0.5),
    "decimal to wider": (
        pa.array([Decimal("1.5")], pa.decimal128(3, 1)),
        DecimalType(10, 3),
        Decimal("1.500"),
    ),
    "date to timestamp_ntz": (
        pa.array([date(2024, 5, 6)]),
        TIMESTAMP_NTZ,
        datetime(2024, 5, 6),  # noqa: DTZ001 -- as above
    ),
    "nanoseconds": (pa.array([-1], pa.timestamp("ns")), TIMESTAMP_NTZ, BEFORE),
    "milliseconds": (
        pa.array([1], pa.timestamp("ms", "UTC")),
        TIMESTAMP,
        datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
    ),
    "no zone to UTC": (pa.array([MOMENT]), TIMESTAMP, MOMENT.replace(tzinfo=UTC)),
    "another zone": (
        pa.array([MOMENT.replace(tzinfo=UTC)], pa.timestamp("us", "Europe/Berlin")),
        TIMESTAMP,
        MOMENT.replace(tzinfo=UTC),
    ),
    "dictionary": (pa.array(["x"]).dictionary_encode(), STRING, "x"),
    "large text": (pa.array(["x"], pa.large_string()), STRING, "x"),
    "bytes to text": (pa.array([b"x"]), STRING, "x"),
    "void": (pa.array([1]), VOID, None),
    "null": (pa.nulls(1), LONG, None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_types_become_those_of_the_table(name: str, made: Making) -> None:
    array, kind, wanted = CHANGES[name]
    made.write(pa.table({"x": array}))
    table = made.open(column("x", kind)).to_table()
    assert table.to_pylist() == [{"x": wanted}]
    assert table.schema == made.open(column("x", kind)).schema


def test_int96_timestamps_are_read_also_far_away(made: Making) -> None:
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
    made.write(
        pa.table({"x": pa.array(moments, pa.timestamp("us", "UTC"))}),
        use_deprecated_int96_timestamps=True,
    )
    table = made.open(column("x", TIMESTAMP)).to_table()
    assert table["x"].to_pylist() == moments


@pytest.mark.parametrize(
    ("array", "kind", "why"),
    [
        (pa.array(["7"]), LONG, "The file has string, and the table has int64"),
        (pa.array([7]), STRING, "The file has int64, and the table has string"),
        (pa.array([300]), BYTE, "does not fit int8"),
        (pa.array([7]), StructType((column("a", LONG),)), "The file has int64"),
        (pa.array([7]), ArrayType(LONG), "The file has int64"),
        (pa.array([7]), MapType(STRING, LONG), "The file has int64"),
    ],
)
def test_other_types_are_refused_naming_file_and_column(
    array: pa.Array, kind: DataType, why: str, made: Making
) -> None:
    made.write(pa.table({"x": array}))
    with pytest.raises(DataFileError, match=why) as caught:
        made.open(column("x", kind)).to_table()
    assert "'x' of part-0.parquet" in caught.value.what


def test_nested_fields_may_be_missing_new_or_wider(made: Making) -> None:
    inner = pa.struct([("gone", pa.string()), ("n", pa.int32())])
    rows = [
        {"s": {"gone": "g", "n": 1}, "l": [{"gone": "g", "n": 2}, None], "m": [("k", {"n": 3})]},
        {"s": None, "l": None, "m": None},
        {"s": {"n": None}, "l": [], "m": []},
        {"s": {"n": 4}, "l": [{"n": 5}], "m": [("a", None), ("b", {"n": 6})]},
    ]
    kinds = {"s": inner, "l": pa.list_(inner), "m": pa.map_(pa.string(), inner)}
    made.write(pa.Table.from_pylist(rows, pa.schema(kinds)))
    now = StructType((column("n", LONG), column("new", STRING)))
    dataset = made.open(
        column("s", now), column("l", ArrayType(now)), column("m", MapType(STRING, now))
    )
    table = dataset.to_table()
    table.validate(full=True)
    assert table.to_pylist() == [
        {
            "s": {"n": 1, "new": None},
            "l": [{"n": 2, "new": None}, None],
            "m": [("k", {"n": 3, "new": None})],
        },
        {"s": None, "l": None, "m": None},
        {"s": {"n": None, "new": None}, "l": [], "m": []},
        {
            "s": {"n": 4, "new": None},
            "l": [{"n": 5, "new": None}],
            "m": [("a", None), ("b", {"n": 6, "new": None})],
        },
    ]
    # Small batches are slices of what was decoded.
    assert dataset.to_table(batch_size=1).to_pylist() == table.to_pylist()


# --- column mapping -----------------------------------------------------------------------

MAPPED = (
    column("id", LONG, 1),
    column("s", StructType((column("renamed", LONG, 3),)), 2),
    column("l", ArrayType(StructType((column("renamed", LONG, 5),))), 4),
)


def test_mode_name_finds_physical_names_at_every_depth(made: Making) -> None:
    row = {"p1": 1, "p2": {"p3": 2}, "p4": [{"p5": 3}], "id": 9}
    made.write(pa.Table.from_pylist([row]))
    table = made.open(*MAPPED, mode="name").to_table()
    assert table.to_pylist() == [{"id": 1, "s": {"renamed": 2}, "l": [{"renamed": 3}]}]


def test_mode_id_finds_field_ids_at_every_depth(made: Making) -> None:
    kinds = pa.schema(
        [
            with_id("l", pa.list_(pa.struct([with_id("x", pa.int64(), 5)])), 4),
            with_id("id", pa.struct([with_id("y", pa.int64(), 3)]), 2),
            with_id("s", pa.int64(), 1),
        ]
    )
    made.write(pa.Table.from_pylist([{"l": [{"x": 3}], "id": {"y": 2}, "s": 1}], kinds))
    table = made.open(*MAPPED, mode="id").to_table()
    assert table.to_pylist() == [{"id": 1, "s": {"renamed": 2}, "l": [{"renamed": 3}]}]


def test_mode_id_refuses_a_file_without_ids(made: Making) -> None:
    made.write(pa.table({"p1": [1]}))
    with pytest.raises(DataFileError, match="have no ids"):
        made.open(*MAPPED, mode="id").to_table()


# --- partitions ---------------------------------------------------------------------------


def test_partition_values_come_from_the_log_even_if_the_file_has_them(made: Making) -> None:
    made.write(pa.table({"id": [1, 2], "day": ["in file"] * 2}))["partitionValues"] = {
        "day": "2024-05-06"
    }
    made.write(pa.table({"id": [3]}))["partitionValues"] = {"day": None}
    dataset = made.open(column("day", DATE), column("id", LONG), partitions=("day",))
    day = date(2024, 5, 6)
    assert dataset.to_table().to_pylist() == [
        {"day": day, "id": 1},
        {"day": day, "id": 2},
        {"day": None, "id": 3},
    ]
    assert dataset.to_table(columns=["day"]).to_pylist() == [{"day": d} for d in (day, day, None)]
    assert dataset.to_table(filter=pc.field("day") == day)["id"].to_pylist() == [1, 2]
    assert dataset.to_table(filter=pc.field("day").is_null())["id"].to_pylist() == [3]


def test_partition_values_are_found_by_physical_name(made: Making) -> None:
    made.write(pa.table({"p2": [1]}))["partitionValues"] = {"p1": "7"}
    dataset = made.open(
        column("part", INTEGER, 1), column("id", LONG, 2), partitions=("part",), mode="name"
    )
    assert dataset.to_table().to_pylist() == [{"part": 7, "id": 1}]


def test_files_of_other_partitions_are_not_opened(made: Making) -> None:
    for i in range(3):
        made.write(pa.table({"id": [i]}))["partitionValues"] = {"part": str(i)}
    (made.folder / "part-2.parquet").unlink()
    dataset = made.open(column("part", INTEGER), column("id", LONG), partitions=("part",))
    condition = (pc.field("part") < 2) & (pc.field("id") > 0)
    assert dataset.to_table(filter=condition).to_pylist() == [{"part": 1, "id": 1}]


def test_a_missing_partition_value_is_refused(made: Making) -> None:
    made.write(pa.table({"id": [1]}))
    dataset = made.open(column("part", INTEGER), column("id", LONG), partitions=("part",))
    with pytest.raises(InvalidActionError, match="no partition value for the column 'part'"):
        dataset.to_table()


# --- deletion vectors ---------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 3, 131_072])
def test_deleted_rows_are_counted_in_the_file_whatever_is_skipped(
    made: Making, batch_size: int
) -> None:
    add = made.write(pa.table({"id": range(100), "x": ["v"] * 100}), row_group_size=10)
    add["deletionVector"] = inline_vector([0, 55, 56, 99])
    dataset = made.open(column("id", LONG), column("x", STRING))
    kept = [i for i in range(100) if i not in {0, 55, 56, 99}]
    assert dataset.to_table(batch_size=batch_size)["id"].to_pylist() == kept
    some = dataset.to_table(filter=pc.field("id") >= 50, batch_size=batch_size, columns=["id"])
    assert some["id"].to_pylist() == [i for i in kept if i >= 50]
    assert dataset.count_rows() == 96
    assert dataset.count_rows(filter=pc.field("id") > 97) == 1
    assert dataset.to_table(columns=[]).num_rows == 96


def test_a_vector_of_another_file_is_refused(made: Making) -> None:
    made.write(pa.table({"id": [1, 2]}))["deletionVector"] = inline_vector([2])
    with pytest.raises(DataFileError, match="hides row 2, and the file has 2 rows"):
        made.open(column("id", LONG)).to_table()


def test_a_descriptor_without_its_fields_is_refused(made: Making) -> None:
    made.write(pa.table({"id": [1]}))["deletionVector"] = {"storageType": "u"}
    with pytest.raises(InvalidActionError, match=r"deletion vector of part-0.parquet"):
        made.open(column("id", LONG)).to_table()


# --- filters, projections and bad files ---------------------------------------------------


def test_row_groups_that_cannot_match_are_not_read(made: Making) -> None:
    made.write(pa.table({"p1": range(100)}), row_group_size=10, compression="none")
    file = made.folder / "part-0.parquet"
    # Whoever decodes the first row group fails: its page header is gone.
    content = bytearray(file.read_bytes())
    content[4:12] = b"\xff" * 8
    file.write_bytes(bytes(content))
    dataset = made.open(column("id", LONG, 1), mode="name")
    assert dataset.to_table(filter=pc.field("id") == 42)["id"].to_pylist() == [42]
    with pytest.raises(DataFileError, match=r"Cannot read part-0\.parquet"):
        dataset.to_table()


NAN = float("nan")


@pytest.mark.parametrize(
    ("array", "kind", "condition", "wanted"),
    [
        (pa.array([1.0, NAN, 2.0]), DOUBLE, ~(pc.field("x") <= 5), 1),
        (pa.array([1, None, 2]), LONG, pc.field("x").is_null(), 1),
        (pa.nulls(2, pa.int64()), LONG, pc.field("x").is_null(), 2),
        (pa.array(["a", "b"]), STRING, pc.field("x").isin(["b", "c"]), 1),
        (pa.array([date(2024, 1, 1)]), TIMESTAMP_NTZ, pc.field("x") > pc.scalar(BEFORE), 1),
        (pa.array([Decimal("1.5")]), DecimalType(9, 2), pc.field("x") > Decimal("1.49"), 1),
        (pa.array([5], pa.int32()), LONG, pc.field("x") > 2**40, 0),
    ],
)
def test_skipping_by_statistics_never_loses_a_row(
    array: pa.Array, kind: DataType, condition: pc.Expression, wanted: int, made: Making
) -> None:
    made.write(pa.table({"x": array}))
    dataset = made.open(column("x", kind))
    assert dataset.count_rows(filter=condition) == wanted
    assert dataset.to_table(filter=condition).num_rows == wanted


def test_only_columns_that_are_needed_are_read(made: Making) -> None:
    made.write(pa.table({"a": [1, 2], "b": [3, 4], "broken": ["x", "y"]}))
    dataset = made.open(column("a", LONG), column("b", LONG), column("broken", LONG))
    assert dataset.to_table(columns=["a"], filter=pc.field("b") > 3).to_pylist() == [{"a": 2}]
    double = {"twice": pc.field("a") * 2}
    assert dataset.to_table(columns=double).to_pylist() == [{"twice": 2}, {"twice": 4}]
    with pytest.raises(DataFileError, match="'broken'"):
        dataset.to_table()


def test_a_row_filter_is_part_of_the_dataset(made: Making) -> None:
    made.write(pa.table({"a": [1, 2, 3]}))
    dataset = made.open(column("a", LONG), row_filter=pc.field("a") > 1)
    assert dataset.to_table()["a"].to_pylist() == [2, 3]
    assert dataset.count_rows() == 2
    assert dataset.filter(pc.field("a") < 3).to_table()["a"].to_pylist() == [2]
    assert dataset.head(1)["a"].to_pylist() == [2]


def test_names_with_dots_and_quotes_are_columns(made: Making) -> None:
    names = ["a.b", 'say "x"', "ä ö", "a"]
    made.write(pa.table({name: [i, i + 10] for i, name in enumerate(names)}))
    dataset = made.open(*(column(name, LONG) for name in names))
    for i, name in enumerate(names):
        found = dataset.to_table(columns=[name], filter=pc.field(name) > 9)
        assert found.to_pylist() == [{name: i + 10}]
    assert dataset.to_table(columns=["a"], filter=pc.field(0) == 10)["a"].to_pylist() == [13]


def test_unknown_columns_are_refused_before_reading(made: Making) -> None:
    dataset = made.open(column("a", LONG))
    for request in ({"columns": ["z"]}, {"filter": pc.field("z") == 1}):
        with pytest.raises(InvalidSchemaError, match="The columns are: a"):
            dataset.to_table(**request)
    with pytest.raises(InvalidSchemaError, match="z"):
        made.open(column("a", LONG), row_filter=pc.field("z") == 1)


def test_a_missing_file_is_named_with_its_table(made: Making) -> None:
    made.write(pa.table({"a": [1]}))
    (made.folder / "part-0.parquet").unlink()
    with pytest.raises(DataFileMissingError, match=r"part-0\.parquet") as caught:
        made.open(column("a", LONG)).to_table()
    assert str(made.folder) in caught.value.what


def test_a_file_that_is_no_parquet_is_refused(made: Making) -> None:
    made.write(pa.table({"a": [1]}))
    (made.folder / "part-0.parquet").write_bytes(b"nonsense")
    with pytest.raises(DataFileError, match=r"Cannot read part-0\.parquet"):
        made.open(column("a", LONG)).to_table()


def test_order_is_that_of_the_files(made: Making) -> None:
    for i in range(20):
        made.write(pa.table({"a": range(i * 100, i * 100 + 100)}), row_group_size=30)
    dataset = made.open(column("a", LONG))
    assert dataset.to_table(batch_size=7)["a"].to_pylist() == list(range(2000))
    assert dataset.to_table(use_threads=False)["a"].to_pylist() == list(range(2000))
    assert dataset.take([0, 1999])["a"].to_pylist() == [0, 1999]


def test_no_files_are_no_rows(made: Making) -> None:
    dataset = made.open(column("a", LONG))
    assert dataset.to_table().num_rows == dataset.count_rows() == 0
    assert dataset.to_table().schema == dataset.schema


def test_wrong_arguments_are_refused(made: Making) -> None:
    with pytest.raises(ConfigurationError, match="none, name, id"):
        made.open(mode="nmae")
    with pytest.raises(ConfigurationError, match="no column 'path'"):
        open_dataset(pa.table({"x": [1]}), location="/x", schema=StructType())
    with pytest.raises(InvalidSchemaError, match="There is no column 'p'"):
        made.open(column("a", LONG), partitions=("p",))
