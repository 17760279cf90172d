"""Rows of expired versions: reading, deleting and restoring them.

Guarantees:

- Rows of retained versions stay: the adds of the files that are live at the oldest of them,
  the removes whose files vacuum must not delete yet, and the newest protocol, metaData, txn of each
  application and action of each domain. The views, dl_active_files and checkpoints follow from it
  as before.
- Which rows go depends only on the horizon and on versions that no commit changes any more. Reading
  them, deleting them, and counting both gives the same rows.
- Rows have the same form for every engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions.jsonvalue import dumps, loads
from deltalakedb.actions.planning import Plan
from deltalakedb.store.queries import rewrite
from deltalakedb.store.relations import (
    ACTIVE_FILES,
    ADD_FILES,
    CDC_FILES,
    DOMAIN_METADATA,
    METADATA_UPDATES,
    MIRROR_STATUS,
    OTHER_ACTIONS,
    PROTOCOL_UPDATES,
    REMOVE_FILES,
    TXN_ACTIONS,
    UNPLANNED_FILES,
    VERSIONS,
    Kind,
    Relation,
)
from deltalakedb.store.rows import planned_rows

if TYPE_CHECKING:
    from deltalakedb.store.dialect import Row, Session
    from deltalakedb.store.url import Engine

_PAGE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Horizon:
    """The versions to expire: from `first` up to, not including, `keep`.

    A remove that came after the version `removed_since`, and whose file was deleted after the time
    `deleted_after`, stays: it is still in checkpoints.
    """

    table_id: str
    first: int
    keep: int
    removed_since: int
    deleted_after: int


def _newest(relation: Relation, *keys: str) -> str:
    same = "".join(f" AND n.{key} = r.{key}" for key in keys)
    return (
        f"NOT EXISTS (SELECT 1 FROM {relation.name} AS n WHERE n.table_id = :table_id"  # noqa: S608
        f"{same} AND n.version > r.version AND n.version <= :keep)"
    )


_NOTHING: Final = "1 = 0"
_STAYS: Final[Mapping[Relation, str]] = {
    VERSIONS: _NOTHING,
    PROTOCOL_UPDATES: _newest(PROTOCOL_UPDATES),
    METADATA_UPDATES: _newest(METADATA_UPDATES),
    DOMAIN_METADATA: _newest(DOMAIN_METADATA, "domain"),
    TXN_ACTIONS: _newest(TXN_ACTIONS, "app_id"),
    REMOVE_FILES: "r.version > :removed_since "
    "AND coalesce(r.deletion_timestamp, 0) > :deleted_after",
    ADD_FILES: "EXISTS (SELECT 1 FROM dl_active_files AS f WHERE f.table_id = :table_id "
    "AND f.path = r.path AND f.dv_id = r.dv_id AND f.added_version = r.version "
    "AND f.removed_version > :keep)",
    CDC_FILES: _NOTHING,
    OTHER_ACTIONS: _NOTHING,
    MIRROR_STATUS: _NOTHING,
}
"""For each relation of the ledger, which of its rows `r` before `keep` a retained version needs."""

EXPIRING: Final = (*_STAYS, UNPLANNED_FILES)
"""Every relation with rows that expire and are restored. The keys of files are rebuilt."""


# --- which versions -----------------------------------------------------------------------


def first_version(session: Session, table_id: str) -> int | None:
    """The oldest version of a table that the ledger has."""
    row = session.one("first_version", table_id=table_id)
    return None if row is None or row[0] is None else int(row[0])


def oldest_to_keep(session: Session, table_id: str, cutoff_ms: int) -> int | None:
    """The oldest version to keep, if everything from the time `cutoff_ms` on is to stay.

    It is the newest one of that time; versions that are not published stay in any case.
    """
    row = session.one("version_at_timestamp", table_id=table_id, timestamp=cutoff_ms)
    waiting = session.one("first_unpublished", table_id=table_id)
    if row is None:
        return None
    return min(int(oldest[0]) for oldest in (row, waiting) if oldest and oldest[0] is not None)


# --- rows on their way out, and back ------------------------------------------------------


def expiring_rows(
    session: Session, relation: Relation, horizon: Horizon
) -> Iterator[tuple[list[Row], list[bool]]]:
    """Yield the rows of expiring versions, and of older ones that no version needs.

    Beside each page of them: whether each row stays in the catalog nevertheless.
    """
    read = _reader(relation, session)
    statement = _statements(session.engine, relation).select
    for page in session.stream(statement.sql, statement.params(horizon), size=_PAGE):
        yield [read(row) for row in page], [bool(row[-1]) for row in page]


def count_expiring(session: Session, relation: Relation, horizon: Horizon) -> int:
    """How many rows would go."""
    statement = _statements(session.engine, relation).count
    return int(session.execute(statement.sql, statement.params(horizon))[0][0])


def delete_expired(session: Session, relation: Relation, horizon: Horizon) -> int:
    """Delete the rows that do not stay; how many there were."""
    statement = _statements(session.engine, relation).delete
    return session.execute_count(statement.sql, statement.params(horizon))


def restore_rows(
    session: Session, relation: Relation, rows: Sequence[Row], *, plan: Plan = ()
) -> None:
    """Insert rows that were deleted, in the form of `expiring_rows`."""
    if relation is UNPLANNED_FILES and plan:
        session.insert(ACTIVE_FILES, planned_rows(rows, plan))
    else:
        session.insert(relation, rows)


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement in the style of its driver, and the parameters it names: more are refused."""

    sql: str
    names: tuple[str, ...]

    def params(self, horizon: Horizon) -> dict[str, object]:
        return {name: getattr(horizon, name) for name in self.names}


@dataclass(frozen=True, slots=True)
class _Statements:
    select: _Statement
    count: _Statement
    delete: _Statement


@cache
def _statements(engine: Engine, relation: Relation) -> _Statements:
    columns = ", ".join(f"r.{column}" for column in relation.columns)
    stays = _STAYS.get(relation, _NOTHING)
    if relation is UNPLANNED_FILES:
        old = "r.table_id = :table_id AND r.removed_version <= :keep"
        archived = "1 = 1"
    else:
        old = "r.table_id = :table_id AND r.version < :keep"
        archived = f"(r.version >= :first OR NOT ({stays}))"
    source = f"FROM {relation.name} AS r WHERE {old} AND"

    def statement(text: str) -> _Statement:
        names = dict.fromkeys(re.findall(r":(\w+)", text))
        return _Statement(rewrite(text, engine), tuple(names))

    return _Statements(
        statement(f"SELECT {columns}, CASE WHEN {stays} THEN 1 ELSE 0 END {source} {archived}"),
        statement(f"SELECT count(*) {source} NOT ({stays})"),
        statement(f"DELETE {source} NOT ({stays})"),
    )


# --- values -------------------------------------------------------------------------------


def _reader(relation: Relation, session: Session) -> Callable[[Row], Row]:
    """Rows as the engine gives them, in the form that is the same for all."""
    decode = session.decode_text
    ways: list[Callable[[Any], Any] | None] = []
    for kind in relation.kinds:
        if kind is Kind.TEXT:
            ways.append(decode)
        elif kind is Kind.BOOL:
            ways.append(bool)
        elif kind is Kind.LIST:
            ways.append(lambda value: [decode(item) for item in _list(value)])
        elif kind is Kind.MAP:
            ways.append(lambda value: _decode_document(value, decode))
        else:
            ways.append(None)

    def read(row: Row) -> Row:
        return tuple(
            value if way is None or value is None else way(value)
            for way, value in zip(ways, row, strict=False)
        )

    return read


def _list(value: Any) -> Sequence[str]:
    items: Sequence[str] = json.loads(value) if isinstance(value, str) else value
    return items


def _decode_document(text: str, decode: Callable[[str], str]) -> str:
    """JSON whose strings the engine may have stored in another form."""
    return text if decode(text) == text else dumps(_decoded(loads(text), decode))


def _decoded(value: Any, decode: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return decode(value)
    if isinstance(value, list):
        return [_decoded(item, decode) for item in value]
    if isinstance(value, dict):
        return {decode(key): _decoded(item, decode) for key, item in value.items()}
    return value
