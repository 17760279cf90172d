"""Values for tables and versions of the catalog, and their rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from deltalakedb.actions import Action, AddFile, CommitInfo, RemoveFile
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.errors import InvalidActionError
from deltalakedb.store.rows import read_commit_info

if TYPE_CHECKING:
    from deltalakedb.store.dialect import Row, Session

_MAX_LONG = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A registered table, with the newest protocol and properties repeated for listings."""

    table_id: str
    name: str
    location: str
    protocol_min_reader: int
    protocol_min_writer: int
    properties: Mapping[str, str]
    created_at: int
    updated_at: int
    plan: str | None = None
    """The planned columns of the keys of its files (see actions.planning)."""
    allowed_roots: tuple[str, ...] = ()
    """Where files of the table may lie beside its location."""

    def to_row(self) -> Row:
        """The row of dl_tables."""
        return (
            self.table_id,
            self.name,
            self.location,
            self.protocol_min_reader,
            self.protocol_min_writer,
            dumps(self.properties),
            self.created_at,
            self.updated_at,
            self.plan,
            roots_text(self.allowed_roots),
        )

    @classmethod
    def from_row(cls, row: Row, session: Session) -> TableRecord:
        """The inverse of `to_row`, for what a query on dl_tables gives back."""
        table_id, name, location, reader, writer, properties, created_at, updated_at, *rest = row
        plan, roots = rest
        decode = session.decode_text
        return cls(
            table_id=table_id,
            name=decode(name),
            location=decode(location),
            protocol_min_reader=reader,
            protocol_min_writer=writer,
            properties={decode(k): decode(v) for k, v in json.loads(properties).items()},
            created_at=created_at,
            updated_at=updated_at,
            plan=None if plan is None else decode(plan),
            allowed_roots=() if roots is None else tuple(json.loads(decode(roots))),
        )


def roots_text(roots: Sequence[str]) -> str | None:
    """Allowed roots as dl_tables has them."""
    return json.dumps(list(roots)) if roots else None


class Counts(NamedTuple):
    """How much a commit changed, and what was live after it: columns of dl_table_versions."""

    num_actions: int = 0
    num_adds: int = 0
    num_removes: int = 0
    bytes_added: int = 0
    bytes_removed: int = 0
    live_files: int = 0
    live_bytes: int = 0


class VersionRecord(NamedTuple):
    """A commit in the ledger: time, committer, commitInfo, and counts.

    The ledger repeats operation, parameters and metrics in columns of their own, to be searched.
    """

    table_id: str
    version: int
    committed_at: int
    recorded_at: int
    committer: str | None = None
    commit_info: CommitInfo | None = None
    commit_uuid: str | None = None
    transaction_id: str | None = None
    counts: Counts = Counts()
    commit_info_text: str | None = None
    """The commitInfo as canonical JSON, if it was serialised before."""

    @property
    def timestamp(self) -> datetime:
        """When it was committed, in UTC."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.committed_at)

    @property
    def operation(self) -> str | None:
        """What was done, e.g. `WRITE` or `MERGE`."""
        return None if self.commit_info is None else self.commit_info.operation

    @property
    def operation_parameters(self) -> Mapping[str, Any]:
        """How it was done."""
        return (self.commit_info and self.commit_info.operation_parameters) or {}

    @property
    def operation_metrics(self) -> Mapping[str, Any]:
        """How much was done, as text."""
        return (self.commit_info and self.commit_info.operation_metrics) or {}

    def to_row(self) -> Row:
        """The row of dl_table_versions."""
        info = self.commit_info or CommitInfo()
        return (
            self.table_id,
            self.version,
            self.committed_at,
            self.committer,
            info.operation,
            _json(info.operation_parameters),
            _json(info.operation_metrics),
            self.commit_info_text or _json(None if self.commit_info is None else info.fields),
            self.commit_uuid,
            self.transaction_id,
            *self.counts,
            self.recorded_at,
        )

    @classmethod
    def from_row(cls, row: Row, session: Session) -> VersionRecord:
        """The inverse of `to_row`, for what a query on dl_table_versions gives back."""
        committer = row[3]
        return cls(
            table_id=row[0],
            version=row[1],
            committed_at=row[2],
            recorded_at=row[17],
            committer=None if committer is None else session.decode_text(committer),
            commit_info=read_commit_info(row[7]),
            commit_uuid=row[8],
            transaction_id=row[9],
            counts=Counts(*row[10:17]),
        )


class Payload(NamedTuple):
    """What the mirror has to publish for a version."""

    data: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class ActiveFilesProblem:
    """A difference between dl_active_files and the ledger: a row `missing` or `extra`."""

    problem: str
    path: str
    dv_id: str
    added_version: int
    removed_version: int


def account(
    before: Counts,
    actions: Iterable[Action],
    live: Mapping[tuple[str, str], int],
    *,
    num_others: int = 0,
) -> tuple[Counts, list[tuple[str, str]]]:
    """Counts of a commit on top of `before`, and the live files whose interval it ends.

    `live` maps the (path, dv_id) that are live and touched by the commit to their sizes;
    `num_others` is how many actions it has beside `actions`.
    """
    adds = removes = bytes_added = bytes_removed = 0
    total = num_others
    live_files, live_bytes = before.live_files, before.live_bytes
    closing: list[tuple[str, str]] = []
    for action in actions:
        total += 1
        if isinstance(action, AddFile):
            adds += 1
            bytes_added += action.size
            live_files += 1
            live_bytes += action.size
        elif isinstance(action, RemoveFile):
            removes += 1
            bytes_removed += action.size or 0
        else:
            continue
        key = (action.path, action.dv_id)
        if key in live:
            closing.append(key)
            live_files -= 1
            live_bytes -= live[key]
    if max(bytes_added, bytes_removed, live_bytes) > _MAX_LONG:
        raise InvalidActionError(
            "The sizes of the files of this commit add up to more than a long can hold",
            why=f"{max(bytes_added, bytes_removed, live_bytes)} bytes",
            fix="Pass the real sizes of the files",
        )
    return Counts(total, adds, removes, bytes_added, bytes_removed, live_files, live_bytes), closing


def _json(value: Mapping[str, Any] | None) -> str | None:
    if not value:
        return None if value is None else "{}"
    return dumps(value)
