"""An existing Delta table becomes one of ours, with its history.

Guarantees:

- Nobody sees anything before the last database transaction, which registers the table. A log of
  few commits takes one; a larger one is written in stages (`import_stages.py`), and an import that
  was killed goes on after the last of them. A log that is refused leaves the catalog as it was.
- Versions keep their numbers, times, actions and commitInfo. A log whose old commits are gone
  begins with its oldest state that can be rebuilt, as the actions of that version.
- Before anything is committed, what the catalog would answer (live files and bytes of every
  version, the live files of the newest one) is compared with a replay of the log in memory.
- Nothing is written to the table's location.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from deltalakedb.actions import Action, CdcFile, CommitInfo, Metadata, Protocol, parse_commit
from deltalakedb.actions.features import check_readable
from deltalakedb.actions.file_paths import ODD_PATH, is_absolute
from deltalakedb.actions.planning import Plan, plan_of, plan_text
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.schema_checks import check_column_names
from deltalakedb.deltalog.fetch import Spool
from deltalakedb.deltalog.history import OpenHistory, open_history
from deltalakedb.deltalog.listing import Checkpoint, LogFile, list_log
from deltalakedb.deltalog.replay import file_key_of
from deltalakedb.deltalog.tally import Files, Sums, Tally
from deltalakedb.deltalog.times import VersionTime, commit_times
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
    Piece,
    PieceBuilder,
    commit_row,
    planned,
)
from deltalakedb.importing.parsing import Parser, Task, group, parser_for
from deltalakedb.importing.stages import Stages, discard, find, fingerprint
from deltalakedb.operations.alter import check_name
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

Pages = Callable[
    [str, "pa.Table | None", Sequence[tuple[int, int, int]]], Callable[[TableRecord], None]
]
"""Called before the last transaction with the table's id, all files that ever were (where they are
still in memory), and the changes and live files of each version. What it gives back is called when
the table is there."""
STAGE_FROM: Final = 10_000
"""From how many commits on an import is written in stages."""
_LARGE: Final = 512 * 1024 * 1024
_STAGE_PIECES: Final = 8
# The deletion vectors whose files may lie elsewhere, as JSON.
_ODD_VECTOR: Final = r'"storageType": ?"p"|"pathOrInlineDv": ?"/|\.\.'
_NOTHING = Sums(0, 0, 0, 0, 0, 0)


@dataclass(slots=True)
class _Version:
    """A version on its way into the ledger."""

    commit: CommitRow
    sums: Sums
    in_commit_ms: int | None


@dataclass(slots=True)
class _Import:
    """One import: what has been replayed so far."""

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
    tally: Tally = field(default_factory=Tally)
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    versions: list[_Version] = field(default_factory=list)
    begun: Sums = _NOTHING
    plan: Plan = ()
    has_own_uris: bool = False
    resumed: bool = False
    pages: Pages | None = None
    write_pages: Callable[[TableRecord], None] | None = None

    # --- reading --------------------------------------------------------------------------

    def pieces(self, parse: Parser) -> Iterator[Piece]:
        """All that the log says, with every commit parsed before the second piece comes.

        The catalog never waits for an object store inside a transaction.
        """
        base = self._base()
        first = list(islice(base, 1))
        commits: list[Piece] = []
        read = 0
        for piece in self.commits(parse, self.history.plan.commits):
            commits.append(piece)
            read += len(piece.commits)
            self.phases(read, self.history.plan.count)
        return chain(first, base, commits)

    def commits(self, parse: Parser, files: Iterable[LogFile]) -> Iterator[Piece]:
        """Commits, parsed. The first ones alone: they tell which keys the others need."""
        groups = group(files)
        for some in islice(groups, 1):
            for piece in parse([Task(some, self.plan)]):
                self.plan = piece.plan
                yield piece
        yield from parse(Task(some, self.plan) for some in groups)

    def _base(self) -> Iterator[Piece]:
        """The state that the history begins with, as the actions of its version."""
        version = self.history.plan.base_version
        if version is None:
            return
        kept = 0
        for batch in self.history.base_batches():
            builder = PieceBuilder(self.plan)
            kept += builder.add_state(version, batch, file=f"the checkpoint of version {version}")
            piece = builder.piece()
            self.plan = piece.plan
            yield piece
        builder = PieceBuilder(self.plan)
        builder.add_provenance(self._base_commit(version, kept))
        yield builder.piece()

    def _base_commit(self, version: int, kept: int) -> CommitRow:
        file = self.history.plan.base_commit
        if file is None:
            # Its commit file is gone; only the checkpoint vouches for it.
            row = commit_row(CommitFile("", version, _base_ms(self.history)), b"", None, kept)
            return row._replace(digest="")
        data = self.history.spool.get(file.key)
        actions = parse_commit(data, file=file.key)
        info = next((action for action in actions if isinstance(action, CommitInfo)), None)
        return commit_row(CommitFile(file.key, version, file.modified_ms), data, info, kept)

    # --- writing --------------------------------------------------------------------------

    def run(self, session: Session, pieces: Iterable[Piece]) -> TableRecord:
        _refuse_taken(self.store, session, self.name, self.location)
        for piece in pieces:
            adds, removes = self._apply(piece)
            self.writer.write(session, adds, removes, piece.others)
            self._tell()
        return self._finish(session)

    def run_in_stages(self, parse: Parser, stages: Stages) -> TableRecord:
        """A transaction for some commits at a time, after those that are there already."""
        self.resumed = bool(stages.written)
        for piece in stages.pieces():
            self._apply(piece)
            self._tell()
        start = stages.next_version
        left = [file for file in self.history.plan.commits if file.version >= start]
        if self.metadata is not None:
            self.plan = planned(self.metadata)
        base = iter(()) if stages.written else self._base()
        held: list[Piece] = []
        for piece in chain(base, self.commits(parse, left)):
            held.append(piece)
            # The state that a history begins with is one stage, however many pieces it has.
            if piece.commits and len(held) >= _STAGE_PIECES:
                self._write_stage(held, stages)
                held = []
        if held:
            self._write_stage(held, stages)
        with self.store.write() as session, session.bulk():
            _refuse_taken(self.store, session, self.name, self.location)
            stages.end(session)
            return self._finish(session)

    def _write_stage(self, pieces: list[Piece], stages: Stages) -> None:
        with self.store.write() as session, session.bulk():
            for piece in pieces:
                adds, removes = self._apply(piece)
                self.writer.write(session, adds, removes, piece.others)
            stage = stages.write(session, [row for piece in pieces for row in piece.commits])
        stages.written.append(stage)
        self._tell()

    def _apply(self, piece: Piece) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Replay a piece; its files, spelled as the live files are."""
        self._check_places(piece)
        sums, adds, removes = self.tally.apply(
            piece.spans, _files(piece.adds), _files(piece.removes)
        )
        self.checkpoints.note(piece.others)
        control = dict(piece.others)
        commits = {commit.version: commit for commit in piece.commits}
        for span, own in zip(piece.spans, sums, strict=True):
            for action in control.get(span.version, ()):
                self._control(action)
            self.begun = self.begun.then(own)
            if span.version in commits:
                self._record(commits[span.version], self.begun)
                self.begun = _NOTHING
        respelled = _respelled(piece.adds, adds), _respelled(piece.removes, removes)
        self.writer.keep(*respelled, piece.plans)
        # What was read stays until the end, and has no cycles: nobody need look for any in it.
        gc.freeze()
        return respelled

    def _check_places(self, piece: Piece) -> None:
        """Refuse files that the log names, and that may not be the table's."""
        import pyarrow.compute as pc

        places = self.places
        paths = piece.adds["path"]
        odd = paths.filter(pc.match_substring_regex(paths, ODD_PATH)).to_pylist()
        for _, actions in piece.others:
            odd += [action.path for action in actions if isinstance(action, CdcFile)]
        for path in odd:
            place = places.resolve(path)
            if not places.is_local and "//" in place.path:
                raise PathNotAllowedError(
                    f"The file {path[:200]!r} cannot be read",
                    why="it is a key with an empty segment, which engines read as another key",
                    fix="Copy the file to another key, and correct the log entry",
                )
            self.has_own_uris |= is_absolute(path) and places.is_own(place)
        vectors = piece.adds["deletion_vector"]
        elsewhere = vectors.filter(pc.match_substring_regex(vectors, _ODD_VECTOR))
        for text in elsewhere.drop_null().to_pylist():
            places.check_vector(descriptor_of(text, "a file"))

    def _control(self, action: Action) -> None:
        if isinstance(action, Protocol):
            self.protocol = action
        elif isinstance(action, Metadata):
            self.metadata = action

    def _record(self, commit: CommitRow, sums: Sums) -> None:
        in_commit = commit.in_commit_ms
        if in_commit is not None and self.metadata is not None:
            properties = TableProperties(self.metadata.configuration)
            in_commit = in_commit if properties.enable_in_commit_timestamps else None
        self.versions.append(_Version(commit, sums, in_commit))
        if len(self.versions) == 1:
            self._check_begun()

    def _tell(self) -> None:
        self.phases(len(self.versions), self.history.plan.count)

    def _write_versions(self, session: Session) -> None:
        now = self.store.clock.now_ms()
        times = commit_times(
            [VersionTime(v.commit.version, v.commit.file_ms, v.in_commit_ms) for v in self.versions]
        )
        rows: list[Row] = []
        status: list[Row] = []
        for (commit, sums, _), time in zip(map(_parts, self.versions), times, strict=True):
            described = (
                commit.operation,
                commit.operation_params,
                commit.operation_metrics,
                commit.commit_info,
            )
            rows.append(
                (
                    *(commit.version, time, commit.committer, *described, None, None),
                    *(commit.num_actions, *sums, now),
                )
            )
            published = ("SUCCEEDED", 0, None, commit.digest, None, commit.size)
            status.append((commit.version, *published, 0, now, now, None))
        self.writer.write_versions(session, rows, status)

    def _finish(self, session: Session) -> TableRecord:
        protocol, metadata = self._check_table()
        self._check_checkpoints()
        self.phases.begin("Writing the newest state")
        if self.pages is not None:
            changes = [
                (v.commit.version, v.sums.num_adds + v.sums.num_removes, v.sums.live_files)
                for v in self.versions
            ]
            self.write_pages = self.pages(self.table_id, self.writer.files(), changes)
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
        """Where files may lie; the location itself says that the log has absolute paths to it."""
        own = (self.location,) if self.has_own_uris else ()
        return tuple(dict.fromkeys((*self.places.allowed_roots, *own)))

    # --- checks ---------------------------------------------------------------------------

    def _check_begun(self) -> tuple[Protocol, Metadata]:
        protocol, metadata = self.protocol, self.metadata
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
        protocol, metadata = self._check_begun()
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
        """Refuse a log whose readers see another table by its checkpoint than by its commits."""
        if not self.checkpoints.checkpoints:
            return
        self.phases.begin("Comparing checkpoints")
        complete = not self.resumed
        problems = list(self.checkpoints.problems(self.writer.file_groups(), complete=complete))
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
        """Compare what the catalog answers with the replay; any difference ends the import."""
        self.phases.begin("Comparing with the log")
        first, last = self.versions[0].commit.version, self.versions[-1].commit.version
        totals = live_totals(session, self.table_id, first, last)
        for version, (number, files, size) in zip(self.versions, totals, strict=True):
            live = version.sums
            if (files, size) != (live.live_files, live.live_bytes):
                raise _wrong(
                    f"version {number} has {files} files of {size} bytes in the catalog, and "
                    f"{live.live_files} of {live.live_bytes} in the log"
                )
        seen = 0
        known = self.tally.files
        for page in live_files(session, self.table_id):
            seen += len(page)
            for path, dv_id, size in page:
                if known.get(file_key_of(path, dv_id)) != (path, size):
                    raise _wrong(
                        f"the live file {path!r} {dv_id} of {size} bytes is not in the log"
                    )
        if seen != len(self.tally.files):
            raise _wrong(
                f"{seen} live files are in the catalog, {len(self.tally.files)} in the log"
            )


def take_over(
    store: Store,
    storage: Storage,
    *,
    name: str,
    location: str,
    progress: Progress | None = None,
    pages: Pages | None = None,
    stage_from: int = STAGE_FROM,
    parser: Parser | None = None,
    allowed_roots: Sequence[str] = (),
    trust_commits: bool = False,
) -> TableRecord:
    """Import the Delta table at `storage` under `name`; its record in the registry.

    `allowed_roots` are locations beside its own that its files may lie in. Checkpoints that
    contradict the commits are refused unless it shall `trust_commits`.

    A log of `stage_from` commits or more is written in stages, and so is a very large one. Without
    `parser` its commits are parsed here.
    """
    check_name(name)
    phases = Phases(progress)
    with store.read() as session:
        _refuse_taken(store, session, name, location)
        there = find(session, location)
    with Spool(storage) as spool:
        listing = list_log(storage)
        history = open_history(listing, spool, location=location)
        plan = history.plan
        if there and there[-1].fingerprint != fingerprint(plan, there[-1].next_version):
            # The log is another one by now: what there is of it would be of no use.
            discard(store, location)
            there = []
        table_id = there[0].table_id if there else str(uuid.uuid4())
        stages = Stages(store, location, plan, table_id, there)
        large = sum(file.size for file in plan.commits) > _LARGE or len(plan.commits) >= stage_from
        with HistoryWriter(table_id) as writer:
            places = FilePlaces(location, allowed_roots)
            work = _Import(
                store,
                history,
                name,
                location,
                phases,
                table_id,
                writer,
                places,
                checkpoints_to_compare(listing, history, spool),
                trust_commits=trust_commits,
                pages=pages,
            )
            try:
                with _parser(work, storage, parser) as parse:
                    record = _run(work, parse, stages if there or large else None)
            finally:
                gc.unfreeze()
            if work.write_pages is not None:
                work.write_pages(record)
        return record


def _parser(
    work: _Import, storage: Storage, given: Parser | None
) -> AbstractContextManager[Parser]:
    if given is not None:
        return nullcontext(given)
    return parser_for(storage, work.store.storage_options, len(work.history.plan.commits))


def _run(work: _Import, parse: Parser, stages: Stages | None) -> TableRecord:
    store, name, location = work.store, work.name, work.location
    try:
        work.phases.begin("Reading versions", main=stages is not None)
        if stages is not None:
            return work.run_in_stages(parse, stages)
        pieces = work.pieces(parse)
        work.phases.begin("Writing versions", main=True)
        with store.write() as session, session.bulk():
            return work.run(session, pieces)
    except CommitOutcomeUnknownError:
        found = _look_up(store, name, work.table_id)
        if found is None:
            raise
        return found
    except CatalogConstraintError as error:
        with store.read() as session:
            _refuse_taken(store, session, name, location)
            if stages is not None:
                stages.check_rivals(session)
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
    """Leave the catalog as it was: the log is refused. What cannot be deleted stays hidden."""
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


def _refuse_taken(store: Store, session: Session, name: str, location: str) -> None:
    taken = store.table_by_location(session, location)
    if taken is not None:
        raise TableExistsError(
            f"The location {location} is registered already, as table {taken.name!r}",
            fix=f"Use {Fix('lake.table', taken.name)}, or drop it first with "
            f"{Fix('lake.drop_table', taken.name)}",
        )
    if store.table_by_name(session, name) is not None:
        raise TableExistsError(
            f"There is a table {name!r} already", fix=f"Choose another name: {Option('name')}"
        )


def _look_up(store: Store, name: str, table_id: str) -> TableRecord | None:
    with store.read() as session:
        found = store.table_by_name(session, name)
    return found if found is not None and found.table_id == table_id else None


def _base_ms(history: OpenHistory) -> int:
    """When a state was committed whose commit is gone: before the next one, whatever its files say.

    A checkpoint may be written long after its version.
    """
    last = history.plan.base_pieces[-1]
    files = last.files if isinstance(last, Checkpoint) else (last,)
    following = [file.modified_ms - 1 for file in history.plan.commits[:1]]
    return min([*following, *(file.modified_ms for file in files)])


def _parts(version: _Version) -> tuple[CommitRow, Sums, int | None]:
    return version.commit, version.sums, version.in_commit_ms


def _files(batch: pa.RecordBatch) -> Files:
    return Files(*(batch[name].to_pylist() for name in ("path", "dv_id", "size_bytes")))


def _respelled(batch: pa.RecordBatch, paths: Mapping[int, str]) -> pa.RecordBatch:
    """The same files, some with another spelling of their path."""
    import pyarrow as pa

    if not paths:
        return batch
    spelled = batch["path"].to_pylist()
    for position, path in paths.items():
        spelled[position] = path
    column = batch.schema.get_field_index("path")
    return batch.set_column(column, "path", pa.array(spelled, pa.string()))


def _wrong(why: str) -> CorruptCatalogError:
    return CorruptCatalogError(
        "The import would not have given the same table, and was undone",
        why=why,
        fix="This is a fault of deltalakedb: please report it with the _delta_log",
    )
