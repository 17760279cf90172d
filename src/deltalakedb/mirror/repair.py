"""The repair of a log: the findings of a verification are fixed where that is safe.

Guarantees:

- Files are written from the catalog, and only where it is known to be right: a commit file has
  exactly the recorded digest; a checkpoint or checksum is written only when the catalog agrees with
  the commits of the log.
- No commit file is overwritten but one that a power cut has truncated on a local disk: it is the
  beginning of the recorded bytes. Foreign and changed commits are never touched.
- A checkpoint is deleted only when there is another one, verified or just written.
- An interrupted repair can be repeated. With `dry_run` nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.deltalog.listing import sort_log
from deltalakedb.deltalog.names import LAST_CHECKPOINT, LOG, commit_key, parse_name
from deltalakedb.errors import ObjectNotFoundError
from deltalakedb.mirror.checkpoint import write_checkpoint, write_checksum
from deltalakedb.mirror.clock_check import check_ahead
from deltalakedb.mirror.last_checkpoint import advance_hint, describe, hinted_version
from deltalakedb.mirror.verification import Finding, Kind, Verification
from deltalakedb.mirror.verify import verify_table
from deltalakedb.mirror.verify_commits import RecordedCommit, expected_bytes, recorded_versions
from deltalakedb.progress import Phases, Progress
from deltalakedb.store import mirror as queue
from deltalakedb.telemetry import event, span

if TYPE_CHECKING:
    from deltalakedb.storage import Storage
    from deltalakedb.store import Store, TableRecord

_DAY_MS: Final = 86_400_000
_CHECKPOINTS: Final = (Kind.DAMAGED_CHECKPOINT, Kind.CHECKPOINT_DIFFERS, Kind.UNREADABLE_LOG)
_HINTS: Final = (Kind.LOST_HINT, Kind.DAMAGED_HINT)
# While there is one of these, either the catalog or the log may be right.
_DOUBTS: Final = (
    Kind.MISSING_COMMIT,
    Kind.TRUNCATED_COMMIT,
    Kind.DIFFERENT_COMMIT,
    Kind.STATE_DIFFERS,
    Kind.CATALOG_CONTRADICTION,
)


@dataclass(frozen=True, slots=True)
class RepairStep:
    """The repair of one finding, done or (with `dry_run`) planned."""

    kind: Kind
    version: int | None
    key: str | None
    what: str


@dataclass(frozen=True, slots=True)
class Repair:
    """The steps of a repair, and the findings that are left after it."""

    table: str
    table_id: str
    dry_run: bool
    steps: tuple[RepairStep, ...]
    left: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether all findings that are left are harmless to readers."""
        return all(finding.harmless for finding in self.left)

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
        return {
            **asdict(self),
            "steps": [{**asdict(step), "kind": str(step.kind)} for step in self.steps],
            "left": [finding.to_dict() for finding in self.left],
            "ok": self.ok,
        }


def repair_table(
    store: Store,
    storage: Storage,
    table: TableRecord,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Repair:
    """Verify a table, and repair it as far as that is safe.

    It takes rounds: the commits have to be right before the catalog can be compared with them, and
    both before checkpoints can be written.
    """
    with span("deltalakedb.repair", table=table.name):
        steps: list[RepairStep] = []
        phases = Phases(progress)
        while True:
            verification = verify_table(store, storage, table, progress=progress)
            phases.begin("Repairing")
            work = _Round(
                store, storage, table, verification, dry_run=dry_run, earlier=tuple(steps)
            )
            work.run()
            steps += work.steps
            if dry_run or not work.steps:
                break
    left = [finding for finding in verification.findings if not dry_run or not work.plans(finding)]
    event("repair", lambda: {"table": table.name, "steps": len(steps), "left": len(left)})
    return Repair(table.name, table.table_id, dry_run, tuple(steps), tuple(left))


@dataclass(slots=True)
class _Round:
    """A verification, and the steps that it leads to."""

    store: Store
    storage: Storage
    table: TableRecord
    verification: Verification
    dry_run: bool
    earlier: Iterable[RepairStep] = ()
    steps: list[RepairStep] = field(default_factory=list)

    def plans(self, finding: Finding) -> bool:
        """Whether there is a step for a finding; a rebuild settles all of its kind."""
        whole = finding.kind is Kind.CATALOG_CONTRADICTION
        return any(
            step.kind is finding.kind
            and (whole or (step.key, step.version) == (finding.key, finding.version))
            for step in self.steps
        )

    def run(self) -> None:
        for finding in self.verification.of(Kind.MISSING_COMMIT):
            self._rewrite_missing(finding)
        for finding in self.verification.of(Kind.TRUNCATED_COMMIT):
            self._complete(finding)
        for finding in self.verification.of(Kind.DAMAGED_PAYLOAD):
            self._remake_payload(finding)
        for finding in self.verification.of(Kind.STALE_DRIFT):
            self._do(finding, "publishing goes on", self._forget_drift)
        for finding in self.verification.of(Kind.ORPHAN_CHECKSUM):
            self._drop_orphan(finding)
        for finding in self.verification.of(Kind.UNFINISHED_CHECKPOINT):
            self._drop_unfinished(finding)
        contradictions = self.verification.of(Kind.CATALOG_CONTRADICTION)
        if contradictions:
            what = "dl_active_files is rebuilt from the ledger"
            self._do(contradictions[0], what, self._rebuild)
        if not self._doubted():
            self._repair_derived()

    def _doubted(self) -> bool:
        if self.dry_run:  # planned steps count as done
            return not all(self.plans(finding) for finding in self.verification.of(*_DOUBTS))
        return any(str(kind) in self.verification.counts for kind in _DOUBTS)

    def _repair_derived(self) -> None:
        """Write the files that derive from the catalog, which agrees with the commits."""
        self._repair_checkpoints()
        for finding in self.verification.of(Kind.COMPACTION_DIFFERS):
            delete = partial(self.storage.delete, finding.key or "")
            self._do(finding, "deleted: its commits are there", delete)
        checksums = self.verification.of(Kind.CHECKSUM_DIFFERS)
        for finding in {finding.key: finding for finding in checksums}.values():
            self._do(finding, "rewritten", partial(self._remake_checksum, finding))

    def _do(self, finding: Finding, what: str, act: Callable[[], object]) -> None:
        step = RepairStep(finding.kind, finding.version, finding.key, what)
        if step in self.steps or step in self.earlier:
            return  # it was done, and did not help
        if not self.dry_run:
            act()
        self.steps.append(step)

    # --- commits --------------------------------------------------------------------------

    def _recorded(self, version: int | None) -> RecordedCommit | None:
        if version is None:
            return None
        for page in recorded_versions(self.store, self.table, version, version):
            return page[0]
        return None

    def _expected(self, finding: Finding) -> bytes | None:
        row = self._recorded(finding.version)
        if row is None:
            return None
        return expected_bytes(self.store, self.table, row.version, row.digest)

    def _rewrite_missing(self, finding: Finding) -> None:
        data = self._expected(finding)
        key = finding.key
        if data is not None and key is not None:
            self._do(
                finding,
                f"written from the ledger, {len(data)} bytes",
                lambda: self.storage.put_if_absent(key, data),
            )

    def _complete(self, finding: Finding) -> None:
        """Complete a truncated commit, on a local disk; objects are written as a whole."""
        data = self._expected(finding)
        key = finding.key
        if data is None or key is None or not self.storage.is_local:
            return
        try:
            present = self.storage.get(key)
        except ObjectNotFoundError:
            return
        if present != data and data.startswith(present):
            self._do(
                finding,
                f"completed from {len(present)} to {len(data)} bytes",
                lambda: self._put_complete(key, data),
            )

    def _put_complete(self, key: str, data: bytes) -> None:
        self.storage.put(key, data)
        # Publishing may have stopped because of it.
        self._forget_drift()

    def _forget_drift(self) -> None:
        with self.store.write() as session:
            if queue.mirror_table(session, self.table.table_id).drift is not None:
                queue.retry_table(session, self.table.table_id, now=self.store.clock.now_ms())

    def _remake_payload(self, finding: Finding) -> None:
        data = self._expected(finding)
        version = finding.version
        if data is not None and version is not None:
            self._do(
                finding,
                "rebuilt from the ledger",
                lambda: self._put_payload(version, data),
            )

    def _put_payload(self, version: int, data: bytes) -> None:
        now = self.store.clock.now_ms()
        with self.store.write() as session:
            queue.set_payload(session, self.table.table_id, version, data, now=now)

    def _rebuild(self) -> None:
        with self.store.write() as session:
            self.store.lock_head(session, self.table.table_id)
            self.store.rebuild_active_files(session, self.table.table_id)

    # --- checkpoints, checksums, _last_checkpoint -----------------------------------------

    def _drop_orphan(self, finding: Finding) -> None:
        if finding.version is None or finding.key is None:
            return
        key, version = finding.key, finding.version
        if self.storage.head(commit_key(version)) is None:
            self._do(finding, "deleted", lambda: self.storage.delete(key))

    def _drop_unfinished(self, finding: Finding) -> None:
        """Delete parts that are too old to be still in use."""
        parts = []
        for info in self.storage.list(LOG):
            name = parse_name(info.key.removeprefix(f"{LOG}/"))
            mine = parse_name((finding.key or "").removeprefix(f"{LOG}/"))
            if name and mine and (name.version, name.parts) == (mine.version, mine.parts):
                parts += [info] if name.kind is mine.kind else []
        now = self.store.clock.now_ms()
        if parts and all(info.modified_ms < now - _DAY_MS for info in parts):
            check_ahead(self.store, self.storage, now)
            keys = [info.key for info in parts]
            self._do(finding, "deleted", lambda: self.storage.delete_many(keys))

    def _remake_checksum(self, finding: Finding) -> None:
        if finding.key is not None and finding.version is not None:
            self.storage.delete(finding.key)
            write_checksum(self.store, self.storage, self.table, finding.version)

    def _repair_checkpoints(self) -> None:
        newest = self.verification.published_version
        if newest is None:
            return
        bad = [f for f in self.verification.of(*_CHECKPOINTS) if self._can_be_remade(f, newest)]
        for finding in bad:
            if finding.kind is Kind.UNREADABLE_LOG:
                self._do(
                    finding,
                    f"a checkpoint of version {newest} replaces the missing files",
                    lambda: write_checkpoint(self.store, self.storage, self.table, newest),
                )
        wrong = {f.key: f for f in bad if f.kind is not Kind.UNREADABLE_LOG}
        for finding in wrong.values():
            self._do(finding, "rewritten", partial(self._remake, finding, newest))
        hints = self.verification.of(*_HINTS)
        for finding in hints:
            self._do(finding, "names the newest checkpoint", self._point_hint)

    def _can_be_remade(self, finding: Finding, newest: int) -> bool:
        version = finding.version
        return version is not None and self.verification.first_version <= version <= newest

    def _remake(self, finding: Finding, newest: int) -> None:
        version = finding.version if finding.version is not None else newest
        # Another one first: readers may need a checkpoint to begin with.
        other = newest if version != newest else newest - 1
        if other not in self.verification.checkpoints and other >= self.verification.first_version:
            write_checkpoint(self.store, self.storage, self.table, other)
        keys = self._files_of(finding)
        if hinted_version(self.storage) == version:
            self._point_hint(without=keys)
        self.storage.delete_many(keys)
        write_checkpoint(self.store, self.storage, self.table, version)

    def _files_of(self, finding: Finding) -> list[str]:
        """The files of the checkpoint whose first file a finding names."""
        objects = list(self.storage.list(LOG))
        for checkpoint in sort_log(objects).checkpoints.get(finding.version or 0, []):
            if checkpoint.files[0].key == finding.key:
                return [file.key for file in checkpoint.files]
        return [info.key for info in objects if info.key == finding.key]

    def _point_hint(self, *, without: Iterable[str] = ()) -> None:
        """Write `_last_checkpoint` for the newest valid checkpoint, or delete it."""
        gone = set(without)
        objects = {i.key: i for i in self.storage.list(LOG) if i.key not in gone}
        sizes = {key: info.size for key, info in objects.items()}
        listing = sort_log(objects.values())
        self.storage.delete(LAST_CHECKPOINT)
        for version in sorted(listing.checkpoints, reverse=True):
            for checkpoint in listing.checkpoints[version]:
                hint = describe(self.storage, checkpoint, sizes)
                if hint is not None:
                    advance_hint(self.storage, hint)
                    return
