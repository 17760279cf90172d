"""A file with a matching row is never dropped: on any engine, by any style of statistics."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltalakedb.actions.datatypes import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    PHYSICAL_NAME,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    StructField,
    StructType,
)
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.actions.order_keys import BoundsKeys, width_class
from deltalakedb.actions.partition import encode_partition_value
from deltalakedb.actions.scalars import to_float32
from deltalakedb.actions.statistics import Statistics, encode_stats
from deltalakedb.conditions.bounds import key_of, page_range, read_bounds
from deltalakedb.conditions.key_ranges import key_ranges, probe_rows
from deltalakedb.conditions.predicate import (
    And,
    Column,
    Comparison,
    Null,
    OneOf,
    Or,
    Predicate,
    StartsWith,
)
from deltalakedb.conditions.pruning import matching_files

from support.profiles import examples

File = tuple[str | None, Mapping[str, str | None]]
"""The statistics of a file and its partition values."""
PATH, PHYSICAL = ("outer", "x"), ("out er", "c.[0]/~é")

# --- values -------------------------------------------------------------------------------

ODD_TEXT = "ab\x00\x7fé\ud7ff\ue000\uffff\ufffd😀\U0010ffff"
texts = st.text(alphabet=ODD_TEXT, max_size=3) | st.builds(
    lambda start, end: start * 16 + end,
    st.sampled_from(["ab", "é😀"]),
    st.text(alphabet=ODD_TEXT, max_size=3),
)
whole = st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63), 2**53, 2**53 + 1])
reals = st.sampled_from([0.0, -0.0, 0.1, 0.30000000000000004, 1.5, -1.5, 5e-324, 1.7e308, 1e22]) | (
    st.floats(allow_nan=False, allow_infinity=False)
)
moments = st.builds(
    lambda day, micros: datetime(2024, 3, 1) + timedelta(days=day, microseconds=micros),  # noqa: DTZ001
    st.integers(-2, 2),
    st.sampled_from([0, 1, 999, 1000, 500_000, 123_456, 86_399_999_999]),
) | st.sampled_from([datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)])  # noqa: DTZ001
instants = moments.map(lambda moment: moment.replace(tzinfo=UTC))
days = st.sampled_from([date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31)]) | st.dates(
    date(2024, 2, 27), date(2024, 3, 2)
)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    top = 10**precision - 1
    unscaled = st.integers(-5, 5) | st.integers(-top, top) | st.sampled_from([top, top - 1, -top])
    return unscaled.map(lambda number: Decimal(f"{number}E-{scale}"))


@dataclass(frozen=True)
class Kind:
    """A type, the values of its rows, and those of conditions."""

    type: DataType
    rows: st.SearchStrategy[Any]
    literals: st.SearchStrategy[Any]


nan = st.just(math.nan)
infinite = st.sampled_from([math.inf, -math.inf])
singles = (
    st.sampled_from([0.1, 0.3, 3.4e38, 1e-45, 16777216.0]) | st.floats(-1e6, 1e6, width=32)
).map(to_float32)
KINDS = [
    Kind(LONG, whole, whole),
    Kind(SHORT, st.integers(-3, 3), st.integers(-4, 4) | st.just(40_000)),
    Kind(DOUBLE, reals | nan | infinite, reals),
    Kind(FLOAT, singles | nan | infinite, singles | reals),
    Kind(DecimalType(10, 2), decimals(10, 2), decimals(10, 2) | st.just(Decimal("0.005"))),
    Kind(DecimalType(38, 10), decimals(38, 10), decimals(38, 10)),
    Kind(STRING, texts, texts),
    Kind(DATE, days, days),
    Kind(TIMESTAMP, instants, instants),
    Kind(TIMESTAMP_NTZ, moments, moments),
    Kind(BOOLEAN, st.booleans(), st.booleans()),
]


# --- files --------------------------------------------------------------------------------


def schema_of(data_type: DataType) -> StructType:
    inner = StructField("x", data_type, metadata={PHYSICAL_NAME: PHYSICAL[1]})
    outer = StructField("outer", StructType((inner,)), metadata={PHYSICAL_NAME: PHYSICAL[0]})
    return StructType((outer,))


STYLES = ("none", "plain", "ignores NaN", "short prefix", "old tie-breaker", "wide", "offset")


def statistics_text(draw: st.DrawFn, rows: list[Any], kept: list[Any], kind: Kind) -> str | None:
    """Statistics that hold for the rows that are kept, in the style of some writer."""
    style = draw(st.sampled_from(STYLES))
    if style == "none":
        return draw(st.sampled_from([None, "", "{", "{}", '{"numRecords":null}']))
    seen = rows if style == "wide" else kept
    values = [value for value in seen if value is not None]
    numbers = [v for v in values if not (isinstance(v, float) and math.isnan(v))]
    low = min(numbers, default=None)
    high = max(numbers, default=None)
    if len(numbers) < len(values) and style != "ignores NaN":
        high = None
    stats = Statistics(
        num_records=len(seen),
        min_values={} if low is None else {PATH: low},
        max_values={} if high is None else {PATH: high},
        null_count={PATH: len(seen) - len(values)},
        tight_bounds=False if style == "wide" else None,
    )
    length = 2 if style == "short prefix" else 32
    text = encode_stats(stats, schema_of(kind.type), string_prefix_length=length)
    if style == "offset" and kind.type == TIMESTAMP:
        return _with_offset(text)
    if (
        style == "old tie-breaker"
        and isinstance(high, str)
        and high[32:33] not in ("", ODD_TEXT[-1])
    ):
        document = json.loads(text)
        document["maxValues"][PHYSICAL[0]][PHYSICAL[1]] = high[:32] + "\ufffd"
        return json.dumps(document)
    return text


def _with_offset(text: str) -> str:
    document = json.loads(text)
    for group in ("minValues", "maxValues"):
        for inner in document[group].values():
            for name, moment in inner.items():
                if not moment.startswith(("0001", "9999")):
                    wall = datetime.fromisoformat(moment) - timedelta(hours=9, minutes=30)
                    inner[name] = wall.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "-09:30"
    return json.dumps(document)


def partition_text(draw: st.DrawFn, value: Any, kind: Kind) -> str | None:
    if kind.type == TIMESTAMP and value is not None and value.year == 2024 and draw(st.booleans()):
        hours = draw(st.integers(-14, 14))
        return str((value + timedelta(hours=hours)).replace(tzinfo=None))
    return "" if value == "" else encode_partition_value(value, kind.type)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Column, list[list[Any]], list[File], list[Predicate]]:
    """A column, the rows of each file, the files, and conditions on the column."""
    kind = draw(st.sampled_from(KINDS))
    is_partition = draw(st.booleans())
    column = Column(PATH, PHYSICAL[1:] if is_partition else PHYSICAL, kind.type, is_partition)
    cells = st.none() | kind.rows
    rows: list[list[Any]] = []
    files: list[File] = []
    for _ in range(draw(st.integers(1, 6))):
        if is_partition:
            value = draw(cells)
            # Null or empty: readers do not agree what an empty text means.
            rows.append(["", None] if value == "" else [value])
            files.append((None, {PHYSICAL[1]: partition_text(draw, value, kind)}))
        else:
            all_rows = draw(st.lists(cells, max_size=4))
            kept = all_rows[draw(st.integers(0, 1)) :]
            rows.append(kept)
            files.append((statistics_text(draw, all_rows, kept, kind), {}))
    # Values that rows have, and their neighbours, are what tells bounds apart.
    present = [v for file in rows for v in file if v is not None and is_finite(v)]
    literals = kind.literals | st.sampled_from(present) if present else kind.literals
    predicates = draw(st.lists(conditions(column, literals), min_size=4, max_size=8))
    return column, rows, files, predicates


def is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def conditions(column: Column, literals: st.SearchStrategy[Any]) -> st.SearchStrategy[Predicate]:
    operators = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
    lists = st.lists(literals, min_size=1, max_size=5).map(tuple)
    leaves: list[st.SearchStrategy[Predicate]] = [
        st.builds(Comparison, st.just(column), operators, literals),
        st.builds(OneOf, st.just(column), lists, st.booleans()),
        st.builds(Null, st.just(column), st.booleans()),
    ]
    if column.type == STRING:
        prefixes = literals.map(lambda text: text[:2])
        leaves.append(st.builds(StartsWith, st.just(column), prefixes, st.booleans()))
    leaf = st.one_of(leaves)
    parts = st.lists(leaf, min_size=1, max_size=3).map(tuple)
    return leaf | leaf | st.builds(And, parts) | st.builds(Or, parts)


# --- what a row fulfils -------------------------------------------------------------------


def matches(value: Any, predicate: Predicate) -> bool:
    if isinstance(predicate, And):
        return all(matches(value, part) for part in predicate.parts)
    if isinstance(predicate, Or):
        return any(matches(value, part) for part in predicate.parts)
    if isinstance(predicate, Null):
        return (value is None) != predicate.negated
    if value is None:
        return False
    if isinstance(predicate, StartsWith):
        return bool(value.startswith(predicate.prefix)) != predicate.negated
    if isinstance(predicate, OneOf):
        return (value in predicate.values) != predicate.negated
    assert isinstance(predicate, Comparison)
    return _compare(value, predicate)


def _compare(value: Any, predicate: Comparison) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return predicate.operator in (">", ">=", "<>")
    other = predicate.value
    compare: dict[str, Callable[[], bool]] = {
        "=": lambda: value == other,
        "<>": lambda: value != other,
        "<": lambda: value < other,
        "<=": lambda: value <= other,
        ">": lambda: value > other,
        ">=": lambda: value >= other,
    }
    return bool(compare[predicate.operator]())


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(table=tables())
def test_no_file_with_a_matching_row_is_dropped(
    table: tuple[Column, list[list[Any]], list[File], list[Predicate]],
) -> None:
    column, rows, files, predicates = table
    stats = pa.array([text for text, _ in files], pa.string())
    values = pa.array([dumps(partition_values) for _, partition_values in files], pa.string())
    bounds = read_bounds([column], stats, values)
    lowest, highest = page_range(column, bounds[key_of(column)])
    for predicate in predicates:
        wanted = {n for n, file in enumerate(rows) if any(matches(row, predicate) for row in file)}
        mask = matching_files(predicate, bounds, len(files)).to_pylist()
        lost = wanted - {n for n, keeps in enumerate(mask) if keeps}
        assert not lost, f"{predicate} lost {[(files[n], rows[n]) for n in lost]}"
        ranges = key_ranges(predicate, column)
        if wanted and ranges is not None:
            assert lowest is None or any(lowest <= b for _, b in ranges), f"{predicate} lost a page"
            assert highest is None or any(a <= highest for a, _ in ranges), f"{predicate}"


@pytest.mark.parametrize(
    "text", ['{"minValues":{"x":"\\ud800"}}', "[]", "nonsense", '{"minValues":7}']
)
def test_statistics_that_arrow_refuses_are_read_one_by_one(text: str) -> None:
    column = Column(("x",), ("x",), LONG)
    plain = '{"numRecords":2,"minValues":{"x":5},"maxValues":{"x":9},"nullCount":{"x":0}}'
    texts = pa.array([plain, text, None], pa.string())
    bounds = read_bounds([column], texts, pa.array(["{}"] * 3))[key_of(column)]
    assert bounds.low is not None
    assert bounds.low.to_pylist() == [5, None, None]
    assert bounds.has_value.to_pylist() == [True, None, None]


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(table=tables())
def test_probes_of_the_index_find_every_file_with_a_matching_row(
    table: tuple[Column, list[list[Any]], list[File], list[Predicate]],
) -> None:
    column, rows, files, predicates = table
    keys = [BoundsKeys([column]).of(*file)[0] for file in files]
    for predicate in predicates:
        ranges = key_ranges(predicate, column)
        if ranges is None:
            continue
        probes = probe_rows(ranges)
        for n, (low, high) in enumerate(keys):
            found = sum(
                width_class(low, high) == width and first <= low <= last and high >= a
                for width, first, last, a in probes
            )
            assert found == any(low <= b and a <= high for a, b in ranges), "once, or not at all"
            if any(matches(row, predicate) for row in rows[n]):
                assert found, f"{predicate} lost {files[n]} {rows[n]}"
