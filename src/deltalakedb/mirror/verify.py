"""SQL against `_delta_log`: whether readers of the files see what the catalog says.

Guarantees:

- Nothing is changed. Commits, publishing and clean-up may go on meanwhile: whatever looks wrong is
  looked at again before it is told.
- Every commit file is compared with the digest that the catalog has of it. The newest published
  state is compared with a replay of the whole log, and with one from its newest checkpoint; every
  checkpoint with the catalog at its version; checksums, log compactions and `_last_checkpoint` with
  what they stand for; and dl_active_files with the ledger.
- Memory is bounded: files of the log lie on disk when they are many, live files are compared in
  parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import Action, Metadata, Protocol, from_dict, parse_commit
from deltalakedb.actions.jsonvalue import loads
from deltalakedb.deltalog.fetch import Spool
from deltalakedb.deltalog.hint import parse_hint
from deltalakedb.deltalog.listing import (
    Checkpoint,
    HistoryPlan,
    LogFile,
    LogListing,
    plan_history,
    sort_log,
)
from deltalakedb.deltalog.live_state import (
    metadata_differences,
    protocol_differences,
    reconciled,
)
from deltalakedb.deltalog.names import LAST_CHECKPOINT, LOG, LogKind, commit_key, parse_name
from deltalakedb.deltalog.replay import state_of
from deltalakedb.errors import DeltaLakeDbError, InvalidLogError
from deltalakedb.mirror.findings import Findings, Kind, Verification
from deltalakedb.mirror.log_reader import LogReader, checkpoint_plan
from deltalakedb.mirror.verify_commits import (
    CommitCheck,
    Scope,
    recorded_versions,
    take_scope,
)
from deltalakedb.mirror.verify_state import CatalogState
from deltalakedb.progress import Phases, Progress
from deltalakedb.store import mirror as queue
from deltalakedb.telemetry import span

if TYPE_CHECKING:
    from deltalakedb.deltalog.hint import LastCheckpoint
    from deltalakedb.storage import ObjectInfo, Storage
    from deltalakedb.store import Store, TableRecord

OpenReader = Callable[["Storage", Spool], LogReader]
_MOST_PROBLEMS: Final = 100
# How many objects or commits go by before progress is told again.
_TELL_EACH: Final = 100


def verify_table(
    store: Store,
    storage: Storage,
    table: TableRecord,
    *,
    progress: Progress | None = None,
    open_reader: OpenReader = LogReader,
) -> Verification:
    """Compare a table with its log. `progress` is called with versions looked at, and of all."""
    phases = Phases(progress)
    with span("deltalakedb.verify", table=table.name), Spool(storage) as spool:
        scope = take_scope(store, table)
        phases.begin("Listing the log")
        objects: dict[str, ObjectInfo] = {}
        for listed, info in enumerate(storage.list(LOG), start=1):
            objects[info.key] = info
            if listed % _TELL_EACH == 0:
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
            findings=tuple(self.findings.kept),
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

            def tell_commit(replayed: Iterator[int] = replayed) -> None:
                if (number := next(replayed)) % _TELL_EACH == 0:
                    self.phases(number, total)

            self.reader.tell_commit = tell_commit
            done += len(plan.commits) * state.buckets

            def tell(what: str, key: str = key, beginning: str = beginning) -> None:
                self.findings.add(
                    Kind.STATE_DIFFERS, published, key, f"{what} (replayed from {beginning})"
                )

            try:
                states = self.reader.states(plan, state.buckets)
                self.files = state.compare(
                    states, tell, from_checkpoint=plan.base_version is not None
                )
            except InvalidLogError as error:
                self.findings.add(Kind.UNREADABLE_LOG, published, LOG, str(error))
            else:
                self.replays += 1
        self.phases(total, total)

    def _plans(self, published: int) -> list[tuple[HistoryPlan, str]]:
        """What to replay: the longest history that there is, and the shortest."""
        known = LogListing(
            {v: file for v, file in self.listing.commits.items() if v <= published},
            {v: found for v, found in self.listing.checkpoints.items() if v <= published},
            [file for file in self.listing.compactions if file.name.end <= published],
        )
        longest = plan_history(known, location=self.table.location)
        plans = [(longest, _beginning(longest))]
        newest = max(known.checkpoints, default=None)
        if newest is not None and newest != longest.base_version:
            commits = [known.commits[v] for v in range(newest + 1, published + 1)]
            shortest = checkpoint_plan(known.checkpoints[newest][0], commits)
            plans.append((shortest, _beginning(shortest)))
        return plans

    # --- checkpoints ----------------------------------------------------------------------

    def _check_checkpoints(self) -> None:
        self.phases.begin("Comparing checkpoints")
        found = self.listing.checkpoints
        checkpoints = [checkpoint for version in sorted(found) for checkpoint in found[version]]
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
            if self._is_gone(checkpoint.files):
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

    def _is_gone(self, files: Iterable[LogFile]) -> bool:
        """Whether clean-up has deleted it meanwhile."""
        return all(self.reader.storage.head(file.key) is None for file in files)

    def _drop(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint that is no good: the replay is to be judged by the others."""
        found = self.listing.checkpoints[checkpoint.version]
        found.remove(checkpoint)
        if not found:
            del self.listing.checkpoints[checkpoint.version]

    def _check_unfinished(self) -> None:
        """Parts that do not make a checkpoint, and files without content."""
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
                    f"{len(keys)} of its {count} parts are there",
                )

    # --- what points at them --------------------------------------------------------------

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
        elif not self._is_named_rightly(hint):
            self.findings.add(
                Kind.LOST_HINT,
                hint.version,
                LAST_CHECKPOINT,
                f"it names a checkpoint of version {hint.version}"
                + (f" in {hint.parts} parts" if hint.parts else "")
                + ", which is not there, or no good",
            )

    def _is_named_rightly(self, hint: LastCheckpoint) -> bool:
        """Whether a checkpoint that fits the hint is there, now or when the log was listed."""
        if _fits(self.listing, hint):
            return True
        # It may have been written since.
        now = self.reader.storage.list(LOG)
        return _fits(sort_log(info for info in now if info.key not in self.objects), hint)

    def _check_checksums(self, wrong: Collection[int]) -> None:
        # One whose commit is missing is no orphan: the commit is what has to come back.
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
        known = [v for v in sorted(sums) if self.scope.first <= v <= self.scope.published]
        if known:
            self._compare_checksums(known, sums)

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
            # Older writers leave some of it out.
            protocol, metadata = (
                from_dict({name: document[key]}) if key in document else None
                for name, key in (("protocol", "protocol"), ("metaData", "metadata"))
            )
        except (DeltaLakeDbError, TypeError, AttributeError) as error:
            return [f"it is damaged: {error}"]
        problems: list[str] = []
        for name, mine in zip(("numFiles", "tableSizeBytes"), counts, strict=True):
            theirs = document.get(name)
            if mine != theirs:
                problems.append(f"{name} is {theirs!r}, and {mine} in the catalog")
        with self.store.read() as session:
            mine_protocol = self.store.protocol_at(session, self.table.table_id, version)
            mine_metadata = self.store.metadata_at(session, self.table.table_id, version)
        if mine_protocol is not None and isinstance(protocol, Protocol):
            problems += protocol_differences(mine_protocol, protocol)
        if mine_metadata is not None and isinstance(metadata, Metadata):
            problems += metadata_differences(mine_metadata, metadata)
        return problems

    def _check_compactions(self) -> None:
        """A log compaction says what its commits say, as far as they are all there."""
        for file in self.listing.compactions:
            versions = range(file.version, file.name.end + 1)
            keys = [commit_key(version) for version in versions if version in self.listing.commits]
            if len(keys) < len(versions):
                continue
            try:
                same = self._reconciled(keys) == self._reconciled([file.key])
                what = f"it is not what versions {file.version} to {file.name.end} add up to"
            except InvalidLogError as error:
                same, what = False, str(error)
            if not same:
                self.findings.add(Kind.COMPACTION_DIFFERS, file.version, file.key, what)

    def _reconciled(self, keys: Iterable[str]) -> dict[object, object]:
        """What is left of the actions of some files: the last one of each thing."""
        actions: list[Action] = []
        for key in keys:
            actions += parse_commit(self.reader.get(key) or b"", file=key)
        return dict(reconciled(state_of(actions)))

    # --- the catalog itself ---------------------------------------------------------------

    def _check_catalog(self) -> None:
        with self.store.read() as session:
            problems = self.store.check_active_files(
                session, self.table.table_id, limit=_MOST_PROBLEMS
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
            "publishing was stopped because of a foreign commit, which is gone",
        )


def _beginning(plan: HistoryPlan) -> str:
    return "version 0" if plan.base_version is None else f"the state of version {plan.base_version}"


def _fits(listing: LogListing, hint: LastCheckpoint) -> bool:
    found = listing.checkpoints.get(hint.version, [])
    if hint.parts is None:
        return any(not checkpoint.has_parts for checkpoint in found)
    return any(checkpoint.has_parts and len(checkpoint.files) == hint.parts for checkpoint in found)
