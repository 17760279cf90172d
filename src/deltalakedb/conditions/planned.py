"""Lookups of files by the keys of planned columns, instead of a scan.

The catalog has, for up to three columns of a table, the bounds of each file as keys (see
`actions/planning.py`). If a condition restricts one of them, an index leads to the files, and the
rest of the condition is compared with these few only. DuckDB has no index: it scans the keys, which
are narrow columns with zone maps, and reads the other columns of the files that match.

Keys are valid for one plan. The query compares the plan in the same statement: with another plan it
returns no rows, and the files are listed without keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from deltalakedb.actions.jsonvalue import texts
from deltalakedb.actions.order_keys import HIGHEST, LOWEST
from deltalakedb.conditions.key_ranges import key_ranges, probe_rows
from deltalakedb.conditions.predicate import columns_of
from deltalakedb.store.queries import rewrite

if TYPE_CHECKING:
    from deltalakedb.actions.order_keys import Range
    from deltalakedb.conditions.predicate import Predicate
    from deltalakedb.store.dialect import Session
    from deltalakedb.store.url import Engine

FEW: Final = 4_000
"""Fewer files than this are looked up by their keys; for more, reading all is as fast."""

_SAME_PLAN: Final[Mapping[Engine, str]] = {
    "postgres": "(SELECT md5(plan)::uuid FROM dl_tables WHERE table_id = :table_id) = :plan",
    "sqlite": "(SELECT plan FROM dl_tables WHERE table_id = :table_id) = :plan",
    "duckdb": "(SELECT plan FROM dl_tables WHERE table_id = :table_id) = :plan",
}
# An expression around the versions leaves only the index on keys to look files up with.
_LIVE: Final = "f.added_version + 0 <= :version AND f.removed_version + 0 > :version"
_OVERLAP: Final = (
    "f.table_id = :table_id AND f.key{slot}_width = p.width AND f.key{slot}_width IS NOT NULL "
    "AND f.key{slot}_low BETWEEN p.low_from AND p.low_to AND f.key{slot}_high >= p.a"
)
_PROBES: Final[Mapping[Engine, str]] = {
    "postgres": "unnest((:widths{slot})::integer[], (:lows{slot})::bigint[], "
    "(:highs{slot})::bigint[], (:starts{slot})::bigint[]) AS p(width, low_from, low_to, a)",
    "sqlite": "(SELECT json_extract(value, '$[0]') AS width, json_extract(value, '$[1]') AS "
    "low_from, json_extract(value, '$[2]') AS low_to, json_extract(value, '$[3]') AS a "
    "FROM json_each(:probes{slot})) AS p",
}


@dataclass(frozen=True, slots=True)
class Sql:
    """SQL with `:name` parameters, and their values."""

    text: str
    params: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Keys:
    """The intervals of keys that a condition allows, by slot of the plan."""

    plan: str
    by_slot: Mapping[int, Sequence[Range]]


def keys_of(predicate: Predicate, plan: str | None) -> Keys | None:
    """The intervals that a predicate allows for the columns of a plan; None without any."""
    if plan is None:
        return None
    found: dict[int, Sequence[Range]] = {}
    wanted = {(c.physical, str(c.type), c.is_partition): c for c in columns_of(predicate)}
    for slot, planned in enumerate(json.loads(plan), start=1):
        # A column of another type than the keys were made of has another order.
        column = wanted.get((tuple(planned["path"]), planned["type"], planned["partition"]))
        if column is None:
            continue
        ranges = key_ranges(predicate, column)
        if ranges is not None:
            found[slot] = ranges
    return Keys(plan, found) if found else None


def few_files(session: Session, keys: Keys, table_id: str, columns: Sequence[str]) -> Sql | None:
    """The lookup of the files that keys lead to; None where these are many."""
    engine = session.engine
    if engine != "duckdb":
        slot = best_slot(session, keys, table_id)
        return None if slot is None else looked_up(engine, columns, keys, slot)
    # One scan compares the keys of all slots.
    overlap = _overlap(keys)
    params = {"table_id": table_id, **_bounds(keys)}
    count = f"SELECT count(*) FROM dl_active_files AS f WHERE {overlap}"  # noqa: S608
    if session.execute(rewrite(count, engine), params)[0][0] >= FEW:
        return None
    chosen = ", ".join(f"f.{column}" for column in columns)
    live = "f.added_version <= :version AND f.removed_version > :version"
    files = f"SELECT {chosen} FROM dl_active_files AS f WHERE {overlap} AND {live}"  # noqa: S608
    return Sql(f"{files} AND {_SAME_PLAN[engine]}", {"plan": keys.plan, **_bounds(keys)})


def best_slot(session: Session, keys: Keys, table_id: str) -> int | None:
    """The slot whose index leads to the fewest files; None where these are still many."""
    engine = session.engine
    counts = [
        f"(SELECT count(*) FROM (SELECT 1 {_found(engine, slot, '')} LIMIT :few) AS c{slot})"  # noqa: S608
        for slot in keys.by_slot
    ]
    params = {"table_id": table_id, "few": FEW, **_parameters(engine, keys, list(keys.by_slot))}
    row = session.execute(rewrite(f"SELECT {', '.join(counts)}", engine), params)[0]
    fewest, slot = min(zip(row, keys.by_slot, strict=True))
    return slot if fewest < FEW else None


def plan_key(plan: str, engine: Engine) -> str | UUID:
    """A plan as a parameter: on Postgres its digest, which may be written into a COPY."""
    return (
        UUID(md5(plan.encode(), usedforsecurity=False).hexdigest())
        if engine == "postgres"
        else plan
    )


def looked_up(engine: Engine, columns: Sequence[str], keys: Keys, slot: int) -> Sql:
    """The files whose keys in a slot overlap; a condition may follow after AND."""
    chosen = ", ".join(f"f.{column}" for column in columns)
    found = _found(engine, slot, f" AND {_LIVE} AND {_SAME_PLAN[engine]}")
    params = {"plan": plan_key(keys.plan, engine), **_parameters(engine, keys, [slot])}
    return Sql(f"SELECT {chosen} {found} WHERE true", params)


def _found(engine: Engine, slot: int, more: str) -> str:
    """The FROM clause, as an order to the planner: look up each probe in the index on keys."""
    probes, overlap = _PROBES[engine].format(slot=slot), _OVERLAP.format(slot=slot) + more
    if engine == "postgres":
        files = f"SELECT f.* FROM dl_active_files AS f WHERE {overlap} OFFSET 0"  # noqa: S608
        return f"FROM {probes} CROSS JOIN LATERAL ({files}) AS f"
    index = f"dl_active_files_key{slot}"
    return f"FROM {probes} CROSS JOIN dl_active_files AS f INDEXED BY {index} ON {overlap}"


def _overlap(keys: Keys) -> str:
    """The condition for files whose keys overlap a range in each slot.

    The range around those of a slot is a filter that DuckDB compares with its zone maps.
    """
    parts = ["f.table_id = :table_id"]
    for slot, ranges in keys.by_slot.items():
        low, high = f"f.key{slot}_low", f"f.key{slot}_high"
        parts += [f"{low} <= :last{slot}", f"{high} >= :first{slot}"]
        if len(ranges) > 1:
            numbers = range(len(ranges))
            each = (f"{low} <= :b{slot}_{n} AND {high} >= :a{slot}_{n}" for n in numbers)
            parts.append(f"({' OR '.join(each)})")
    return " AND ".join(parts)


def _bounds(keys: Keys) -> dict[str, int]:
    """The parameters of `_overlap`."""
    params: dict[str, int] = {}
    for slot, ranges in keys.by_slot.items():
        params[f"first{slot}"] = min((a for a, _ in ranges), default=HIGHEST)
        params[f"last{slot}"] = max((b for _, b in ranges), default=LOWEST)
        if len(ranges) > 1:
            for number, (a, b) in enumerate(ranges):
                params |= {f"a{slot}_{number}": a, f"b{slot}_{number}": b}
    return params


def _parameters(engine: Engine, keys: Keys, slots: Sequence[int]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for slot in slots:
        rows = probe_rows(keys.by_slot[slot])
        if engine == "sqlite":
            params[f"probes{slot}"] = texts(rows)  # type: ignore[arg-type]
            continue
        widths, lows, highs, starts = ([list(c) for c in zip(*rows, strict=True)]) or ([],) * 4
        params |= {
            f"widths{slot}": widths,
            f"lows{slot}": lows,
            f"highs{slot}": highs,
            f"starts{slot}": starts,
        }
    return params
