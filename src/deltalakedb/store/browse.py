"""Queries of the operations page, inside a transaction that reads.

Guarantees: every answer is bounded, whatever the catalog holds. Lists come in pages, each beginning
after the last row of the one before (no offsets), and nothing reads a whole ledger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from deltalakedb.errors import CorruptCatalogError
from deltalakedb.store.relations import LIVE
from deltalakedb.store.rows import decode_map

if TYPE_CHECKING:
    from deltalakedb.store.dialect import Session

# So many versions are looked at for one page of a search.
SEARCHED = 50_000
# Files are sorted by path within their version, so many at most; of a version with more of them the
# ledger has the order, and so many of its files are looked at for one page.
SORTED = 2_000
LOOKED_AT = 5_000
# The number of files in a distribution, and of commits in a plot of their times and operations.
SAMPLED = 10_000
PLOTTED = 5_000
CONTENDED = 500
_NIL = str(UUID(int=0))
SIZE_BOUNDS = tuple(1024 * 4**n for n in range(11))


class Summary(NamedTuple):
    """The whole catalog in numbers."""

    tables: int
    versions: int
    live_files: int
    live_bytes: int
    backlog: int
    tables_behind: int
    waiting_since: int | None
    tables_drifted: int


class TableLine(NamedTuple):
    """A table at its head, and how its mirror does."""

    table_id: str
    name: str
    location: str
    version: int
    committed_at: int | None
    committer: str | None
    operation: str | None
    live_files: int
    live_bytes: int
    backlog: int
    oldest: int | None
    status: str | None
    attempts: int
    last_error: str | None
    error_kind: str | None
    next_attempt_at: int | None
    waiting_since: int | None
    lease_owner: str | None
    lease_expires_at: int
    checkpoint_version: int | None
    checkpoint_error: str | None
    drift: Mapping[str, Any] | None


class VersionLine(NamedTuple):
    """A commit."""

    version: int
    committed_at: int
    committer: str | None
    operation: str | None
    operation_parameters: Mapping[str, Any] | None
    transaction_id: str | None
    num_adds: int
    num_removes: int
    bytes_added: int
    bytes_removed: int
    live_files: int
    live_bytes: int
    rebased_over: int | None
    """How many commits of others came between what it had read and itself; None: not known."""


class ChangeLine(NamedTuple):
    """A commit, and the name of its table."""

    name: str
    version: int
    committed_at: int
    committer: str | None
    operation: str | None
    operation_parameters: Mapping[str, Any] | None
    transaction_id: str | None
    num_adds: int
    num_removes: int
    bytes_added: int
    bytes_removed: int
    live_files: int
    live_bytes: int
    rebased_over: int | None


class Growth(NamedTuple):
    """How large a table was at a version."""

    version: int
    committed_at: int
    live_files: int
    live_bytes: int


class FileLine(NamedTuple):
    """A live file."""

    path: str
    dv_id: str
    size_bytes: int
    modification_time: int
    added_version: int
    partition_values: Mapping[str, str | None]


class SizeCount(NamedTuple):
    """How many files are smaller than `below` (None: the largest) and not smaller than the last."""

    below: int | None
    files: int
    bytes: int


def summary(session: Session) -> Summary:
    """The whole catalog in numbers."""
    (row,) = session.run("browse_summary")
    numbers = [None if value is None else int(value) for value in row]
    return Summary(*numbers)  # type: ignore[arg-type]


def tables(
    session: Session,
    *,
    limit: int,
    after: str = "",
    name: str | None = None,
    contains: str | None = None,
    behind: bool = False,
) -> list[TableLine]:
    """The next `limit` tables by name, after `after`."""
    pattern = None
    if contains:
        for char in "!%_":
            contains = contains.replace(char, f"!{char}")
        pattern = f"%{contains}%"
    rows = session.run(
        "browse_tables",
        after=after,
        name=name,
        pattern=pattern,
        behind=int(behind),
        limit=limit,
    )
    return [
        TableLine(
            str(row[0]),
            session.decode_text(row[1]),
            session.decode_text(row[2]),
            int(row[3]),
            row[4],
            _text(session, row[5]),
            _text(session, row[6]),
            int(row[7] or 0),
            int(row[8] or 0),
            int(row[9]),
            row[10],
            row[11],
            int(row[12] or 0),
            _text(session, row[13]),
            row[14],
            row[15] or None,
            row[16],
            row[17],
            int(row[18] or 0),
            row[19],
            _text(session, row[20]),
            _json(row[21]),
        )
        for row in rows
    ]


class Changes(NamedTuple):
    """Commits with the names of their tables, and where to go on: None at the end."""

    changes: list[ChangeLine]
    before: tuple[int, str] | None


def changes(
    session: Session,
    *,
    limit: int,
    before: tuple[int, str] | None = None,
    operation: str | None = None,
    committer: str | None = None,
    since: int = 0,
    until: int = LIVE,
) -> Changes:
    """The newest `limit` commits of all tables that fit, of those before (time, table id) `before`.

    One call looks at most at `SEARCHED` commits, as `versions` does.
    """
    start = (min(until, LIVE - 1) + 1, _NIL)
    committed_at, table_id = start if before is None else min(before, start)
    end = None
    if operation is not None or committer is not None:  # else every commit fits
        end = session.one(
            "browse_changes_end",
            committed_at=committed_at,
            table_id=table_id,
            since=since,
            searched=SEARCHED - 1,
        )
    first = (since, _NIL) if end is None else (int(end[0]), str(end[1]))
    rows = session.run(
        "browse_changes",
        committed_at=committed_at,
        table_id=table_id,
        first_at=first[0],
        first_id=first[1],
        operation=operation,
        committer=committer,
        limit=limit,
    )
    lines = [ChangeLine(session.decode_text(row[1]), *_version(session, row[2:])) for row in rows]
    if len(lines) == limit:
        return Changes(lines, (lines[-1].committed_at, str(rows[-1][0])))
    return Changes(lines, None if end is None else first)


class Stretch(NamedTuple):
    """The result of a search, and where it continues: `before`, or None at its end."""

    versions: list[VersionLine]
    before: int | None


def versions(
    session: Session,
    table_id: str,
    *,
    limit: int,
    before: int | None = None,
    operation: str | None = None,
    committer: str | None = None,
    since: int = 0,
    until: int = LIVE,
) -> Stretch:
    """The newest `limit` commits that fit, of those before version `before`.

    One call looks at most at `SEARCHED` versions: it may find fewer than there are, even none, and
    then says where to go on. Times are turned into versions by their index first: they
    increase with the version.
    """
    newest = _version_at(session, table_id, until)
    if newest is None:
        return Stretch([], None)
    end = newest + 1 if before is None else min(before, newest + 1)
    older = None if since == 0 else _version_at(session, table_id, since - 1)
    oldest = session.run("available_versions", table_id=table_id)[0][0]
    floor = max(oldest, 0 if older is None else older + 1)
    first = max(floor, end - SEARCHED)
    rows = session.run(
        "browse_versions",
        table_id=table_id,
        first=first,
        before=end,
        operation=operation,
        committer=committer,
        limit=limit,
    )
    lines = [_version(session, row) for row in rows]
    following = lines[-1].version if len(lines) == limit else first
    return Stretch(lines, following if following > floor else None)


def _version(session: Session, row: Sequence[Any]) -> VersionLine:
    return VersionLine._make(
        [
            *(row[0], row[1], _text(session, row[2]), _text(session, row[3]), _json(row[4])),
            None if row[5] is None else str(row[5]),
            *row[6:12],
            _rebased(row[0], _json(row[12])),
        ]
    )


def _rebased(version: int, info: object) -> int | None:
    """Over how many commits one was rebased."""
    return _passed(version, info.get("readVersion")) if isinstance(info, dict) else None


def _passed(version: int, read: Any) -> int | None:
    # What others wrote of their commits may be anything.
    try:
        passed = version - 1 - int(read)
    except (TypeError, ValueError, OverflowError):
        return None
    return passed if 0 <= passed < version else None


def _version_at(session: Session, table_id: str, timestamp: int) -> int | None:
    row = session.one("version_at_timestamp", table_id=table_id, timestamp=timestamp)
    return None if row is None else int(row[0])


def growth(session: Session, table_id: str, *, points: int) -> list[Growth]:
    """The size of a table at about `points` versions from the first to the last."""
    ends = session.run("available_versions", table_id=table_id)
    if not ends:
        return []
    first, last = int(ends[0][0]), int(ends[-1][0])
    step = max(1, -(-(last - first) // points))
    rows = session.run("browse_growth", table_id=table_id, first=first, last=last, step=step)
    growth_points = [Growth(*row) for row in rows]
    if not growth_points or growth_points[-1].version != last:
        rows = session.run("browse_growth", table_id=table_id, first=last, last=last, step=1)
        growth_points += [Growth(*row) for row in rows]
    return growth_points


class Activity(NamedTuple):
    """The number of commits in each stretch of `step_ms`, from `since` on.

    `counted` are all of them. They are the newest, where there are more.
    """

    since: int
    step_ms: int
    commits: list[int]
    counted: int


def activity(session: Session, table_id: str | None = None, *, bars: int) -> Activity:
    """When a table was committed to, or (the newest `PLOTTED` commits) any table.

    At most `bars` stretches, of a length that people count in.
    """
    if table_id is None:
        times = [int(row[0]) for row in session.run("browse_activity", limit=PLOTTED)]
        if not times:
            return Activity(0, _STEPS[0], [], 0)
        since, step = _stretches(times[-1], times[0], bars)
        commits = [0] * ((times[0] - since) // step + 1)
        for at in times:
            commits[(at - since) // step] += 1
        return Activity(since, step, commits, len(times))
    ends = session.run("available_versions", table_id=table_id)
    if not ends:
        return Activity(0, _STEPS[0], [], 0)
    (first, first_at), (last, last_at) = ends[0], ends[-1]
    since, step = _stretches(first_at, last_at, bars)
    end = last_at - (last_at - since) % step + step
    rows = session.run(
        "browse_versions_at", table_id=table_id, first=since + step, last=end, step=step
    )
    newest = {int(row[0]): row[1] for row in rows}
    commits, seen = [], first - 1
    for moment in range(since + step, end + 1, step):
        reached = newest.get(moment)
        reached = seen if reached is None else int(reached)
        commits.append(reached - seen)
        seen = reached
    return Activity(since, step, commits, last - first + 1)


_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_STEPS = (
    *(_SECOND, 5 * _SECOND, 15 * _SECOND, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 3 * _HOUR),
    *(6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY, 91 * _DAY, 364 * _DAY),
)


def _stretches(first: int, last: int, bars: int) -> tuple[int, int]:
    """Where to begin, and a step so that at most `bars` of them hold all from first to last."""
    step = next((one for one in _STEPS if last // one - first // one < bars), _STEPS[-1])
    while last // step - first // step >= bars:
        step *= 2
    return first - first % step, step


class Contention(NamedTuple):
    """How the newest commits of all tables got on with each other, as the catalog remembers it.

    A commit whose writer had looked at the table before others committed was `rebased` over them.
    """

    commits: int
    rebased: int
    rebased_over_most: int


def contention(session: Session) -> Contention:
    """Of the newest `CONTENDED` commits."""
    rows = session.run("browse_contention", limit=CONTENDED)
    passed = [_passed(int(version), read) or 0 for version, read in rows]
    return Contention(len(rows), sum(count > 0 for count in passed), max(passed, default=0))


class Files(NamedTuple):
    """Live files, and where to go on: version, path and deletion vector, or None at the end."""

    files: list[FileLine]
    after: tuple[int, str, str] | None


def files(
    session: Session, table_id: str, *, limit: int, after: tuple[int, str, str] | None = None
) -> Files:
    """The next `limit` live files: the newest versions first; by path and deletion vector in each.

    `after` is what the page before says. One call sorts at most `SORTED` files and looks at most at
    `LOOKED_AT`, so it may find fewer than there are, and then says where to go on.
    """
    version, path, dv_id = (LIVE, "", "") if after is None else after
    rows = session.run("browse_files_ahead", table_id=table_id, version=version, limit=SORTED)
    if not rows:
        return Files([], None)
    newest, oldest = int(rows[0][0]), int(rows[-1][0])
    if newest < version:
        version, path, dv_id = newest, "", ""
    is_all = sum(int(row[1]) for row in rows) < SORTED
    if newest == oldest and not is_all:
        return _added(session, table_id, limit=limit, after=(version, path, dv_id))
    lines = _files(
        session,
        "browse_files",
        table_id=table_id,
        # The last version that was counted may have more files than that.
        first=oldest if is_all else oldest + 1,
        version=version,
        path=path,
        dv_id=dv_id,
        limit=limit,
    )
    if len(lines) == limit:
        last = lines[-1]
        return Files(lines, (last.added_version, last.path, last.dv_id))
    return Files(lines, None if is_all else (oldest, "", ""))


def _added(session: Session, table_id: str, *, limit: int, after: tuple[int, str, str]) -> Files:
    """The next live files of a version that has too many to sort."""
    version, path, dv_id = after
    of_version: dict[str, Any] = {"table_id": table_id, "version": version}
    begin = {**of_version, "path": path, "dv_id": dv_id}
    end = session.one("browse_added_end", **begin, searched=LOOKED_AT - 1)
    row = end or session.one("browse_added_last", **of_version)
    if row is None:
        raise CorruptCatalogError(
            f"Version {version} has live files that the ledger does not have",
            why="dl_active_files and dl_add_files disagree",
            fix="Run `deltalakedb rebuild`",
        )
    last = (session.decode_text(row[0]), session.decode_text(row[1]))
    lines = _files(
        session, "browse_added", **begin, last_path=last[0], last_dv_id=last[1], limit=limit
    )
    if len(lines) == limit:
        return Files(lines, (version, lines[-1].path, lines[-1].dv_id))
    if end is not None:
        return Files(lines, (version, *last))
    older = session.run("browse_files_ahead", table_id=table_id, version=version - 1, limit=1)
    return Files(lines, (int(older[0][0]), "", "") if older else None)


def _files(session: Session, query: str, **asked: Any) -> list[FileLine]:
    decode = session.decode_text
    return [
        FileLine(
            decode(row[0]),
            decode(row[1]),
            row[2],
            row[3],
            row[4],
            json.loads(decode_map(row[5], decode)),
        )
        for row in session.run(query, **asked)
    ]


def sizes(session: Session, table_id: str) -> list[SizeCount]:
    """How large the live files are, in buckets, of the newest `SAMPLED` of them at most."""
    rows = session.run("browse_sizes", table_id=table_id, limit=SAMPLED)
    counted = {int(row[0]): (int(row[1]), int(row[2])) for row in rows}
    bounds: list[int | None] = [*SIZE_BOUNDS, None]
    return [SizeCount(bound, *counted.get(n, (0, 0))) for n, bound in enumerate(bounds)]


def _text(session: Session, text: str | None) -> str | None:
    return None if text is None else session.decode_text(text)


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
