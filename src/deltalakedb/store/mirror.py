"""The queue of the mirror and its state of each table, as verbs inside a transaction.

Guarantees:

- A version that is SUCCEEDED stays so: a later failure of another publisher is ignored.
- A lease has one owner at a time, as far as the clocks of the workers agree: on Postgres they have
  one clock, the server's. The generation of a lease distinguishes its owners.
- A lease ends whatever the clock of its owner is: one that exceeds the longest duration is over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from deltalakedb.errors import Fix

if TYPE_CHECKING:
    from deltalakedb.store.dialect import Session

ErrorKind = Literal["transient", "permanent"]

LONGEST_LEASE_MS: Final = 60_000


def is_leased(owner: str | None, expires_at: int, now: int) -> bool:
    """Whether a lease holds at `now`."""
    return owner is not None and now < expires_at <= now + LONGEST_LEASE_MS


class WorkItem(NamedTuple):
    """A version that is to be published. `payload` is None where it is large, or missing."""

    version: int
    attempts: int
    digest: str
    payload_bytes: int
    payload: bytes | None
    next_attempt_at: int
    created_at: int
    drifted: bool


class Work(NamedTuple):
    """A table with something to publish."""

    table_id: str
    next_attempt_at: int
    drifted: bool
    busy: bool


class MirrorTable(NamedTuple):
    """What the mirror knows of a table beside its queue."""

    owner: str | None = None
    generation: int = 0
    expires_at: int = 0
    checkpoint_version: int | None = None
    checkpoint_error: str | None = None
    cleaned_at: int = 0
    drift: Mapping[str, Any] | None = None


def backlog(session: Session, table_id: str, limit: int) -> list[WorkItem]:
    """The oldest versions that are not published."""
    rows = session.run_binary("mirror_backlog", table_id=table_id, limit=limit)
    return [
        WorkItem(
            version=int(row[0]),
            attempts=int(row[1]),
            digest=row[2],
            payload_bytes=int(row[3]),
            payload=None if row[4] is None else bytes(row[4]),
            next_attempt_at=int(row[5]),
            created_at=int(row[6]),
            drifted=bool(row[7]),
        )
        for row in rows
    ]


def payload_of(session: Session, table_id: str, version: int) -> bytes | None:
    """The bytes to publish; None where they are gone, or published already."""
    rows = session.run_binary("mirror_payload", table_id=table_id, version=version)
    return None if not rows or rows[0][0] is None else bytes(rows[0][0])


def set_payload(session: Session, table_id: str, version: int, payload: bytes, *, now: int) -> None:
    """Put back the bytes to publish, and let them be tried at once."""
    session.changed("set_payload", table_id=table_id, version=version, payload=payload, now=now)


def backlog_size(session: Session, table_id: str) -> int:
    """How many versions of a table are not published."""
    row = session.one("mirror_backlog_size", table_id=table_id)
    return 0 if row is None else int(row[0])


def mark_published(session: Session, table_id: str, first: int, last: int, *, now: int) -> None:
    """The commit files of these versions are there, with the bytes that were promised."""
    session.changed("mark_published", table_id=table_id, first=first, last=last, now=now)


def mark_failed(
    session: Session,
    table_id: str,
    version: int,
    *,
    error: str,
    kind: ErrorKind,
    next_attempt_at: int,
    now: int,
) -> bool:
    """A try to publish has failed; False, and nothing, where another one succeeded meanwhile."""
    changed = session.changed(
        "mark_failed",
        table_id=table_id,
        version=version,
        error=error,
        kind=kind,
        next_attempt_at=next_attempt_at,
        now=now,
    )
    return changed > 0


def find_work(session: Session, *, owner: str, now: int) -> list[Work]:
    """Every table with something to publish, longest first; `busy` where another worker has it."""
    rows = session.run("mirror_work", owner=owner, now=now, latest=now + LONGEST_LEASE_MS)
    return [Work(row[0], int(row[1]), bool(row[2]), bool(row[3])) for row in rows]


def find_neglected(session: Session, *, now: int, before: int) -> list[str]:
    """The tables whose last worker died, or met an error after publishing and before `before`."""
    session.read_all()
    rows = session.run("mirror_neglected", now=now, before=before, latest=now + LONGEST_LEASE_MS)
    return [row[0] for row in rows]


def newest_published(session: Session, table_id: str) -> int | None:
    """The newest version whose commit file is there."""
    row = session.one("mirror_newest", table_id=table_id)
    return None if row is None else int(row[0])


def mirror_table(session: Session, table_id: str) -> MirrorTable:
    """Return the state of a table; empty if no worker has handled it."""
    row = session.one("mirror_table", table_id=table_id)
    if row is None:
        return MirrorTable()
    drift = None if row[6] is None else json.loads(row[6])
    return MirrorTable(row[0], int(row[1]), int(row[2]), row[3], row[4], int(row[5]), drift)


class Taken(NamedTuple):
    """A lease that was taken."""

    generation: int
    was_left: bool
    """Whether the last one to have it died, or could not finish."""


def take_lease(
    session: Session, table_id: str, *, owner: str, now: int, expires_at: int
) -> Taken | None:
    """The lease that `owner` has now, or None while another holds it."""
    before = mirror_table(session, table_id)
    if before.generation == 0:
        session.changed("begin_mirror_table", table_id=table_id, now=now)
    row = session.one(
        "take_lease",
        table_id=table_id,
        owner=owner,
        now=now,
        latest=now + LONGEST_LEASE_MS,
        expires_at=expires_at,
    )
    if row is None:
        return None
    was_left = before.owner not in (None, owner) or before.checkpoint_error is not None
    return Taken(int(row[0]), was_left)


def renew_lease(
    session: Session, table_id: str, *, owner: str, generation: int, now: int, expires_at: int
) -> bool:
    """Whether the lease is still this one, and lasts longer now."""
    renewed = session.changed(
        "renew_lease",
        table_id=table_id,
        owner=owner,
        generation=generation,
        now=now,
        expires_at=expires_at,
    )
    return renewed == 1


def release_lease(
    session: Session, table_id: str, *, owner: str, generation: int, now: int
) -> None:
    """Give a lease back; one that is another's by now is left alone."""
    session.changed("release_lease", table_id=table_id, owner=owner, generation=generation, now=now)


def set_drift(
    session: Session, table_id: str, drift: Mapping[str, Any] | None, *, now: int
) -> None:
    """Stop publishing a table because of what its log holds, or go on (None)."""
    session.changed("begin_mirror_table", table_id=table_id, now=now)
    text = None if drift is None else json.dumps(drift, ensure_ascii=False)
    session.changed("set_drift", table_id=table_id, drift=text, now=now)


def drift_way_out(name: str) -> str:
    """How a table that has drifted can be written again."""
    return (
        f"List the differences with {Fix('lake.verify', name)}, and adopt the foreign commits with "
        f"{Fix('lake.adopt', name)}. To reject them, move them out of _delta_log, then run "
        f"{Fix('lake.mirror.retry', name)}. With `connect(…, on_drift='allow')` commits continue, "
        "but cannot be published"
    )


def retry_table(session: Session, table_id: str, *, now: int) -> None:
    """Retry a table at once, whatever its last failure and the owner of its lease."""
    session.changed("retry_table", table_id=table_id, now=now)
    session.changed("break_lease", table_id=table_id, now=now)
    set_drift(session, table_id, None, now=now)


def note_checkpoint(session: Session, table_id: str, version: int, *, now: int) -> None:
    """A checkpoint of this version is there."""
    session.changed("begin_mirror_table", table_id=table_id, now=now)
    session.changed("note_checkpoint", table_id=table_id, version=version, now=now)


def note_upkeep(session: Session, table_id: str, error: str | None, *, now: int) -> None:
    """How the last checkpoint, checksum or clean-up went."""
    session.changed("begin_mirror_table", table_id=table_id, now=now)
    session.changed("note_upkeep", table_id=table_id, error=error, now=now)


def note_cleaned(session: Session, table_id: str, *, now: int) -> None:
    """Expired files of the log were deleted just now."""
    session.changed("begin_mirror_table", table_id=table_id, now=now)
    session.changed("note_cleaned", table_id=table_id, now=now)


class Overview(NamedTuple):
    """A row of the query `mirror_overview`."""

    table_id: str
    name: str
    location: str
    head: int
    backlog: int
    backlog_bytes: int
    oldest: int | None
    status: str | None
    attempts: int | None
    last_error: str | None
    error_kind: str | None
    next_attempt_at: int | None
    waiting_since: int | None
    lease: MirrorTable


def overview(session: Session) -> Sequence[Overview]:
    """Every table with what the mirror still has to do for it."""
    session.read_all()
    decode = session.decode_text
    tables = []
    for row in session.run("mirror_overview"):
        drift = None if row[18] is None else json.loads(row[18])
        lease = MirrorTable(
            row[13], int(row[14] or 0), int(row[15] or 0), row[16], row[17], 0, drift
        )
        tables.append(
            Overview(
                table_id=row[0],
                name=decode(row[1]),
                location=decode(row[2]),
                head=int(row[3]),
                backlog=int(row[4]),
                backlog_bytes=int(row[5]),
                oldest=row[6],
                status=row[7],
                attempts=row[8],
                last_error=None if row[9] is None else decode(row[9]),
                error_kind=row[10],
                next_attempt_at=row[11],
                waiting_since=row[12],
                lease=lease,
            )
        )
    return tables
