"""Resolves a version, a timestamp or the head to the table at that version."""

from __future__ import annotations

import operator
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from deltalakedb.actions import Metadata, Protocol
from deltalakedb.errors import (
    ConfigurationError,
    CorruptCatalogError,
    DeltaLakeDbError,
    InvalidArgumentError,
    Option,
    VersionNotFoundError,
)
from deltalakedb.formatting import format_time
from deltalakedb.store import Counts
from deltalakedb.store.table_lookup import not_registered
from deltalakedb.store.versions import Known, OpenedVersion, available_versions, open_version
from deltalakedb.telemetry import span

if TYPE_CHECKING:
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MAX_LONG = 2**63 - 1


class OpenedTable(NamedTuple):
    """A table at a version that exists and is complete."""

    head: int
    version: int
    committed_at: int
    counts: Counts
    metadata: Metadata
    protocol: Protocol
    known: Known


def resolve(
    store: Store,
    table: TableRecord,
    *,
    version: int | None = None,
    timestamp: datetime | str | None = None,
    known: Known | None = None,
    session: Session | None = None,
) -> OpenedTable:
    """Return the table at an existing version, in one statement.

    `timestamp` selects the newest version committed by then. A version or time outside the range
    raises VersionNotFoundError, which names the range. Without a `session` the statement is a
    transaction of its own.
    """
    if version is not None and timestamp is not None:
        raise ConfigurationError(
            "Both a version and a timestamp are set", fix="Pass one of the two"
        )
    wanted = None if version is None else _whole(version)
    moment = None if timestamp is None else to_milliseconds(timestamp)
    held = known or Known()

    def question(session: Session) -> OpenedVersion | None:
        return open_version(
            session,
            table.table_id,
            # A driver would refuse a version beyond a long; no ledger has one.
            version=None if wanted is None else max(-1, min(wanted, _MAX_LONG)),
            timestamp=moment,
            known=held,
        )

    start = time.perf_counter()
    with span("deltalakedb.open", table=table.name):
        opened = store.dialect.ask(question) if session is None else question(session)
    store.metrics.observe("metadata_open_latency_ms", (time.perf_counter() - start) * 1000)
    if opened is None:
        if session is not None:
            raise not_registered(session, table)
        raise store.dialect.ask(lambda asked: not_registered(asked, table))
    if opened.version is None and wanted is None and moment is None:
        raise _incomplete(table, opened.head)
    too_late = moment is not None and opened.version == opened.head and moment > opened.committed_at
    if opened.version is None or too_late:
        raise _outside(store, table, wanted, moment)
    metadata, protocol = opened.known.metadata, opened.known.protocol
    if metadata is None or protocol is None:
        raise _incomplete(table, opened.version)
    return OpenedTable(
        opened.head,
        opened.version,
        opened.committed_at,
        opened.counts,
        metadata,
        protocol,
        opened.known,
    )


def _incomplete(table: TableRecord, version: int) -> DeltaLakeDbError:
    return CorruptCatalogError(
        f"Version {version} of table {table.name!r} is incomplete",
        why="Its ledger row, metadata or protocol is missing",
        fix="Restore a backup of the catalog, or import the table again from its _delta_log",
    )


def check_version(store: Store, table: TableRecord, version: int) -> None:
    """Raise VersionNotFoundError if a version has expired."""
    there = store.dialect.ask(
        lambda session: session.one("has_version", table_id=table.table_id, version=version)
    )
    if there is None:
        raise _outside(store, table, version, None)


def _outside(
    store: Store, table: TableRecord, version: int | None, moment: int | None
) -> DeltaLakeDbError:
    """Return the error that names the available versions."""
    there = store.dialect.ask(lambda session: available_versions(session, table.table_id))
    if not there:
        return _incomplete(table, 0)
    (first, first_at), (last, last_at) = there[0], there[-1]
    span_text = (
        f"It has versions {first} ({format_time(first_at)}) to {last} ({format_time(last_at)})"
    )
    if moment is None:
        return VersionNotFoundError(
            f"Table {table.name!r} has no version {version}",
            why=span_text,
            fix="Choose one of those, or leave the version out for the newest",
        )
    return VersionNotFoundError(
        f"Table {table.name!r} has no version at {format_time(moment)}",
        why=f"That is {'before the first' if moment < first_at else 'after the last'} commit. "
        f"{span_text}",
        fix="Choose a time in between, or leave the timestamp out for the newest version",
    )


def _whole(version: object) -> int:
    if not isinstance(version, bool):
        try:
            return operator.index(version)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise InvalidArgumentError(
        f"version={version!r} is no whole number",
        fix=f"Pass an int, or a time as {Option('timestamp')}",
    )


def to_milliseconds(moment: datetime | str, *, name: str = "timestamp") -> int:
    """Return a time in milliseconds since the epoch, rounded down.

    Text is ISO 8601; a time without a zone is in UTC.
    """
    parsed: object = moment
    if isinstance(parsed, str):
        try:
            parsed = datetime.fromisoformat(parsed.strip())
        except ValueError:
            raise InvalidArgumentError(
                f"The {name} {moment!r} is not a time",
                fix="Write it like 2026-11-01 or 2026-11-01T00:00:00Z",
            ) from None
    if not isinstance(parsed, datetime):
        raise InvalidArgumentError(
            f"The {name} {moment!r} is not a time",
            fix="Pass a datetime, or text like 2026-11-01T00:00:00Z",
        )
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return (parsed - EPOCH) // _MILLISECOND


def to_datetime(milliseconds: int) -> datetime:
    """Return the inverse of `to_milliseconds`, in UTC."""
    return EPOCH + timedelta(milliseconds=milliseconds)
