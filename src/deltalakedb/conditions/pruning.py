"""From a condition on rows to a condition on files that the database evaluates.

Guarantees:

- No file is dropped that could hold a matching row, as Spark compares: NaN equals itself and is
  above every number, -0.0 equals 0.0, strings sort by code point. Statistics count as Delta's
  writers make them: a maximum of floats may ignore NaN, times are cut to milliseconds, strings
  may be cut, and with `tightBounds` false the bounds and the extremes of `nullCount` still hold.
- The SQL never fails, whatever `stats` and `partition_values` hold. What cannot be understood is
  unknown, and keeps the file.
- Its size is bounded; of a condition with too many parts the last ones are left out, which keeps
  more files.

A partition column is a column whose bounds are equal in each file. It may be in doubt what an
empty string means (null, says the protocol; empty, says Spark): both are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from deltalakedb.actions.datatypes import FLOAT
from deltalakedb.conditions.predicate import (
    And,
    Column,
    Comparison,
    Constant,
    Null,
    OneOf,
    Operator,
    Or,
    Predicate,
    StartsWith,
)
from deltalakedb.conditions.pruning_engine import Extraction, Kind, Parameters
from deltalakedb.conditions.pruning_engines import ENGINES
from deltalakedb.conditions.pruning_values import Edges, after_prefix, edges, hulls, kind_of
from deltalakedb.store.url import Engine

MOST_VALUES: Final = 200
"""Of a longer list of values, neighbours become one interval."""
MOST_TERMS: Final = 2000
MOST_COLUMNS: Final = 100
DEEPEST: Final = 100

# False: no file; True: any file. Text is SQL, whose NULL is unknown and so counts as true.
_Condition: TypeAlias = str | bool


@dataclass(frozen=True, slots=True)
class Sql:
    """A boolean expression with `:name` parameters, and their values (text, int or float)."""

    text: str
    params: Mapping[str, object]


def may_match(
    predicate: Predicate,
    engine: Engine,
    *,
    stats: str = "stats",
    partition_values: str = "partition_values",
) -> Sql:
    """SQL that is true for each file that may hold a row which fulfils the predicate.

    It is never NULL. `stats` and `partition_values` name the columns of `dl_active_files`. On
    Postgres it calls the functions of the migration `planned_columns`.
    """
    parameters = Parameters()
    conditions: list[_Condition] = []
    # What the partition values decide alone goes first: statistics take longer to read.
    for parts in _by_cost(predicate):
        builder = _Builder(engine, parameters)
        condition = _all(builder.condition(part, 0) for part in parts)
        if isinstance(condition, str):
            condition = ENGINES[engine].wrap(
                condition,
                list(builder.values),
                stats=stats,
                partition_values=partition_values,
                parameters=parameters,
            )
        conditions.append(condition)
    found = _all(conditions)
    if isinstance(found, bool):
        return Sql("TRUE" if found else "FALSE", {})
    return Sql(found, parameters.values)


def _by_cost(predicate: Predicate) -> list[list[Predicate]]:
    parts = predicate.parts if isinstance(predicate, And) else (predicate,)
    cheap = [part for part in parts if not _reads_statistics(part, 0)]
    rest = [part for part in parts if _reads_statistics(part, 0)]
    return [group for group in (cheap, rest) if group]


def _reads_statistics(predicate: Predicate, depth: int) -> bool:
    if isinstance(predicate, (And, Or)):
        return depth > DEEPEST or any(_reads_statistics(p, depth + 1) for p in predicate.parts)
    if isinstance(predicate, (Comparison, OneOf, StartsWith, Null)):
        return not predicate.column.is_partition
    return False


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Where the values of a column lie in a file, as SQL: `low` <= each value <= `high`."""

    kind: Kind
    low: str
    high: str


class _Builder:
    """Writes one condition, and remembers which values it needs."""

    def __init__(self, engine: Engine, parameters: Parameters) -> None:
        self._name: Engine = engine
        self._engine = ENGINES[engine]
        self._parameters = parameters
        self.values: dict[Extraction, str] = {}

    def condition(self, predicate: Predicate, depth: int) -> _Condition:
        """What must be true of a file that may match."""
        if isinstance(predicate, Constant):
            return predicate.value
        if isinstance(predicate, (And, Or)):
            if depth > DEEPEST:
                return True
            join = _all if isinstance(predicate, And) else _any
            return join([self.condition(part, depth + 1) for part in predicate.parts])
        if not isinstance(predicate, (Comparison, OneOf, StartsWith, Null)):
            return True
        column = predicate.column
        full = len(self._parameters.values) > MOST_TERMS or len(self.values) > MOST_COLUMNS
        path = column.physical if column.is_partition else ("nullCount", *column.physical)
        if full or not self._engine.can_find(path):
            return True
        if isinstance(predicate, Null):
            return self._some_value(column) if predicate.negated else self._some_null(column)
        bounds = self._bounds(column)
        if isinstance(predicate, Comparison):
            fits = [self._compare(b, column, predicate.operator, predicate.value) for b in bounds]
        elif isinstance(predicate, OneOf):
            fits = [self._one_of(b, column, predicate) for b in bounds]
        else:
            fits = [self._starts_with(b, predicate) for b in bounds]
        return _all([self._some_value(column), *fits])

    # What a file says of a column.

    def _value(self, extraction: Extraction) -> str:
        return self.values.setdefault(extraction, f"v.c{len(self.values)}")

    def _bounds(self, column: Column) -> list[_Bounds]:
        kind = kind_of(column.type)
        if kind is None:
            return []
        if not column.is_partition:
            low = self._value(Extraction(("minValues", *column.physical), kind))
            high = self._value(Extraction(("maxValues", *column.physical), kind, is_high=True))
            return [_Bounds(kind, low, high)]
        found = []
        # One of the two is NULL, depending on how the time was written.
        kinds: tuple[Kind, ...] = ("instant", "legacy") if kind == "instant" else (kind,)
        for each in kinds:
            value = self._value(Extraction(column.physical, each, of_partition=True))
            found.append(_Bounds(each, value, value))
        return found

    def _some_value(self, column: Column) -> str:
        if column.is_partition:
            text = self._value(Extraction(column.physical, "text", of_partition=True))
            if kind_of(column.type) in ("string", None):
                return f"{text} IS NOT NULL"
            return f"({text} IS NOT NULL AND {text} <> '')"
        nulls = self._value(Extraction(("nullCount", *column.physical), "whole"))
        records = self._value(Extraction(("numRecords",), "whole"))
        return f"{nulls} <> {records}"

    def _some_null(self, column: Column) -> str:
        if column.is_partition:
            text = self._value(Extraction(column.physical, "text", of_partition=True))
            return f"({text} IS NULL OR {text} = '')"
        nulls = self._value(Extraction(("nullCount", *column.physical), "whole"))
        return f"{nulls} <> 0"

    # What a comparison needs of the bounds.

    def _compare(
        self, bounds: _Bounds, column: Column, operator: Operator, value: Any
    ) -> _Condition:
        if operator in (">", ">=") and bounds.kind == "real" and not column.is_partition:
            # NaN is above every number, and the maximum may not count it.
            return True
        at = self._edges(bounds, column, value)
        if at is None:
            return True
        if operator == "=":
            return self._overlaps(bounds, at)
        if operator == "<>":
            return f"NOT {self._holds_only(bounds, at)}" if at.exact else True
        strict = at.exact and operator in ("<", ">")
        if operator in ("<", "<="):
            sign = "<" if strict else "<="
            return f"{bounds.low} {sign} {self._parameter(at.high, bounds)}"
        sign = ">" if strict else ">="
        return f"{bounds.high} {sign} {self._parameter(at.low, bounds)}"

    def _one_of(self, bounds: _Bounds, column: Column, predicate: OneOf) -> _Condition:
        points = [self._edges(bounds, column, value) for value in _sorted(predicate.values)]
        known = [point for point in points if point is not None]
        if len(known) < len(points) or not known:
            return True
        if not predicate.negated:
            return _any([self._overlaps(bounds, hull) for hull in hulls(known, MOST_VALUES)])
        if len(known) > MOST_VALUES or not all(point.exact for point in known):
            return True
        return _all([f"NOT {self._holds_only(bounds, point)}" for point in known])

    def _starts_with(self, bounds: _Bounds, predicate: StartsWith) -> _Condition:
        prefix = predicate.prefix
        if not prefix:
            return not predicate.negated
        after = after_prefix(prefix)
        if bounds.kind != "string" or not self._engine.can_compare(prefix) or after is None:
            return True
        first, last = self._parameter(prefix, bounds), self._parameter(after, bounds)
        if predicate.negated:
            return f"NOT ({bounds.low} >= {first} AND {bounds.high} < {last})"
        return f"({bounds.low} < {last} AND {bounds.high} >= {first})"

    def _overlaps(self, bounds: _Bounds, at: Edges) -> str:
        high, low = self._parameter(at.high, bounds), self._parameter(at.low, bounds)
        return f"({bounds.low} <= {high} AND {bounds.high} >= {low})"

    def _holds_only(self, bounds: _Bounds, at: Edges) -> str:
        value = self._parameter(at.low, bounds)
        return f"({bounds.low} = {value} AND {bounds.high} = {value})"

    def _edges(self, bounds: _Bounds, column: Column, value: Any) -> Edges | None:
        at = edges(value, bounds.kind, FLOAT if column.was_float else column.type, self._name)
        if at is not None and isinstance(at.low, str) and not self._engine.can_compare(at.low):
            return None
        return at

    def _parameter(self, value: object, bounds: _Bounds) -> str:
        return self._engine.parameter(value, bounds.kind, self._parameters)


def _sorted(values: Sequence[Any]) -> Sequence[Any]:
    try:
        return sorted(values)
    except TypeError:
        # Values of several types, which a bound predicate does not have: none is compared.
        return [None]


def _all(conditions: Iterable[_Condition]) -> _Condition:
    return _join(list(conditions), " AND ", neutral=True)


def _any(conditions: Iterable[_Condition]) -> _Condition:
    return _join(list(conditions), " OR ", neutral=False)


def _join(conditions: list[_Condition], word: str, *, neutral: bool) -> _Condition:
    texts = [each for each in conditions if isinstance(each, str)]
    if any(each is not neutral for each in conditions if isinstance(each, bool)):
        return not neutral
    if not texts:
        return neutral
    # Pairs of pairs: engines limit how deep an expression may be.
    while len(texts) > 1:
        pairs = [texts[n : n + 2] for n in range(0, len(texts), 2)]
        texts = [f"({word.join(pair)})" if len(pair) > 1 else pair[0] for pair in pairs]
    return texts[0]
