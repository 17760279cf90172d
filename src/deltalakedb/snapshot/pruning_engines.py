"""How each engine takes a typed value out of `stats` and `partition_values`.

Guarantees: no expression here fails, whatever the two columns hold. One that cannot be read, or
that could be wrong, is NULL: unknown. Each value is taken out once a row, however often the
condition names it.

The values are numbers, text, and 0 or 1 for booleans. Times are text, `yyyy-MM-ddTHH:mm:ss.f` in
UTC, which sorts by time but may be off by a millisecond.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from deltalakedb.store.url import Engine

Kind: TypeAlias = Literal[
    "whole", "real", "decimal", "bool", "date", "string", "instant", "wall", "legacy", "text"
]
"""`instant` is a timestamp with a zone, `legacy` one without (a zone nobody knows), `wall` a
timestamp_ntz. `text` is a partition value as it is."""

_NUMBERS: Final = ("whole", "real", "decimal")
# Where stored text has this character, it stands for another: see store/postgres.py.
_POSTGRES_ESCAPE: Final = "\ue000"


@dataclass(frozen=True, slots=True)
class Extraction:
    """One value: of the statistics at `path`, or of the partition column `path[0]`."""

    path: tuple[str, ...]
    kind: Kind
    of_partition: bool = False
    is_high: bool = False


class Parameters:
    """The values of a statement, by the names that its text has."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}

    def add(self, value: object) -> str:
        """The placeholder of one more value."""
        name = f"p{len(self.values)}"
        self.values[name] = value
        return f":{name}"


class PruningEngine(ABC):
    """The SQL of one engine. A condition names its values `v.c0`, `v.c1` and so on."""

    def can_find(self, path: tuple[str, ...]) -> bool:
        """Whether a key of JSON can be named; what cannot be is unknown."""
        return all(_is_unicode(step) for step in path)

    def can_compare(self, text: str) -> bool:
        """Whether text can be a parameter."""
        return _is_unicode(text)

    def parameter(self, value: object, kind: Kind, parameters: Parameters) -> str:  # noqa: ARG002
        """A placeholder that compares with values of this kind."""
        return parameters.add(value)

    @abstractmethod
    def wrap(
        self,
        condition: str,
        values: Sequence[Extraction],
        *,
        stats: str,
        partition_values: str,
        parameters: Parameters,
    ) -> str:
        """The condition over a row of files; unknown is true."""

    def typed(self, value: Extraction, raw: str) -> str:
        """The value out of what the JSON holds; NULL where it is of another type."""
        if value.of_partition:
            if value.kind == "text":
                return raw
            if value.kind == "bool":
                return f"CASE lower({raw}) WHEN 'true' THEN 1 WHEN 'false' THEN 0 END"
            if value.kind in _NUMBERS:
                return self.number_of_text(raw, value.kind)
            return self.read_text(raw, value)
        if value.kind == "bool":
            return self.json_bool(raw)
        if value.kind in _NUMBERS:
            return self.json_number(raw, value.kind)
        test, text = self.json_text(raw)
        return f"CASE WHEN {test} THEN {self.read_text(text, value)} END"

    def read_text(self, text: str, value: Extraction) -> str:
        """A date, a time or a string out of its text."""
        if value.kind == "string":
            return self.string(text, value)
        if value.kind == "date":
            return self.date(text)
        if value.kind == "instant":
            return self.instant(text)
        return self.wall_clock(text, zoned=value.kind == "wall")

    def string(self, text: str, value: Extraction) -> str:
        # Writers of old marked a cut maximum with U+FFFD, which is not above every character.
        if value.is_high:
            return f"replace({text}, chr(65533), chr(1114111))"
        return text

    def date(self, text: str) -> str:
        return (
            f"CASE WHEN {text} LIKE '____-__-__' AND translate({text}, '0123456789', '') = '--'"
            f" THEN {text} END"
        )

    def instant(self, text: str) -> str:
        return (
            f"CASE WHEN {text} LIKE '____-__-__T__:__:__%Z'"
            f" AND translate({text}, '0123456789', '') IN ('--T::Z', '--T::.Z')"
            f" THEN rtrim({text}, 'Z')"
            f" WHEN {text} LIKE '____-__-__ __:__:__%' OR {text} LIKE '____-__-__T__:__:__%'"
            f" THEN {self.instant_with_offset(text)} END"
        )

    def wall_clock(self, text: str, *, zoned: bool) -> str:
        clock = f"replace({text}, ' ', 'T')"
        forms = "'--T::', '--T::.'" + (", '--T::Z', '--T::.Z'" if zoned else "")
        return (
            f"CASE WHEN {clock} LIKE '____-__-__T__:__:__%'"
            f" AND translate({clock}, '0123456789', '') IN ({forms})"
            f" THEN rtrim({clock}, 'Z') END"
        )

    def instant_with_offset(self, text: str) -> str:
        raise NotImplementedError

    @abstractmethod
    def json_text(self, raw: str) -> tuple[str, str]:
        """A test for a JSON string, and its text."""

    @abstractmethod
    def json_number(self, raw: str, kind: Kind) -> str:
        """A JSON number."""

    @abstractmethod
    def json_bool(self, raw: str) -> str:
        """A JSON boolean as 0 or 1."""

    @abstractmethod
    def number_of_text(self, text: str, kind: Kind) -> str:
        """The number that a partition value spells."""


class PostgresPruning(PruningEngine):
    """Numbers are exact (NUMERIC has NaN above all and infinities); text compares by "C"."""

    def can_find(self, path: tuple[str, ...]) -> bool:
        return all(self.can_compare(step) and _POSTGRES_ESCAPE not in step for step in path)

    def can_compare(self, text: str) -> bool:
        return _is_unicode(text) and "\0" not in text

    def parameter(self, value: object, kind: Kind, parameters: Parameters) -> str:
        # Text and a cast, so that it does not matter which types a driver takes Python's for.
        name = parameters.add(str(value))
        return f"CAST({name} AS {'NUMERIC' if kind in (*_NUMBERS, 'bool') else 'TEXT'})"

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
    # A text ends at its NUL for SQLite's JSON; what comes before it may well be valid.
    return f"CASE WHEN json_valid({column}) AND instr({column}, char(0)) = 0 THEN {column} END"


def _type(raw: str) -> str:
    return raw.replace(".x", ".t")


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


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
