"""How each engine takes a typed value out of `stats` and `partition_values`.

Guarantees: no expression here fails, whatever the two columns hold. One that cannot be read, or
that could be wrong, is NULL: unknown. Each value is taken out once a row, however often the
condition names it.

The values are numbers, text, and 0 or 1 for booleans. Times are text, `yyyy-MM-ddTHH:mm:ss.f` in
UTC, which sorts by time but may be off by a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from deltalakedb.conditions.pruning_engine import (
    NUMBERS,
    Extraction,
    Kind,
    Parameters,
    PruningEngine,
    is_unicode,
)
from deltalakedb.store.url import Engine

# Where stored text has this character, it stands for another: see store/postgres.py.
_POSTGRES_ESCAPE: Final = "\ue000"


class PostgresPruning(PruningEngine):
    """Numbers are exact (NUMERIC has NaN above all and infinities); text compares by "C"."""

    def can_find(self, path: tuple[str, ...]) -> bool:
        return all(self.can_compare(step) and _POSTGRES_ESCAPE not in step for step in path)

    def can_compare(self, text: str) -> bool:
        return is_unicode(text) and "\0" not in text

    def parameter(self, value: object, kind: Kind, parameters: Parameters) -> str:
        # Text and a cast, so that it does not matter which types a driver takes Python's for.
        name = parameters.add(str(value))
        return f"CAST({name} AS {'NUMERIC' if kind in (*NUMBERS, 'bool') else 'TEXT'})"

    def wrap(
        self,
        condition: str,
        values: Sequence[Extraction],
        *,
        stats: str,
        partition_values: str,
        parameters: Parameters,
    ) -> str:
        raw = []
        for n, value in enumerate(values):
            if value.of_partition:
                name = parameters.add(value.path[0])
                raw.append(f"{partition_values} ->> CAST({name} AS TEXT) AS x{n}")
            else:
                name = parameters.add(_array_text(value.path))
                raw.append(f"d.j {_get(value)} CAST({name} AS TEXT[]) AS x{n}")
        typed = [f"{self.typed(v, f'r.x{n}')} AS c{n}" for n, v in enumerate(values)]
        document = f" FROM (SELECT dl_stats_document({stats}) AS j OFFSET 0) AS d"
        source = "" if all(v.of_partition for v in values) else document
        # OFFSET 0 keeps the planner from copying an expression to each place that uses it.
        return (
            f"(SELECT COALESCE({condition}, TRUE) FROM (SELECT {', '.join(typed)} FROM"  # noqa: S608
            f" (SELECT {', '.join(raw)}{source} OFFSET 0) AS r OFFSET 0) AS v)"
        )

    def typed(self, value: Extraction, raw: str) -> str:
        if _get(value) == "#>>":
            return self.read_text(raw, value)
        return super().typed(value, raw)

    def json_text(self, raw: str) -> tuple[str, str]:
        return f"jsonb_typeof({raw}) = 'string'", f"({raw} #>> '{{}}')"

    def json_number(self, raw: str, kind: Kind) -> str:  # noqa: ARG002
        return f"CASE WHEN jsonb_typeof({raw}) = 'number' THEN CAST({raw} AS NUMERIC) END"

    def json_bool(self, raw: str) -> str:
        return (
            f"CASE WHEN jsonb_typeof({raw}) = 'boolean'"
            f" THEN CAST(CAST({raw} AS BOOLEAN) AS INT) END"
        )

    def number_of_text(self, text: str, kind: Kind) -> str:
        if kind == "whole":
            return f"CASE WHEN {text} ~ '^[+-]?[0-9]{{1,20}}$' THEN CAST({text} AS NUMERIC) END"
        number = "^[+-]?([0-9]{1,80}[.]?[0-9]{0,80}|[.][0-9]{1,80})([eE][+-]?[0-9]{1,3})?$"
        special = " OR lower({0}) IN ('nan', 'inf', '+inf', '-inf', 'infinity', '-infinity')"
        more = special.format(text) if kind == "real" else ""
        return f"CASE WHEN {text} ~ '{number}'{more} THEN CAST({text} AS NUMERIC) END"

    def read_text(self, text: str, value: Extraction) -> str:
        return f'{super().read_text(text, value)} COLLATE "C"'

    def string(self, text: str, value: Extraction) -> str:
        known = super().string(text, value)
        return f"CASE WHEN strpos({text}, chr({ord(_POSTGRES_ESCAPE)})) = 0 THEN {known} END"

    def instant_with_offset(self, text: str) -> str:
        return f"dl_utc_text({text})"


class DuckDBPruning(PruningEngine):
    """A lambda names the values: a subquery would become a join on the text of the statistics.

    Decimals are compared as DOUBLE: its JSON keeps no more digits.
    """

    def wrap(
        self,
        condition: str,
        values: Sequence[Extraction],
        *,
        stats: str,
        partition_values: str,
        parameters: Parameters,
    ) -> str:
        paths: list[str] = []
        raw: list[str] = []
        typed = []
        for n, value in enumerate(values):
            path = parameters.add(_json_pointer(value.path))
            if value.of_partition:
                raw.append(f"x{n}: json_extract_string({partition_values}, {path})")
                typed.append(f"c{n}: {self.typed(value, f'r.x{n}')}")
            else:
                paths.append(path)
                typed.append(f"c{n}: {self.typed(value, f'r.s[{len(paths)}]')}")
        if paths:
            raw.append(f"s: json_extract(TRY_CAST({stats} AS JSON), [{', '.join(paths)}])")
        return (
            f"list_transform(list_transform([{{{', '.join(raw)}}}],"
            f" lambda r: {{{', '.join(typed)}}}), lambda v: COALESCE({condition}, TRUE))[1]"
        )

    def json_text(self, raw: str) -> tuple[str, str]:
        return f"json_type({raw}) = 'VARCHAR'", f"({raw} ->> '$')"

    def json_number(self, raw: str, kind: Kind) -> str:
        if kind == "whole":
            return (
                f"CASE WHEN json_type({raw}) IN ('BIGINT', 'UBIGINT')"
                f" THEN TRY_CAST({raw} AS BIGINT) END"
            )
        number = f"TRY_CAST({raw} AS DOUBLE)"
        return (
            f"CASE WHEN json_type({raw}) IN ('BIGINT', 'UBIGINT', 'DOUBLE')"
            f" AND isfinite({number}) THEN {number} END"
        )

    def json_bool(self, raw: str) -> str:
        return (
            f"CASE WHEN json_type({raw}) = 'BOOLEAN'"
            f" THEN CASE {raw} ->> '$' WHEN 'true' THEN 1 WHEN 'false' THEN 0 END END"
        )

    def number_of_text(self, text: str, kind: Kind) -> str:
        if kind == "whole":
            return (
                f"CASE WHEN regexp_full_match({text}, '[+-]?[0-9]{{1,20}}')"
                f" THEN TRY_CAST({text} AS BIGINT) END"
            )
        return f"TRY_CAST({text} AS DOUBLE)"

    def instant_with_offset(self, text: str) -> str:
        # Years of other than four digits would not sort as text.
        micros = f"epoch_us(TRY_CAST({text} AS TIMESTAMPTZ))"
        return (
            f"CASE WHEN regexp_matches({text}, '(Z|[+-][0-9][0-9](:?[0-9][0-9])?)$')"
            f" AND {micros} BETWEEN -62135596800000000 AND 253402214400000000"
            f" THEN replace(CAST(make_timestamp({micros}) AS VARCHAR), ' ', 'T') END"
        )


class SQLitePruning(PruningEngine):
    """JSON is text, numbers are 64-bit integers or doubles, and times have milliseconds.

    Its JSON paths name a key by its spelling in the text, so that keys which JSON must escape are
    not found. LIMIT 1 keeps the planner from copying an expression to each place that uses it.
    """

    def can_find(self, path: tuple[str, ...]) -> bool:
        return super().can_find(path) and all(
            character >= " " and character not in '"\\\x7f' for step in path for character in step
        )

    def wrap(
        self,
        condition: str,
        values: Sequence[Extraction],
        *,
        stats: str,
        partition_values: str,
        parameters: Parameters,
    ) -> str:
        raw = []
        typed = []
        for n, value in enumerate(values):
            document = _valid(partition_values if value.of_partition else stats)
            path = parameters.add("$" + "".join(f'."{step}"' for step in value.path))
            raw.append(f"json_extract({document}, {path}) AS x{n}")
            raw.append(f"json_type({document}, {path}) AS t{n}")
            text = self.typed(value, f"r.x{n}")
            if value.kind == "string" and (value.of_partition or value.is_high):
                # A text ends at its NUL here: as a lower bound that would still be right.
                text = f"CASE WHEN r.z{n} = 0 THEN {text} END"
                raw.append(f"instr({document}, '\\u0000') AS z{n}")
            typed.append(f"{text} AS c{n}")
        if not all(value.of_partition for value in values):
            # JSON ends at a NUL here, and what comes before it may well be valid: unknown.
            raw.append(f"instr({stats}, char(0)) AS nul")
            typed.append("r.nul AS nul")
            condition = f"(v.nul OR {condition})"
        return (
            f"(SELECT COALESCE({condition}, TRUE) FROM (SELECT {', '.join(typed)} FROM"  # noqa: S608
            f" (SELECT {', '.join(raw)} LIMIT 1) AS r LIMIT 1) AS v)"
        )

    def json_text(self, raw: str) -> tuple[str, str]:
        return f"{_type(raw)} = 'text'", raw

    def json_number(self, raw: str, kind: Kind) -> str:
        if kind == "whole":
            # An integer beyond 64 bits has become a double.
            test = f"{_type(raw)} = 'integer' AND typeof({raw}) = 'integer'"
        else:
            test = f"{_type(raw)} IN ('integer', 'real') AND {raw} BETWEEN -1.797e308 AND 1.797e308"
        return f"CASE WHEN {test} THEN {raw} END"

    def json_bool(self, raw: str) -> str:
        return f"CASE {_type(raw)} WHEN 'true' THEN 1 WHEN 'false' THEN 0 END"

    def number_of_text(self, text: str, kind: Kind) -> str:
        if kind == "whole":
            return (
                f"CASE WHEN {text} GLOB '[0-9+-]*' AND {text} GLOB '*[0-9]' AND length({text}) < 21"
                f" AND substr({text}, 2) NOT GLOB '*[^0-9]*' THEN CAST({text} AS INTEGER) END"
            )
        return (
            f"CASE WHEN {text} GLOB '*[0-9]*' AND {text} NOT GLOB '*[^0-9.eE+-]*'"
            f" THEN CAST({text} AS REAL) END"
        )

    def string(self, text: str, value: Extraction) -> str:
        # GLOB reads half a surrogate pair as U+FFFD, and no bound can be trusted that has one.
        if value.is_high:
            text = f"replace({text}, char(65533), char(1114111))"
        return f"CASE WHEN {text} NOT GLOB '*' || char(65533) || '*' THEN {text} END"

    def date(self, text: str) -> str:
        return f"CASE WHEN {text} GLOB '{_DATE_GLOB}' THEN {text} END"

    def instant(self, text: str) -> str:
        return (
            f"CASE WHEN {text} GLOB '{_DATE_GLOB}[T ]{_TIME_GLOB}*'"
            f" AND ({text} GLOB '*Z' OR {text} GLOB '*[+-][0-9][0-9]:[0-9][0-9]')"
            f" THEN strftime('%Y-%m-%dT%H:%M:%f', {text}) END"
        )

    def wall_clock(self, text: str, *, zoned: bool) -> str:
        zone = "Z" if zoned else ""
        return (
            f"CASE WHEN {text} GLOB '{_DATE_GLOB}[T ]{_TIME_GLOB}*'"
            f" AND substr({text}, 20) NOT GLOB '*[^0-9.{zone}]*'"
            f" THEN replace(rtrim({text}, 'Z'), ' ', 'T') END"
        )


_DATE_GLOB: Final = "[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]"
_TIME_GLOB: Final = "[0-2][0-9]:[0-5][0-9]:[0-5][0-9]"


def _get(value: Extraction) -> str:
    """The operator of Postgres: text at once where its form tells that it was a JSON string."""
    return "#>>" if value.kind in ("date", "instant", "wall") else "#>"


def _valid(column: str) -> str:
    return f"CASE WHEN json_valid({column}) THEN {column} END"


def _type(raw: str) -> str:
    return raw.replace(".x", ".t")


def _array_text(path: tuple[str, ...]) -> str:
    """A list of strings as Postgres writes an array."""
    steps = (step.replace("\\", "\\\\").replace('"', '\\"') for step in path)
    return "{" + ",".join(f'"{step}"' for step in steps) + "}"


def _json_pointer(path: tuple[str, ...]) -> str:
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in path)


ENGINES: Final[Mapping[Engine, PruningEngine]] = {
    "postgres": PostgresPruning(),
    "sqlite": SQLitePruning(),
    "duckdb": DuckDBPruning(),
}
