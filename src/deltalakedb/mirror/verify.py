"""`lake.verify`: the catalog compared with `_delta_log`.

Guarantees:

- Nothing is changed. Commits, publishing and clean-up may run concurrently: a difference is checked
  again before it is reported.
- Every commit file is compared with its digest in the catalog. The newest published state is
  compared with a replay of the whole log, and with one from its newest checkpoint; every checkpoint
  with the catalog at its version; checksums, log compactions and `_last_checkpoint` with what they
  stand for; and dl_active_files with the ledger.
- Memory is bounded: log files are spooled to disk when they are many, live files are compared in
  buckets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import (
    Action,
    AddFile,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
    from_dict,
    parse_commit,
)
from deltalakedb.actions.features import RECORDS
from deltalakedb.actions.jsonvalue import loads
from deltalakedb.actions.properties import TableProperties
from deltalakedb.deltalog.differences import (
    control_differences,
    file_differences,
    metadata_differences,
    protocol_differences,
    unexpected_files,
)
from deltalakedb.deltalog.fetch import Spool
from deltalakedb.deltalog.last_checkpoint import parse_hint
from deltalakedb.deltalog.listing import (
    Checkpoint,
    HistoryPlan,
    LogFile,
    LogListing,
    plan_history,
    sort_log,
)
from deltalakedb.deltalog.names import LAST_CHECKPOINT, LOG, LogKind, commit_key, parse_name
from deltalakedb.deltalog.replay import (
    FILE_COLUMNS,
    ControlState,
    LogState,
    describe_add,
    described_files,
    identity,
    reconcile_state,
)
from deltalakedb.errors import DeltaLakeDbError, InvalidLogError
from deltalakedb.mirror.log_reader import LogReader, checkpoint_plan
from deltalakedb.mirror.verification import Findings, Kind, Verification
from deltalakedb.mirror.verify_commits import (
    CommitCheck,
    Scope,
    read_scope,
    recorded_versions,
)
from deltalakedb.progress import Phases, Progress
from deltalakedb.snapshot.snapshot import open_snapshot
from deltalakedb.store import mirror as queue
from deltalakedb.store.versions import app_transactions, domain_metadata
from deltalakedb.telemetry import span

if TYPE_CHECKING:
    from deltalakedb.deltalog.last_checkpoint import LastCheckpoint
    from deltalakedb.storage import ObjectInfo, Storage
    from deltalakedb.store import Store, TableRecord

OpenReader = Callable[["Storage", Spool], LogReader]
BUCKET: Final = 500_000
"""The number of live files that are compared at once."""
_BATCH: Final = 10_000
_MAX_CONTRADICTIONS: Final = 100
# The number of objects or commits between two reports of progress.
_PROGRESS_INTERVAL: Final = 100


def verify_table(
    store: Store,
    storage: Storage,
    table: TableRecord,
    *,
    progress: Progress | None = None,
    open_reader: OpenReader = LogReader,
) -> Verification:
    """Compare a table with its log. `progress` is called with the versions checked, and all."""
    phases = Phases(progress)
    with span("deltalakedb.verify", table=table.name), Spool(storage) as spool:
        scope = read_scope(store, table)
        phases.begin("Listing the log")
        objects: dict[str, ObjectInfo] = {}
        for listed, info in enumerate(storage.list(LOG), start=1):
            objects[info.key] = info
            if listed % _PROGRESS_INTERVAL == 0:
                phases(listed)
        reader = open_reader(storage, spool)
        return _Check(store, table, reader, scope, objects, phases).run()


@dataclass(slots=True)
class _Check:
    """One verification."""

    store: Store
    table: TableRecord
    reader: LogReader
    scope: Scope
    objects: Mapping[str, ObjectInfo]
    phases: Phases
    findings: Findings = field(default_factory=Findings)
    listing: LogListing = field(init=False)
    replays: int = 0
    files: int = 0
    good: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listing = sort_log(self.objects.values())

    def run(self) -> Verification:
        commits = CommitCheck(
            self.store, self.table, self.reader, self.scope, self.listing, self.findings
        )
        self.phases.begin("Comparing versions", main=True)
        commits.run(self.phases)
        self._check_checkpoints()
        self._check_hint()
        self.phases.begin("Comparing checksums")
        self._check_checksums(commits.wrong)
        self._check_compactions()
        if not commits.wrong:
            self._check_replays()
        self.phases.begin("Checking the catalog")
        self._check_catalog()
        self._check_drift()
        published = self.scope.published
        return Verification(
            table=self.table.name,
            table_id=self.table.table_id,
            location=self.table.location,
            first_version=self.scope.first,
            head=self.scope.head,
            published_version=published if published >= self.scope.first else None,
            compared=commits.compared,
            pending=commits.pending,
            cleaned=commits.cleaned,
            unrecorded=commits.unrecorded,
            replays=self.replays,
            files=self.files,
            checkpoints=tuple(self.good),
            counts=self.findings.counts,
            findings=tuple(self.findings.listed),
        )

    # --- the newest state -----------------------------------------------------------------

    def _check_replays(self) -> None:
        """Replay the log from its beginning and from its newest checkpoint."""
        published = self.scope.published
        if published < self.scope.first:
            return
        try:
            plans = self._plans(published)
        except InvalidLogError as error:
            self.findings.add(Kind.UNREADABLE_LOG, published, LOG, str(error))
            return
        state = CatalogState(self.store, self.table, published)
        self.phases.begin("Replaying the log")
        # Each bucket of live files takes a replay of all commits.
        total = sum(len(plan.commits) for plan, _ in plans) * state.buckets
        done = 0
        for plan, beginning in plans:
            key = commit_key(published)
            self.phases(done, total)
            replayed = itertools.count(done + 1)

            def on_commit(replayed: Iterator[int] = replayed) -> None:
                if (number := next(replayed)) % _PROGRESS_INTERVAL == 0:
                    self.phases(number, total)

            self.reader.on_commit = on_commit
            done += len(plan.commits) * state.buckets

            def report(what: str, key: str = key, beginning: str = beginning) -> None:
                self.findings.add(
                    Kind.STATE_DIFFERS, published, key, f"{what} (replayed from {beginning})"
                )

            try:
                states = self.reader.states(plan, state.buckets)
                self.files = state.compare(
                    states, report, from_checkpoint=plan.base_version is not None
                )
            except InvalidLogError as error:
                self.findings.add(Kind.UNREADABLE_LOG, published, LOG, str(error))
            else:
                self.replays += 1
        self.phases(total, total)

    def _plans(self, published: int) -> list[tuple[HistoryPlan, str]]:
        """The histories to replay: the longest, and the one from the newest checkpoint."""
        published_files = LogListing(
            {v: file for v, file in self.listing.commits.items() if v <= published},
            {v: files for v, files in self.listing.checkpoints.items() if v <= published},
            [file for file in self.listing.compactions if file.name.end <= published],
        )
        longest = plan_history(published_files, location=self.table.location)
        plans = [(longest, _beginning(longest))]
        newest = max(published_files.checkpoints, default=None)
        if newest is not None and newest != longest.base_version:
            commits = [published_files.commits[v] for v in range(newest + 1, published + 1)]
            shortest = checkpoint_plan(published_files.checkpoints[newest][0], commits)
            plans.append((shortest, _beginning(shortest)))
        return plans

    # --- checkpoints ----------------------------------------------------------------------

    def _check_checkpoints(self) -> None:
        self.phases.begin("Comparing checkpoints")
        listed = self.listing.checkpoints
        checkpoints = [checkpoint for version in sorted(listed) for checkpoint in listed[version]]
        for done, checkpoint in enumerate(checkpoints):
            self.phases(done, len(checkpoints))
            self._check_checkpoint(checkpoint)
        self.phases(len(checkpoints), len(checkpoints))
        self._check_unfinished()

    def _check_checkpoint(self, checkpoint: Checkpoint) -> None:
        version, key = checkpoint.version, checkpoint.files[0].key
        try:
            self.reader.check_checkpoint(checkpoint)
            if version < self.scope.first:
                return  # older than the catalog
            if version > self.scope.published and not self._is_published(version):
                self.findings.add(
                    Kind.CHECKPOINT_DIFFERS,
                    version,
                    key,
                    f"the newest published version is {self.scope.published}",
                )
                return
            before = sum(self.findings.counts.values())
            state = CatalogState(self.store, self.table, version)
            state.compare(
                self.reader.states(checkpoint_plan(checkpoint), state.buckets),
                lambda what: self.findings.add(Kind.CHECKPOINT_DIFFERS, version, key, what),
                from_checkpoint=True,
            )
        except InvalidLogError as error:
            if self._is_deleted(checkpoint.files):
                return
            self.findings.add(Kind.DAMAGED_CHECKPOINT, version, key, f"{error.what}: {error.why}")
            self._drop(checkpoint)
            return
        if sum(self.findings.counts.values()) == before:
            self.good.append(version)
        else:
            self._drop(checkpoint)

    def _is_published(self, version: int) -> bool:
        pages = recorded_versions(self.store, self.table, version, version)
        return any(row.published for page in pages for row in page)

    def _is_deleted(self, files: Iterable[LogFile]) -> bool:
        """Whether clean-up has deleted the files meanwhile."""
        return all(self.reader.storage.head(file.key) is None for file in files)

    def _drop(self, checkpoint: Checkpoint) -> None:
        """Drop a damaged checkpoint from the listing, so that no replay begins with it."""
        checkpoints = self.listing.checkpoints[checkpoint.version]
        checkpoints.remove(checkpoint)
        if not checkpoints:
            del self.listing.checkpoints[checkpoint.version]

    def _check_unfinished(self) -> None:
        """Report incomplete multi-part checkpoints, and empty files."""
        parts: dict[tuple[int, int], list[str]] = {}
        for key, info in self.objects.items():
            name = parse_name(key.removeprefix(f"{LOG}/"))
            if name is None:
                continue
            if name.kind is LogKind.CHECKPOINT_PART:
                parts.setdefault((name.version, name.parts), []).append(key)
            elif name.kind in (LogKind.CHECKPOINT, LogKind.V2_CHECKPOINT) and not info.size:
                self.findings.add(Kind.DAMAGED_CHECKPOINT, name.version, key, "it is empty")
        for (version, count), keys in sorted(parts.items()):
            if len(keys) < count:
                self.findings.add(
                    Kind.UNFINISHED_CHECKPOINT,
                    version,
                    min(keys),
                    f"{len(keys)} of its {count} parts exist",
                )

    # --- _last_checkpoint, checksums, compactions ---------------------------------------

    def _check_hint(self) -> None:
        if LAST_CHECKPOINT not in self.objects:
            return
        data = self.reader.get(LAST_CHECKPOINT)
        if data is None:
            return
        hint = parse_hint(data)
        if hint is None:
            self.findings.add(
                Kind.DAMAGED_HINT, None, LAST_CHECKPOINT, "it is damaged; readers ignore it"
            )
        elif not self._hinted_checkpoint_exists(hint):
            self.findings.add(
                Kind.LOST_HINT,
                hint.version,
                LAST_CHECKPOINT,
                f"it names a checkpoint of version {hint.version}"
                + (f" in {hint.parts} parts" if hint.parts else "")
                + ", which is missing or damaged",
            )

    def _hinted_checkpoint_exists(self, hint: LastCheckpoint) -> bool:
        """Whether the checkpoint of the hint exists, now or when the log was listed."""
        if _fits(self.listing, hint):
            return True
        # It may have been written after the listing.
        now = self.reader.storage.list(LOG)
        return _fits(sort_log(info for info in now if info.key not in self.objects), hint)

    def _check_checksums(self, wrong: Collection[int]) -> None:
        # The checksum of a missing commit is not an orphan: the commit has to be restored.
        newest = max((*self.listing.commits, *wrong), default=-1)
        sums: dict[int, str] = {}
        for key in self.objects:
            name = parse_name(key.removeprefix(f"{LOG}/"))
            if name is not None and name.kind is LogKind.CHECKSUM:
                sums[name.version] = key
        for version in sorted(sums):
            if version > newest and self.reader.storage.head(commit_key(version)) is None:
                self.findings.add(
                    Kind.ORPHAN_CHECKSUM,
                    version,
                    sums.pop(version),
                    f"the newest commit is of version {newest}",
                )
        versions = [v for v in sorted(sums) if self.scope.first <= v <= self.scope.published]
        if versions:
            self._compare_checksums(versions, sums)

    def _compare_checksums(self, versions: list[int], sums: Mapping[int, str]) -> None:
        self.reader.fetch([sums[version] for version in versions])
        wanted = set(versions)
        for page in recorded_versions(self.store, self.table, versions[0], versions[-1]):
            for row in page:
                data = self.reader.get(sums[row.version]) if row.version in wanted else None
                if data is None:
                    continue
                for what in self._checksum_problems(row.version, data, row[5:]):
                    self.findings.add(Kind.CHECKSUM_DIFFERS, row.version, sums[row.version], what)

    def _checksum_problems(
        self, version: int, data: bytes, counts: tuple[int, int]
    ) -> Iterable[str]:
        try:
            document: dict[str, Any] = loads(data)
            # Older writers omit fields.
            protocol, metadata = (
                from_dict({name: document[key]}) if key in document else None
                for name, key in (("protocol", "protocol"), ("metaData", "metadata"))
            )
        except (DeltaLakeDbError, TypeError, AttributeError) as error:
            return [f"it is damaged: {error}"]
        problems: list[str] = []
        for name, count in zip(("numFiles", "tableSizeBytes"), counts, strict=True):
            if document.get(name) != count:
                problems.append(f"{name} is {document.get(name)!r}, and {count} in the catalog")
        with self.store.read() as session:
            expected_protocol = self.store.protocol_at(session, self.table.table_id, version)
            expected_metadata = self.store.metadata_at(session, self.table.table_id, version)
        if expected_protocol is not None and isinstance(protocol, Protocol):
            problems += protocol_differences(expected_protocol, protocol)
        if expected_metadata is not None and isinstance(metadata, Metadata):
            problems += metadata_differences(expected_metadata, metadata)
        return problems

    def _check_compactions(self) -> None:
        """Compare each log compaction with its commits, where all of them exist."""
        for file in self.listing.compactions:
            versions = range(file.version, file.name.end + 1)
            keys = [commit_key(version) for version in versions if version in self.listing.commits]
            if len(keys) < len(versions):
                continue
            try:
                same = self._contents(keys) == self._contents([file.key])
                what = f"it differs from what versions {file.version} to {file.name.end} add up to"
            except InvalidLogError as error:
                same, what = False, str(error)
            if not same:
                self.findings.add(Kind.COMPACTION_DIFFERS, file.version, file.key, what)

    def _contents(self, keys: Iterable[str]) -> dict[object, object]:
        """The content of the last action on each file, application, domain, … of log files."""
        actions: list[Action] = []
        for key in keys:
            actions += parse_commit(self.reader.get(key) or b"", file=key)
        return {identity(action): _content(action) for action in reconcile_state(actions)}

    # --- the catalog itself ---------------------------------------------------------------

    def _check_catalog(self) -> None:
        with self.store.read() as session:
            problems = self.store.check_active_files(
                session, self.table.table_id, limit=_MAX_CONTRADICTIONS
            )
        for problem in problems:
            self.findings.add(
                Kind.CATALOG_CONTRADICTION,
                problem.added_version,
                None,
                f"the row of {problem.path!r} {problem.dv_id} (versions {problem.added_version} to "
                f"{problem.removed_version}) is {problem.problem} in dl_active_files",
            )

    def _check_drift(self) -> None:
        with self.store.read() as session:
            drift = queue.mirror_table(session, self.table.table_id).drift
        if drift is None or self.findings.has(
            (Kind.FOREIGN_COMMIT, Kind.DIFFERENT_COMMIT, Kind.TRUNCATED_COMMIT)
        ):
            return
        self.findings.add(
            Kind.STALE_DRIFT,
            drift.get("version"),
            drift.get("object_key"),
            "publishing was stopped because of a foreign commit, which was deleted since",
        )


def _beginning(plan: HistoryPlan) -> str:
    return "version 0" if plan.base_version is None else f"the state of version {plan.base_version}"


def _fits(listing: LogListing, hint: LastCheckpoint) -> bool:
    checkpoints = listing.checkpoints.get(hint.version, [])
    if hint.parts is None:
        return any(not c.has_parts for c in checkpoints)
    return any(c.has_parts and len(c.files) == hint.parts for c in checkpoints)


def _content(action: Action) -> object:
    """The part of an action that a log compaction has to repeat."""
    if isinstance(action, AddFile):
        return describe_add(action)
    if isinstance(action, RemoveFile):
        return None
    if isinstance(action, Txn):
        return action.version
    if isinstance(action, DomainMetadata):
        return action.configuration
    return action


# --- states -------------------------------------------------------------------------------


class CatalogState:
    """A version of a table as the catalog has it."""

    def __init__(self, store: Store, table: TableRecord, version: int) -> None:
        # Its rows are not read.
        self.snapshot = open_snapshot(store, None, table, version, honours=RECORDS)
        with store.read() as session:
            txns = app_transactions(session, table.table_id, version)
            domains = domain_metadata(session, table.table_id, version)
        self.control = ControlState(
            self.snapshot.protocol,
            self.snapshot.metadata,
            {app: Txn(app, number) for app, number in txns.items()},
            {name: DomainMetadata(name, text, removed=False) for name, text in domains.items()},
        )

    @property
    def buckets(self) -> int:
        """The number of buckets that its files are compared in."""
        return max(1, -(-self.snapshot.num_files // BUCKET))

    def compare(
        self,
        states: Iterator[LogState],
        report: Callable[[str], None],
        *,
        from_checkpoint: bool,
    ) -> int:
        """Report every difference to the states of all buckets; returns the number of files.

        A checkpoint may lack statistics, and app transactions that expire.
        """
        properties = TableProperties(self.snapshot.properties)
        txns_expire = from_checkpoint and properties.set_transaction_retention is not None
        compared = 0
        for state in states:
            if state.bucket == 0:
                for text in control_differences(self.control, state, txns_expire=txns_expire):
                    report(text)
            for batch in self.snapshot.iter_files(_BATCH, columns=FILE_COLUMNS):
                files = list(described_files(batch, state.bucket, state.buckets))
                compared += len(files)
                for text in file_differences(files, state.files, stats=not from_checkpoint):
                    report(text)
            compared += len(state.files)
            for text in unexpected_files(state.files):
                report(text)
        return compared
