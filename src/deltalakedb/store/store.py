"""The store: verbs of the catalog over an engine.

Guarantees:

- The ledger is append-only. `append_version` writes every row of a commit in the caller's
  transaction, after the compare-and-set of the head; either all of it is there or nothing.
- `dl_active_files` follows the ledger in the same transaction, and can be rebuilt from it.
- `actions_of` returns exactly the committed actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Self

from deltalakedb.actions import Action, DomainMetadata, Metadata, Protocol
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.actions.order_keys import FileKeys
from deltalakedb.actions.planning import Plan, plan_of, plan_text
from deltalakedb.errors import ClockError, CorruptCatalogError
from deltalakedb.formatting import format_time
from deltalakedb.storage import check_options
from deltalakedb.store.migrate import Migrator
from deltalakedb.store.queries import rewrite, select_rows
from deltalakedb.store.relations import (
    ACTION_RELATIONS,
    ACTIVE_FILES,
    ADD_FILES,
    DOMAIN_METADATA,
    HEADS,
    LIVE,
    METADATA_UPDATES,
    MIRROR_STATUS,
    PROTOCOL_UPDATES,
    RELATIONS,
    TABLES,
    TXN_ACTIONS,
    UNPLANNED_FILES,
    VERSIONS,
    Relation,
)
from deltalakedb.store.rows import (
    ActiveFilesProblem,
    Payload,
    TableRecord,
    VersionRecord,
    active_rows,
    decode_map,
    from_row,
    planned_rows,
    roots_text,
    to_rows,
)
from deltalakedb.store.table_lookup import not_registered
from deltalakedb.store.url import CatalogUrl, parse_url
from deltalakedb.telemetry import Metrics, warning

if TYPE_CHECKING:
    from deltalakedb.clock import Clock
    from deltalakedb.store.dialect import Dialect, Row, Session, Take
    from deltalakedb.store.url import Engine

_TARGET: Final = attrgetter("engine", "target", "schema")
_DIALECTS = {
    "postgres": ("deltalakedb.store.postgres", "PostgresDialect"),
    "sqlite": ("deltalakedb.store.sqlite", "SqliteDialect"),
    "duckdb": ("deltalakedb.store.duckdb", "DuckdbDialect"),
}

# Clocks of sound machines differ by less.
_CLOCK_TOLERANCE_MS: Final = 60_000
# A catalog may lie idle for years; for longer than this, a wrong clock is more likely.
_LONGEST_IDLE_MS: Final = 5 * 365 * 86_400_000
# A commit with more rows than this is written by bulk loads, which cannot share a round trip.
_BATCH_ROWS = 64
_NO_BATCH = nullcontext()
# The number of files whose keys are rebuilt together.
_PLAN_PAGE = 20_000


class Store:
    """A catalog on one engine. Verbs that take a session run in the caller's transaction.

    `storage_options` are those of the object stores of its tables; the store only passes them to
    readers and writers.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        clock: Clock | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.storage_options = check_options(storage_options)
        self.dialect = dialect
        self.clock: Clock = clock or dialect
        self.has_own_clock = clock is not None
        """Whether the store was opened with a clock, which is not checked then."""
        self.metrics = Metrics()
        self.migrator = Migrator(dialect, self.clock)
        self._checked_at: int | None = None
        self._warned: set[str] = set()

    @classmethod
    def open(
        cls,
        url: str | CatalogUrl,
        *,
        clock: Clock | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Self:
        """Reach the catalog of `url`, without looking at its schema."""
        parsed = url if isinstance(url, CatalogUrl) else parse_url(url)
        module, name = _DIALECTS[parsed.engine]
        dialect = getattr(import_module(module), name)(parsed)
        return cls(dialect, clock=clock, storage_options=storage_options)

    def __repr__(self) -> str:
        return f"Store({self.dialect.url.display!r})"

    def is_at(self, url: CatalogUrl) -> bool:
        """Whether this is the catalog of a URL."""
        return _TARGET(self.dialect.url) == _TARGET(url)

    def read(self) -> AbstractContextManager[Session]:
        """A transaction that reads."""
        return self.dialect.read()

    def write(self) -> AbstractContextManager[Session]:
        """A transaction that writes; committed on success."""
        return self.dialect.write()

    def begin_commit(self, take: Take | None) -> AbstractContextManager[Session]:
        """As `write`; if it begins with `take_head(take)`, an engine may send that with it."""
        return self.dialect.write() if take is None else self.dialect.begin_commit(take)

    def close(self) -> None:
        """Release every connection."""
        self.dialect.close()

    def abandon(self) -> None:
        """Close the store after a failure; delete an empty file that it has created."""
        self.dialect.abandon()

    # --- time ---------------------------------------------------------------------------

    def check_clock(self, session: Session, now: int) -> None:
        """Raise ClockError where a clock is years ahead of all that the catalog has recorded.

        Only an embedded database needs that: it has no clock but this machine's.
        """
        if self.has_own_clock or self.dialect.engine == "postgres":
            return
        row = session.one("newest_time")
        newest = 0 if row is None else int(row[0])
        if now - newest <= _LONGEST_IDLE_MS:
            return
        raise ClockError(
            f"The clock of this machine says {format_time(now)}, and the newest time in the "
            f"catalog is {format_time(newest)}",
            why="A commit so far ahead could not be taken back, and everything with a retention of "
            "days would be too old; nothing was done",
            fix="Set the clock. If it is right, and the catalog was idle for so long, connect once "
            "with clock=deltalakedb.clock.SystemClock() and commit: a clock that is passed is not "
            "questioned",
        )

    def commit_time(self, session: Session) -> int:
        """The time at which a commit is recorded; ClockError if the clock cannot be right."""
        now = self.clock.now_ms()
        # A clock that was checked once is checked again only after it has jumped.
        if self._checked_at is None or now - self._checked_at > _LONGEST_IDLE_MS:
            self.check_clock(session, now)
        self._checked_at = now
        return now

    def time_after(self, previous: int, now: int, table: TableRecord) -> int:
        """The time of a commit that follows one at `previous`: times of a table increase."""
        if previous - now > _CLOCK_TOLERANCE_MS and table.table_id not in self._warned:
            self._warned.add(table.table_id)
            warning(
                "commit_time_ahead",
                lambda: {
                    "table": table.name,
                    "table_id": table.table_id,
                    "newest_commit": format_time(previous),
                    "clock": format_time(now),
                    "error": "The newest commit is later than the clock. Until the clock reaches "
                    "it, each commit is a millisecond after the one before",
                },
            )
        return max(now, previous + 1)

    # --- tables ---------------------------------------------------------------------------

    def register(self, session: Session, table: TableRecord) -> None:
        """Add a table to the registry; CatalogConstraintError when its name or location is taken.

        Its head comes with `append_version` of its first version.
        """
        session.insert(TABLES, [table.to_row()])

    def table_by_name(self, session: Session, name: str) -> TableRecord | None:
        """The table of that name."""
        return _table(session, session.one("table_by_name", name=name))

    def table_by_location(self, session: Session, location: str) -> TableRecord | None:
        """The table at that location."""
        return _table(session, session.one("table_by_location", location=location))

    def table_by_id(self, session: Session, table_id: str) -> TableRecord | None:
        """The table with that id."""
        return _table(session, session.one("table_by_id", table_id=table_id))

    def tables(self, session: Session) -> Sequence[TableRecord]:
        """Every registered table, by name."""
        return [TableRecord.from_row(row, session) for row in session.run("all_tables")]

    def forget_table(self, session: Session, table_id: str) -> None:
        """Delete every row of a table."""
        for relation in RELATIONS:
            session.execute_count(_forget_query(session.engine, relation), {"table_id": table_id})

    def heads(self, session: Session, table_ids: Iterable[str]) -> dict[str, int]:
        """The newest versions of tables, by table id, at one instant."""
        wanted = session.array(list(table_ids))
        return {row[0]: int(row[1]) for row in session.run("heads", table_ids=wanted)}

    def all_heads(self, session: Session) -> dict[str, int]:
        """The newest versions of all tables, by table id, at one instant."""
        return dict(session.run("all_heads"))

    # --- versions -------------------------------------------------------------------------

    def head(self, session: Session, table_id: str) -> int | None:
        """The newest version of a table, or None when it has none."""
        row = session.one("head", table_id=table_id)
        return None if row is None else int(row[0])

    def advance_head(self, session: Session, table_id: str, *, expected: int) -> bool:
        """Move the head from `expected` to the next version; False when another was faster."""
        changed = session.changed(
            "advance_head", table_id=table_id, expected=expected, version=expected + 1
        )
        return changed == 1

    def append_version(
        self,
        session: Session,
        record: VersionRecord,
        actions: Sequence[Action],
        *,
        payload: Payload,
        closing: Sequence[tuple[str, str]],
        plan: Plan = (),
        first: bool = False,
        published: bool = False,
    ) -> None:
        """Write one commit: ledger, action rows, dl_active_files and the mirror's work item.

        The caller has moved the head to `record.version` in this transaction (or asks for the
        `first` version, which makes the head), and names in `closing` the live (path, dv_id) whose
        interval ends here. `plan` has the planned columns that are in force after the commit.
        A `published` commit is not published again by the mirror.
        """
        rows = to_rows(record.table_id, record.version, actions)
        rows[VERSIONS] = [record.to_row()]
        rows[MIRROR_STATUS] = [_work_item(record, payload, published=published)]
        if ADD_FILES in rows:
            files = active_rows(rows[ADD_FILES])
            if plan:
                rows[ACTIVE_FILES] = planned_rows(files, plan)
            else:
                rows[UNPLANNED_FILES] = files
        if first:
            rows[HEADS] = [(record.table_id, record.version)]
        if closing:
            self._close_files(session, record, closing)
        bulky = sum(map(len, rows.values())) > _BATCH_ROWS
        with _NO_BATCH if bulky else session.batch():
            for relation, relation_rows in rows.items():
                session.insert(relation, relation_rows)

    def _close_files(
        self, session: Session, record: VersionRecord, closing: Sequence[tuple[str, str]]
    ) -> None:
        closed = session.close_files(record.table_id, record.version, closing)
        if closed != len(closing):
            raise CorruptCatalogError(
                f"Version {record.version} of table {record.table_id} ends {len(closing)} live "
                f"files, but dl_active_files has {closed} of them",
                why="It does not follow from the ledger any more; nothing was written",
                fix="Run: deltalakedb rebuild",
            )

    def version(self, session: Session, table_id: str, version: int) -> VersionRecord | None:
        """The ledger row of a version."""
        row = session.one("read_version", table_id=table_id, version=version)
        return None if row is None else VersionRecord.from_row(row, session)

    def actions_of(self, session: Session, table_id: str, version: int) -> list[Action]:
        """The actions of a version as they were committed, commitInfo first.

        Empty for a version that has expired, though a later one may still need its files.
        """
        actions: list[Action] = []
        record = self.version(session, table_id, version)
        if record is None:
            return actions
        if record.commit_info is not None:
            actions.append(record.commit_info)
        for relation in ACTION_RELATIONS:
            params = {"table_id": table_id, "version": version}
            query = select_rows(session.engine, relation, "version = :version")
            rows = session.execute(query, params)
            actions.extend(from_row(relation, row, session) for row in rows)
        return actions

    def metadata_at(self, session: Session, table_id: str, version: int) -> Metadata | None:
        """The newest metaData at a version."""
        metadata = self._newest(session, METADATA_UPDATES, table_id, version)
        return metadata if isinstance(metadata, Metadata) else None

    def protocol_at(self, session: Session, table_id: str, version: int) -> Protocol | None:
        """The newest protocol at a version."""
        protocol = self._newest(session, PROTOCOL_UPDATES, table_id, version)
        return protocol if isinstance(protocol, Protocol) else None

    def _newest(
        self, session: Session, relation: Relation, table_id: str, version: int
    ) -> Action | None:
        params = {"table_id": table_id, "version": version}
        newest = "version <= :version ORDER BY version DESC LIMIT 1"
        rows = session.execute(select_rows(session.engine, relation, newest), params)
        return from_row(relation, rows[0], session) if rows else None

    def versions_after(self, session: Session, table_id: str, version: int) -> list[VersionRecord]:
        """The ledger rows after `version`, oldest first."""
        rows = session.run("versions_after", table_id=table_id, version=version)
        return [VersionRecord.from_row(row, session) for row in rows]

    def control_actions_after(
        self, session: Session, table_id: str, version: int
    ) -> Iterator[tuple[int, Action]]:
        """Protocol, metaData, domainMetadata and txn actions of the versions after `version`."""
        params = {"table_id": table_id, "version": version}
        for relation in (PROTOCOL_UPDATES, METADATA_UPDATES, DOMAIN_METADATA, TXN_ACTIONS):
            query = select_rows(session.engine, relation, "version > :version")
            for row in session.execute(query, params):
                yield row[1], from_row(relation, row, session)

    def lock_head(self, session: Session, table_id: str) -> int | None:
        """Return the newest version, locked until this transaction ends."""
        row = session.one("lock_head", table_id=table_id)
        return None if row is None else int(row[0])

    def share_head(self, session: Session, table_id: str) -> int | None:
        """Return the newest version, locked in share mode until this transaction ends."""
        row = session.one("share_head", table_id=table_id)
        return None if row is None else int(row[0])

    def newest_app_txn(
        self, session: Session, table_id: str, app_id: str
    ) -> tuple[int, int] | None:
        """The newest version an application recorded, and the table version it did so in."""
        row = session.one("newest_app_txn", table_id=table_id, app_id=app_id)
        return None if row is None else (row[0], row[1])

    def version_of_commit(
        self, session: Session, table_id: str, commit_uuid: str, *, after: int
    ) -> int | None:
        """The version that a commit with this UUID became, if it happened."""
        row = session.one(
            "version_of_commit", table_id=table_id, version=after, commit_uuid=commit_uuid
        )
        return None if row is None else int(row[0])

    def participants(self, session: Session, transaction_id: str) -> dict[str, int]:
        """The version that a transaction over many tables wrote to each, by table id."""
        rows = session.run("participants", transaction_id=transaction_id)
        return {row[0]: int(row[1]) for row in rows}

    def domain_at(
        self, session: Session, table_id: str, domain: str, version: int
    ) -> DomainMetadata | None:
        """The newest action of a metadata domain at a version."""
        row = session.one("newest_domain", table_id=table_id, domain=domain, version=version)
        action = None if row is None else from_row(DOMAIN_METADATA, row, session)
        return action if isinstance(action, DomainMetadata) else None

    def update_table(
        self,
        session: Session,
        table_id: str,
        *,
        protocol: Protocol,
        metadata: Metadata,
        updated_at: int,
    ) -> None:
        """Repeat the newest protocol and properties in the registry.

        If the planned columns have changed, the keys of all its files are computed again: a
        condition must never look for a file by the key of another column.
        """
        plan = plan_of(metadata)
        row = session.one("plan", table_id=table_id)
        if row is not None and _text(session, row[0]) != plan_text(plan):
            self.replan(session, table_id, plan)
        session.changed(
            "update_table",
            table_id=table_id,
            protocol_min_reader=protocol.min_reader_version,
            protocol_min_writer=protocol.min_writer_version,
            properties=session.map_parameter(dumps(metadata.configuration)),
            updated_at=updated_at,
            plan=plan_text(plan),
        )

    def allow_roots(
        self, session: Session, table: TableRecord, roots: Iterable[str]
    ) -> TableRecord:
        """Let files of a table lie below more locations; its record with all of them."""
        self.lock_head(session, table.table_id)
        record = _table(session, session.one("table_by_id", table_id=table.table_id))
        if record is None:
            raise not_registered(session, table)
        allowed = tuple(dict.fromkeys((*record.allowed_roots, *roots)))
        if allowed != record.allowed_roots:
            session.changed(
                "set_allowed_roots", table_id=table.table_id, allowed_roots=roots_text(allowed)
            )
        return replace(record, allowed_roots=allowed)

    def replan(self, session: Session, table_id: str, plan: Plan) -> None:
        """Rebuild the keys of every file of a table, page by page."""
        if not plan:
            session.changed("clear_keys", table_id=table_id)
            return
        with session.bulk():
            self._write_keys(session, table_id, plan)

    def _write_keys(self, session: Session, table_id: str, plan: Plan) -> None:
        keys = FileKeys(plan)
        decode = session.decode_text
        after: Row = ("", "", -1)
        while True:
            page = session.run(
                "files_to_plan",
                table_id=table_id,
                path=after[0],
                dv_id=after[1],
                removed_version=after[2],
                limit=_PLAN_PAGE,
            )
            if not page:
                return
            rows = []
            for path, dv_id, removed_version, stats, values in page:
                after = (decode(path), decode(dv_id), removed_version)
                text = None if stats is None else decode(stats)
                rows.append((*keys.of(text, decode_map(values, decode)), table_id, *after))
            session.write_keys(rows)

    def history(self, session: Session, table_id: str, limit: int) -> list[VersionRecord]:
        """The newest `limit` commits, newest first."""
        rows = session.run("history", table_id=table_id, limit=limit)
        return [VersionRecord.from_row(row, session) for row in rows]

    def live_among(
        self, session: Session, table_id: str, paths: Iterable[str]
    ) -> dict[tuple[str, str], int]:
        """Which of `paths` have a live file: (path, dv_id) and its size."""
        wanted = list(dict.fromkeys(paths))
        if not wanted:
            return {}
        rows = session.run("live_among", table_id=table_id, paths=session.array(wanted))
        decode = session.decode_text
        return {(decode(path), decode(dv_id)): int(size) for path, dv_id, size in rows}

    def forget_pages(self, session: Session, table_id: str) -> None:
        """Delete the pages of a table; later ones get new numbers."""
        session.changed("forget_page_columns", table_id=table_id)
        session.changed("forget_page_texts", table_id=table_id, first=0, last=LIVE)
        session.changed("forget_pages", table_id=table_id)
        session.changed("forget_paged_table", table_id=table_id)

    # --- dl_active_files against the ledger -----------------------------------------------

    def rebuild_active_files(self, session: Session, table_id: str) -> int:
        """Recompute dl_active_files of a table from the ledger; how many rows it has now."""
        session.read_all()
        session.changed("delete_active_files", table_id=table_id)
        self.forget_pages(session, table_id)
        rebuilt = session.changed("rebuild_active_files", table_id=table_id)
        head = self.head(session, table_id)
        metadata = None if head is None else self.metadata_at(session, table_id, head)
        if metadata is not None:
            plan = plan_of(metadata)
            if plan:
                self.replan(session, table_id, plan)
            session.changed("set_plan", table_id=table_id, plan=plan_text(plan))
        return rebuilt

    def check_active_files(
        self, session: Session, table_id: str, *, limit: int = 100
    ) -> Sequence[ActiveFilesProblem]:
        """Where dl_active_files differs from the ledger; empty when it is right."""
        session.read_all()
        rows = session.run("compare_active_files", table_id=table_id, limit=limit)
        decode = session.decode_text
        return [ActiveFilesProblem(r[0], decode(r[1]), decode(r[2]), r[3], r[4]) for r in rows]


def _work_item(record: VersionRecord, payload: Payload, *, published: bool) -> Row:
    status, data = ("SUCCEEDED", None) if published else ("PENDING", payload.data)
    item = (record.table_id, record.version, status, 0, None, payload.digest, data)
    return (*item, len(payload.data), 0, record.recorded_at, record.recorded_at, None)


def _table(session: Session, row: Row | None) -> TableRecord | None:
    return None if row is None else TableRecord.from_row(row, session)


def _text(session: Session, value: str | None) -> str | None:
    return None if value is None else session.decode_text(value)


@cache
def _forget_query(engine: Engine, relation: Relation) -> str:
    return rewrite(f"DELETE FROM {relation.name} WHERE table_id = :table_id", engine)  # noqa: S608
