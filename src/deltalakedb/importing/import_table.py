"""The import of an existing Delta table, with its history.

Guarantees:

- The table is visible only after the last database transaction, which registers it. A small log
  takes one transaction; a large one is written in stages (`stages.py`), and an import that was
  killed continues after the last of them. A refused log leaves the catalog as it was.
- Versions keep their numbers, times, actions and commitInfo. A log whose old commits were deleted
  begins with the oldest state that can be rebuilt, as the actions of that version.
- Before the commit, the catalog's answers (live files and bytes of every version, the live files of
  the newest one) are compared with a replay of the log in memory.
- Nothing is written to the table's location.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from deltalakedb.actions import CdcFile, Metadata, Protocol, parse_commit
from deltalakedb.actions.features import check_readable
from deltalakedb.actions.file_paths import ODD_PATH, is_absolute
from deltalakedb.actions.planning import Plan, plan_of, plan_text
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.schema_checks import check_column_names
from deltalakedb.deltalog.fetch import Spool
from deltalakedb.deltalog.history import OpenHistory, VersionTime, commit_times, open_history
from deltalakedb.deltalog.listing import Checkpoint, LogFile, list_log
from deltalakedb.deltalog.replay import (
    ControlState,
    FileColumns,
    LiveFiles,
    VersionTotals,
    file_id,
)
from deltalakedb.errors import (
    CatalogConstraintError,
    CatalogError,
    CommitOutcomeUnknownError,
    ConfigurationError,
    CorruptCatalogError,
    Fix,
    InvalidActionError,
    InvalidLogError,
    InvalidSchemaError,
    Option,
    PathNotAllowedError,
    TableExistsError,
    UnsupportedFeatureError,
)
from deltalakedb.importing.checkpoint_check import CheckpointCheck, checkpoints_to_compare
from deltalakedb.importing.log_rows import (
    CommitFile,
    CommitRow,
    LogBatch,
    LogBatchBuilder,
    commit_info,
    commit_row,
    planned_columns,
)
from deltalakedb.importing.parsing import Parser, Task, group, parser_for
from deltalakedb.importing.stages import Stages, discard, find_stages, fingerprint
from deltalakedb.progress import Phases, Progress
from deltalakedb.reading.data_files import descriptor_of
from deltalakedb.storage.locations import FilePlaces
from deltalakedb.store import TableRecord
from deltalakedb.store.bulk import HistoryWriter, live_files, live_totals
from deltalakedb.telemetry import warning

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.storage import Storage
    from deltalakedb.store import Store
    from deltalakedb.store.dialect import Row, Session

BuildPages = Callable[
    [str, "pa.Table | None", Sequence[tuple[int, int, int]]], Callable[[TableRecord], None]
]
"""Called before the last transaction with the table's id, all files of the history (None where they
are not in memory), and version, changes and live files of each version. Its result is called once
the table is registered."""
STAGE_FROM: Final = 10_000
"""The number of commits from which an import is written in stages."""
_LARGE: Final = 512 * 1024 * 1024
_STAGE_BATCHES: Final = 8
# A deletion vector, as JSON, whose file may lie outside the table.
_OUTSIDE_VECTOR: Final = r'"storageType": ?"p"|"pathOrInlineDv": ?"/|\.\.'


class _Version(NamedTuple):
    """A version to write to the ledger."""

    commit: CommitRow
    totals: VersionTotals
    in_commit_ms: int | None


@dataclass(slots=True)
class _Import:
    """One import, and the state that its log was replayed to so far."""

    store: Store
    history: OpenHistory
    name: str
    location: str
    phases: Phases
    table_id: str
    writer: HistoryWriter
    places: FilePlaces
    checkpoints: CheckpointCheck
    trust_commits: bool = False
    live: LiveFiles = field(default_factory=LiveFiles)
    control: ControlState = field(default_factory=ControlState)
    versions: list[_Version] = field(default_factory=list)
    partial: VersionTotals | None = None
    """The totals of a version of which more batches follow."""
    plan: Plan = ()
    has_own_uris: bool = False
    resumed: bool = False
    build_pages: BuildPages | None = None
    write_pages: Callable[[TableRecord], None] | None = None

    # --- reading --------------------------------------------------------------------------

    def batches(self, parse: Parser) -> Iterator[LogBatch]:
        """The whole log, with every commit parsed before the second batch is returned.

        So the catalog never waits for an object store inside a transaction.
        """
        base = self._base()
        first = list(islice(base, 1))
        commits: list[LogBatch] = []
        read = 0
        for batch in self.commits(parse, self.history.plan.commits):
            commits.append(batch)
            read += len(batch.commits)
            self.phases(read, self.history.plan.count)
        return chain(first, base, commits)

    def commits(self, parse: Parser, files: Iterable[LogFile]) -> Iterator[LogBatch]:
        """Parsed commits. The first group comes alone: it has the plan that the others need."""
        groups = group(files)
        for group_files in islice(groups, 1):
            for batch in parse([Task(group_files, self.plan)]):
                self.plan = batch.plan
                yield batch
        yield from parse(Task(group_files, self.plan) for group_files in groups)

    def _base(self) -> Iterator[LogBatch]:
        """The state that the history begins with, as the actions of its version."""
        version = self.history.plan.base_version
        if version is None:
            return
        num_actions = 0
        for actions in self.history.base_batches():
            builder = LogBatchBuilder(self.plan)
            num_actions += builder.add_state(
                version, actions, file=f"the checkpoint of version {version}"
            )
            batch = builder.build()
            self.plan = batch.plan
            yield batch
        builder = LogBatchBuilder(self.plan)
        builder.add_commit_row(self._base_commit(version, num_actions))
        yield builder.build()

    def _base_commit(self, version: int, num_actions: int) -> CommitRow:
        file = self.history.plan.base_commit
        if file is None:
            # Its commit file was deleted; only the checkpoint has its state.
            row = commit_row(
                CommitFile("", version, _base_ms(self.history)), b"", None, num_actions
            )
            return row._replace(digest="")
        data = self.history.spool.get(file.key)
        info = commit_info(parse_commit(data, file=file.key))
        return commit_row(CommitFile(file.key, version, file.modified_ms), data, info, num_actions)

    # --- writing --------------------------------------------------------------------------

    def run(self, session: Session, batches: Iterable[LogBatch]) -> TableRecord:
        """Write everything in the caller's transaction."""
        _check_free(self.store, session, self.name, self.location)
        for batch in batches:
            adds, removes = self._apply(batch)
            self.writer.write(session, adds, removes, batch.others)
            self._report_progress()
        return self._finish(session)

    def run_in_stages(self, parse: Parser, stages: Stages) -> TableRecord:
        """Write a transaction per stage, after the stages that exist already."""
        self.resumed = bool(stages.written)
        for batch in stages.batches():
            self._apply(batch)
            self._report_progress()
        start = stages.next_version
        rest = [file for file in self.history.plan.commits if file.version >= start]
        if self.control.metadata is not None:
            self.plan = planned_columns(self.control.metadata)
        base = iter(()) if stages.written else self._base()
        batches: list[LogBatch] = []
        for batch in chain(base, self.commits(parse, rest)):
            batches.append(batch)
            # The state that a history begins with is one stage, however many batches it has.
            if batch.commits and len(batches) >= _STAGE_BATCHES:
                self._write_stage(batches, stages)
                batches = []
        if batches:
            self._write_stage(batches, stages)
        with self.store.write() as session, session.bulk():
            _check_free(self.store, session, self.name, self.location)
            stages.end(session)
            return self._finish(session)

    def _write_stage(self, batches: list[LogBatch], stages: Stages) -> None:
        with self.store.write() as session, session.bulk():
            for batch in batches:
                adds, removes = self._apply(batch)
                self.writer.write(session, adds, removes, batch.others)
            stage = stages.write(session, [row for batch in batches for row in batch.commits])
        stages.written.append(stage)
        self._report_progress()

    def _apply(self, batch: LogBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Replay a batch; returns its adds and removes with the spelling of the live files."""
        self._check_places(batch)
        totals, add_paths, remove_paths = self.live.apply(
            batch.spans, _file_columns(batch.adds), _file_columns(batch.removes)
        )
        self.checkpoints.add_control(batch.others)
        control = dict(batch.others)
        commits = {commit.version: commit for commit in batch.commits}
        for span, own in zip(batch.spans, totals, strict=True):
            for action in control.get(span.version, ()):
                self.control.apply_control(action)
            whole = own if self.partial is None else self.partial.plus(own)
            commit = commits.get(span.version)
            self.partial = whole if commit is None else None
            if commit is not None:
                self._record(commit, whole)
        adds, removes = _with_paths(batch.adds, add_paths), _with_paths(batch.removes, remove_paths)
        self.writer.keep(adds, removes, batch.plans)
        return adds, removes

    def _check_places(self, batch: LogBatch) -> None:
        """Refuse files that lie outside the table and its allowed roots."""
        import pyarrow.compute as pc

        places = self.places
        column = batch.adds["path"]
        paths = column.filter(pc.match_substring_regex(column, ODD_PATH)).to_pylist()
        for _, actions in batch.others:
            paths += [action.path for action in actions if isinstance(action, CdcFile)]
        for path in paths:
            place = places.resolve(path)
            if not places.is_local and "//" in place.path:
                raise PathNotAllowedError(
                    f"The file {path[:200]!r} cannot be read",
                    why="it is a key with an empty segment, which engines read as another key",
                    fix="Copy the file to another key, and correct the log entry",
                )
            self.has_own_uris |= is_absolute(path) and places.is_own(place)
        vectors = batch.adds["deletion_vector"]
        outside = vectors.filter(pc.match_substring_regex(vectors, _OUTSIDE_VECTOR))
        for text in outside.drop_null().to_pylist():
            places.check_vector(descriptor_of(text, "a file"))

    def _record(self, commit: CommitRow, totals: VersionTotals) -> None:
        in_commit = commit.in_commit_ms
        if in_commit is not None and self.control.metadata is not None:
            properties = TableProperties(self.control.metadata.configuration)
            in_commit = in_commit if properties.enable_in_commit_timestamps else None
        self.versions.append(_Version(commit, totals, in_commit))
        if len(self.versions) == 1:
            self._check_control()

    def _report_progress(self) -> None:
        self.phases(len(self.versions), self.history.plan.count)

    def _write_versions(self, session: Session) -> None:
        now = self.store.clock.now_ms()
        times = commit_times(
            [VersionTime(v.commit.version, v.commit.file_ms, v.in_commit_ms) for v in self.versions]
        )
        rows: list[Row] = []
        status: list[Row] = []
        for (commit, totals, _), time in zip(self.versions, times, strict=True):
            operation = (
                commit.operation,
                commit.operation_params,
                commit.operation_metrics,
                commit.commit_info,
            )
            rows.append(
                (
                    *(commit.version, time, commit.committer, *operation, None, None),
                    *(commit.num_actions, *totals, now),
                )
            )
            published = ("SUCCEEDED", 0, None, commit.digest, None, commit.size)
            status.append((commit.version, *published, 0, now, now, None))
        self.writer.write_versions(session, rows, status)

    def _finish(self, session: Session) -> TableRecord:
        protocol, metadata = self._check_table()
        self._check_checkpoints()
        self.phases.begin("Writing the newest state")
        if self.build_pages is not None:
            changes = [
                (v.commit.version, v.totals.num_adds + v.totals.num_removes, v.totals.live_files)
                for v in self.versions
            ]
            self.write_pages = self.build_pages(self.table_id, self.writer.files(), changes)
        self._write_versions(session)
        now = self.store.clock.now_ms()
        plan = plan_of(metadata)
        record = TableRecord(
            table_id=self.table_id,
            name=self.name,
            location=self.location,
            protocol_min_reader=protocol.min_reader_version,
            protocol_min_writer=protocol.min_writer_version,
            properties=metadata.configuration,
            created_at=now,
            updated_at=now,
            plan=plan_text(plan),
            allowed_roots=self._allowed_roots(),
        )
        self.store.register(session, record)
        # The registry repeats more of the metadata than a new record has.
        self.store.update_table(
            session, self.table_id, protocol=protocol, metadata=metadata, updated_at=now
        )
        self.writer.finish(self.store, session, self.versions[-1].commit.version, plan)
        self._verify(session)
        return record

    def _allowed_roots(self) -> tuple[str, ...]:
        """Where files may lie; the location itself is one if the log has absolute paths to it."""
        own = (self.location,) if self.has_own_uris else ()
        return tuple(dict.fromkeys((*self.places.allowed_roots, *own)))

    # --- checks ---------------------------------------------------------------------------

    def _check_control(self) -> tuple[Protocol, Metadata]:
        protocol, metadata = self.control.protocol, self.control.metadata
        if protocol is None or metadata is None:
            lacks = "protocol" if protocol is None else "metaData"
            raise InvalidLogError(
                f"The log of {self.location} begins without {lacks} in version "
                f"{self.history.plan.first_version}",
                why="every state of a table has a protocol and metaData",
                fix="Restore the first commit or the checkpoint from a copy of _delta_log",
            )
        return protocol, metadata

    def _check_table(self) -> tuple[Protocol, Metadata]:
        protocol, metadata = self._check_control()
        check_readable(protocol, table=self.name)
        try:
            check_column_names(metadata.schema)
        except InvalidSchemaError as error:
            raise InvalidLogError(
                f"The schema of the table at {self.location} cannot be understood: {error.what}",
                why=error.why,
                fix=error.fix,
            ) from error
        return protocol, metadata

    def _check_checkpoints(self) -> None:
        """Refuse a log with a checkpoint that contradicts its commits."""
        if not self.checkpoints.checkpoints:
            return
        self.phases.begin("Comparing checkpoints")
        complete = not self.resumed
        problems = list(self.checkpoints.differences(self.writer.file_groups(), complete=complete))
        if not problems:
            return
        if self.trust_commits:
            warning(
                "import_checkpoints_differ",
                lambda: {"table": self.name, "location": self.location, "problems": problems},
            )
            return
        raise InvalidLogError(
            f"Checkpoints of {self.location} contradict its commits",
            why=" | ".join(problems[:3]),
            fix="Find out which of them is right: readers that begin with the checkpoint see "
            f"another table. With {Option('trust_commits', value=True)} the commits count; "
            f"{Fix('lake.repair', ...)} then rewrites the checkpoints. If the checkpoint is right, "
            "remove the commits up to its version from a copy of the log, and import that copy",
        )

    def _verify(self, session: Session) -> None:
        """Compare the catalog's answers with the replay; any difference ends the import."""
        self.phases.begin("Comparing with the log")
        first, last = self.versions[0].commit.version, self.versions[-1].commit.version
        totals = live_totals(session, self.table_id, first, last)
        for version, (number, files, size) in zip(self.versions, totals, strict=True):
            live = version.totals
            if (files, size) != (live.live_files, live.live_bytes):
                raise _mismatch(
                    f"version {number} has {files} files of {size} bytes in the catalog, and "
                    f"{live.live_files} of {live.live_bytes} in the log"
                )
        count = 0
        replayed = self.live.files
        for page in live_files(session, self.table_id):
            count += len(page)
            for path, dv_id, size in page:
                if replayed.get(file_id(path, dv_id)) != (path, size):
                    raise _mismatch(
                        f"the live file {path!r} {dv_id} of {size} bytes is not in the log"
                    )
        if count != len(replayed):
            raise _mismatch(f"{count} live files are in the catalog, {len(replayed)} in the log")


def import_table(
    store: Store,
    storage: Storage,
    *,
    name: str,
    location: str,
    progress: Progress | None = None,
    build_pages: BuildPages | None = None,
    stage_from: int = STAGE_FROM,
    parser: Parser | None = None,
    allowed_roots: Sequence[str] = (),
    trust_commits: bool = False,
) -> TableRecord:
    """Import the Delta table at `storage` under `name`; returns its record in the registry.

    `allowed_roots` are locations outside the table that its files may lie in. Checkpoints that
    contradict the commits are refused unless `trust_commits` is set.

    A log of `stage_from` commits or more is written in stages, and so is a very large one. Without
    `parser` the commits are parsed on this machine.
    """
    phases = Phases(progress)
    with store.read() as session:
        _check_free(store, session, name, location)
        written = find_stages(session, location)
    with Spool(storage) as spool:
        listing = list_log(storage)
        history = open_history(listing, spool, location=location)
        plan = history.plan
        if written and written[-1].fingerprint != fingerprint(plan, written[-1].next_version):
            # The log was replaced: the stages of the other one are of no use.
            discard(store, location)
            written = []
        table_id = written[0].table_id if written else str(uuid.uuid4())
        stages = Stages(store, location, plan, table_id, written)
        large = sum(file.size for file in plan.commits) > _LARGE or len(plan.commits) >= stage_from
        with HistoryWriter(table_id) as writer:
            work = _Import(
                store,
                history,
                name,
                location,
                phases,
                table_id,
                writer,
                FilePlaces(location, allowed_roots),
                checkpoints_to_compare(listing, history, spool),
                trust_commits=trust_commits,
                build_pages=build_pages,
            )
            with _parser(work, storage, parser) as parse:
                record = _run(work, parse, stages if written or large else None)
            if work.write_pages is not None:
                work.write_pages(record)
        return record


def _parser(
    work: _Import, storage: Storage, parser: Parser | None
) -> AbstractContextManager[Parser]:
    if parser is not None:
        return nullcontext(parser)
    return parser_for(storage, work.store.storage_options, len(work.history.plan.commits))


def _run(work: _Import, parse: Parser, stages: Stages | None) -> TableRecord:
    store, name, location = work.store, work.name, work.location
    try:
        work.phases.begin("Reading versions", main=stages is not None)
        if stages is not None:
            return work.run_in_stages(parse, stages)
        batches = work.batches(parse)
        work.phases.begin("Writing versions", main=True)
        with store.write() as session, session.bulk():
            return work.run(session, batches)
    except CommitOutcomeUnknownError:
        record = _registered(store, name, work.table_id)
        if record is None:
            raise
        return record
    except CatalogConstraintError as error:
        with store.read() as session:
            _check_free(store, session, name, location)
            if stages is not None:
                stages.check_concurrent(session)
        _undo(store, stages)
        raise InvalidLogError(
            f"The log of {location} holds a value that the catalog cannot keep",
            why=error.why,
            fix="Correct the action in the log, or restore it from a copy",
        ) from error
    except InvalidActionError as error:
        _undo(store, stages)
        raise InvalidLogError(
            f"The log of {location} is damaged: {error.what}", why=error.why, fix=error.fix
        ) from error
    except (
        InvalidLogError,
        PathNotAllowedError,
        UnsupportedFeatureError,
        CorruptCatalogError,
    ):
        _undo(store, stages)
        raise


def _undo(store: Store, stages: Stages | None) -> None:
    """Delete the stages of a refused log; those that cannot be deleted are never visible."""
    if stages is not None:
        with suppress(CatalogError):
            discard(store, stages.location)


def default_name(location: str) -> str:
    """The last part of a location."""
    name = unquote(location.rpartition("/")[2]).strip()
    if not name or not name.isprintable():
        raise ConfigurationError(
            f"{location!r} ends in nothing that could be the name of a table",
            fix=f"Pass a name, for example {Option('name', 'sales.orders')}",
        )
    return name


def _check_free(store: Store, session: Session, name: str, location: str) -> None:
    """Raise TableExistsError where the name or the location is registered already."""
    table = store.table_by_location(session, location)
    if table is not None:
        raise TableExistsError(
            f"The location {location} is registered already, as table {table.name!r}",
            fix=f"Use {Fix('lake.table', table.name)}, or drop it first with "
            f"{Fix('lake.drop_table', table.name)}",
        )
    if store.table_by_name(session, name) is not None:
        raise TableExistsError(
            f"There is a table {name!r} already", fix=f"Choose another name: {Option('name')}"
        )


def _registered(store: Store, name: str, table_id: str) -> TableRecord | None:
    """The table of this import, if the transaction with the lost acknowledgement committed."""
    with store.read() as session:
        record = store.table_by_name(session, name)
    return record if record is not None and record.table_id == table_id else None


def _base_ms(history: OpenHistory) -> int:
    """The time of a base version without commit file: before the next commit.

    A checkpoint may be written long after its version.
    """
    last = history.plan.base_pieces[-1]
    files = last.files if isinstance(last, Checkpoint) else (last,)
    following = [file.modified_ms - 1 for file in history.plan.commits[:1]]
    return min([*following, *(file.modified_ms for file in files)])


def _file_columns(batch: pa.RecordBatch) -> FileColumns:
    return FileColumns(*(batch[name].to_pylist() for name in ("path", "dv_id", "size_bytes")))


def _with_paths(batch: pa.RecordBatch, paths: Mapping[int, str]) -> pa.RecordBatch:
    """The same files with other paths at these positions."""
    import pyarrow as pa

    if not paths:
        return batch
    values = batch["path"].to_pylist()
    for position, path in paths.items():
        values[position] = path
    column = batch.schema.get_field_index("path")
    return batch.set_column(column, "path", pa.array(values, pa.string()))


def _mismatch(why: str) -> CorruptCatalogError:
    return CorruptCatalogError(
        "The import would have produced another table, and was undone",
        why=why,
        fix="This is a fault of deltalakedb: please report it with the _delta_log",
    )
