"""Reads a table at a version: metadata, protocol, app transactions, domains, history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from deltalakedb.actions import Metadata, Protocol, Txn
from deltalakedb.store.queries import load_queries
from deltalakedb.store.relations import LIVE, METADATA_UPDATES, PROTOCOL_UPDATES, TXN_ACTIONS
from deltalakedb.store.rows import Counts, VersionRecord, from_row

if TYPE_CHECKING:
    from deltalakedb.store.dialect import Row, Session

_PAGE = 1_000
NO_LIMIT = 2**62  # DuckDB takes no more
_COUNTS = 3
_UPDATES = _COUNTS + len(Counts._fields)
_METADATA = _UPDATES + 2
_PROTOCOL = _METADATA + len(METADATA_UPDATES.columns)


class Known(NamedTuple):
    """The metaData and the protocol that a reader holds already, and the versions that set them.

    `newest` is the head as it was last seen: while it stays there, nothing of it can change.
    """

    metadata_version: int = -1
    metadata: Metadata | None = None
    protocol_version: int = -1
    protocol: Protocol | None = None
    newest: OpenedVersion | None = None


class OpenedVersion(NamedTuple):
    """A table at a version. Without a ledger row of that version, only `head` is known."""

    head: int
    version: int | None
    committed_at: int
    counts: Counts
    known: Known


def open_version(
    session: Session,
    table_id: str,
    *,
    version: int | None = None,
    timestamp: int | None = None,
    known: Known,
) -> OpenedVersion | None:
    """The table at `version`, as it was at `timestamp`, or at its head; None when there is none.

    It is one statement, which is one instant. Of `known` only what has changed is read again.
    """
    if session.opens_in_steps and known.newest and version is None and timestamp is None:
        head = session.one("head", table_id=table_id)
        if head is None or head[0] == known.newest.head:
            return None if head is None else known.newest._replace(known=known)
    row = session.open_version(table_id, version, timestamp, known[0], known[2])
    if row is None:
        return None
    if row[1] is None:
        return OpenedVersion(int(row[0]), None, 0, Counts(), Known())
    opened = OpenedVersion(int(row[0]), row[1], row[2], Counts(*row[_COUNTS:_UPDATES]), Known())
    held = _updated(session, row, known)._replace(
        newest=opened if opened.version == opened.head else None
    )
    return opened._replace(known=held)


def _updated(session: Session, row: Row, known: Known) -> Known:
    metadata_version, protocol_version = row[_UPDATES:_METADATA]
    if metadata_version != known.metadata_version:
        metadata = None
        if metadata_version is not None:
            action = from_row(METADATA_UPDATES, row[_METADATA:_PROTOCOL], session)
            metadata = cast("Metadata", action)
        known = known._replace(
            metadata_version=-1 if metadata is None else metadata_version, metadata=metadata
        )
    if protocol_version != known.protocol_version:
        protocol = None
        if protocol_version is not None:
            action = from_row(PROTOCOL_UPDATES, row[_PROTOCOL:], session)
            protocol = cast("Protocol", action)
        known = known._replace(
            protocol_version=-1 if protocol is None else protocol_version, protocol=protocol
        )
    return known


def available_versions(session: Session, table_id: str) -> list[tuple[int, int]]:
    """The oldest and the newest version there is, each with its time; one, if they are the same."""
    return [(row[0], row[1]) for row in session.run("available_versions", table_id=table_id)]


def app_transactions(session: Session, table_id: str, version: int) -> dict[str, int]:
    """The newest version that each application had recorded."""
    rows = session.run("app_transactions", table_id=table_id, version=version)
    decode = session.decode_text
    return {decode(app_id): number for app_id, number in rows if number is not None}


def txns(session: Session, table_id: str, version: int) -> list[Txn]:
    """The newest action of each application, by app id."""
    rows = session.run("txns_at", table_id=table_id, version=version)
    return [cast("Txn", from_row(TXN_ACTIONS, row, session)) for row in rows]


def is_published(session: Session, table_id: str, version: int) -> bool:
    """Whether the commit file of a version is known to be in `_delta_log`."""
    row = session.one("mirror_state", table_id=table_id, version=version)
    return row is not None and row[0] == "SUCCEEDED"


def domain_metadata(session: Session, table_id: str, version: int) -> dict[str, str]:
    """The configuration of each metadata domain that was not removed."""
    rows = session.run("domains_at", table_id=table_id, version=version)
    decode = session.decode_text
    return {decode(domain): decode(configuration) for domain, configuration in rows}


def has_file(session: Session, table_id: str, version: int, path: str, dv_id: str | None) -> bool:
    """Whether a file is live: with that deletion vector ('' for none), or None for any."""
    key = {"table_id": table_id, "version": version, "path": path}
    if dv_id is None:
        return session.one("has_path", **key) is not None
    return session.one("has_file", dv_id=dv_id, **key) is not None


class HistoryFilter(NamedTuple):
    """A selection of commits; None selects all. Both ends of the time are included."""

    operation: str | None = None
    committer: str | None = None
    since: int = 0
    until: int = LIVE


def find_history(
    session: Session, table_id: str, wanted: HistoryFilter, *, limit: int
) -> list[VersionRecord]:
    """The newest `limit` commits of the selection, newest first."""
    rows = session.run("find_history", table_id=table_id, limit=limit, **wanted._asdict())
    return [VersionRecord.from_row(row, session) for row in rows]


def stream_history(
    session: Session, table_id: str, wanted: HistoryFilter
) -> Iterator[VersionRecord]:
    """All commits of the selection, newest first, in bounded memory.

    Until it is exhausted or closed, nothing else may be asked of the session.
    """
    query = load_queries(session.engine)["find_history"]
    params = {"table_id": table_id, "limit": NO_LIMIT, **wanted._asdict()}
    for rows in session.stream(query, params, size=_PAGE):
        for row in rows:
            yield VersionRecord.from_row(row, session)
