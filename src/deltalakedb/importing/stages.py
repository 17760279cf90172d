"""The stages of a large import: it continues after the last of them if it was killed.

Guarantees:

- A stage is one database transaction: the ledger rows of consecutive versions, and a row of
  dl_import_stages. They are visible only after the last transaction registers the table.
- `Stages.batches` returns what stages have written, as the parser returned it.
- Stages are used only for the log that they were written from: the same names, sizes and times of
  its files up to their last version.
- Of two concurrent imports of one location, one ends with an error when it writes a stage that
  exists already.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from orjson import dumps as quick_dumps

from deltalakedb.actions import Action
from deltalakedb.deltalog.listing import Checkpoint, HistoryPlan, LogFile
from deltalakedb.deltalog.replay import VersionSpan
from deltalakedb.errors import CatalogBusyError
from deltalakedb.importing.log_rows import (
    ADD_COLUMNS,
    KEY_COLUMNS,
    REMOVE_COLUMNS,
    CommitRow,
    LogBatch,
)
from deltalakedb.store.arrow import FileQuery, schema_of
from deltalakedb.store.queries import select_rows
from deltalakedb.store.relations import IMPORT_STAGES, METADATA_UPDATES, PROTOCOL_UPDATES
from deltalakedb.store.rows import from_row, map_text

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store import Store
    from deltalakedb.store.dialect import Row, Session

_READ_VERSIONS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Stage:
    """A row of dl_import_stages."""

    table_id: str
    number: int
    next_version: int
    fingerprint: str
    commits: tuple[CommitRow, ...]


@dataclass(slots=True)
class Stages:
    """The stages of one import."""

    store: Store
    location: str
    plan: HistoryPlan
    table_id: str
    written: list[Stage] = field(default_factory=list)

    @property
    def next_version(self) -> int:
        """The first version that is in no stage."""
        return self.written[-1].next_version if self.written else self.plan.first_version

    def write(self, session: Session, commits: Sequence[CommitRow]) -> Stage:
        """Record a stage in the transaction that writes its rows."""
        following = commits[-1].version + 1
        stage = Stage(
            self.table_id,
            len(self.written),
            following,
            fingerprint(self.plan, following),
            tuple(commits),
        )
        data = zlib.compress(quick_dumps([tuple(row) for row in commits]), 1)
        now = self.store.clock.now_ms()
        row = (self.table_id, stage.number, self.location, following, stage.fingerprint, data, now)
        session.insert(IMPORT_STAGES, [row])
        return stage

    def end(self, session: Session) -> None:
        """Delete the stages, in the transaction that registers the table."""
        if session.changed("end_import", table_id=self.table_id) != len(self.written):
            raise _concurrent_import(self.location)

    def check_concurrent(self, session: Session) -> None:
        """Raise where another process has written a stage of the same import."""
        stages = find_stages(session, self.location)
        if len(stages) > len(self.written) or any(s.table_id != self.table_id for s in stages):
            raise _concurrent_import(self.location)

    def batches(self) -> Iterator[LogBatch]:
        """What the stages have written."""
        commits = [commit for stage in self.written for commit in stage.commits]
        for start in range(0, len(commits), _READ_VERSIONS):
            yield self._batch(commits[start : start + _READ_VERSIONS])

    def _batch(self, commits: list[CommitRow]) -> LogBatch:
        first, last = commits[0].version, commits[-1].version
        adds = self._files("dl_add_files", ADD_COLUMNS, first, last)
        removes = self._files("dl_remove_files", REMOVE_COLUMNS, first, last)
        added, removed = (Counter(batch["version"].to_pylist()) for batch in (adds, removes))
        spans = [VersionSpan(c.version, added[c.version], removed[c.version], "") for c in commits]
        control = self._control(first, last)
        return LogBatch(spans, commits, _without_keys(adds), removes, control, (None,), ())

    def _files(
        self, relation: str, columns: tuple[str, ...], first: int, last: int
    ) -> pa.RecordBatch:
        import pyarrow as pa

        query = FileQuery(
            f"SELECT {', '.join(columns)} FROM {relation} WHERE table_id = :table_id "  # noqa: S608
            "AND version >= :first AND version <= :last ORDER BY version",
            columns,
            {"table_id": self.table_id, "first": first, "last": last},
            by_index=True,
        )
        batches = list(self.store.dialect.list_files(query))
        table = pa.Table.from_batches(batches, schema_of(columns))
        arrays = [
            pa.array(_map_texts(column), pa.string())
            if name in ("partition_values", "tags")
            else column.combine_chunks()
            for name, column in zip(columns, table.columns, strict=True)
        ]
        return pa.record_batch(arrays, schema=schema_of(columns))

    def _control(self, first: int, last: int) -> list[tuple[int, list[Action]]]:
        control: dict[int, list[Action]] = {}
        with self.store.read() as session:
            for relation in (PROTOCOL_UPDATES, METADATA_UPDATES):
                query = select_rows(
                    session.engine, relation, "version >= :first AND version <= :last"
                )
                params = {"table_id": self.table_id, "first": first, "last": last}
                for row in session.execute(query, params):
                    control.setdefault(row[1], []).append(from_row(relation, row, session))
        return sorted(control.items(), key=lambda item: item[0])


def find_stages(session: Session, location: str) -> list[Stage]:
    """The stages of an unfinished import of a location."""
    rows = session.run_binary("import_stages", location=location)
    return [_stage(row) for row in rows]


def discard(store: Store, location: str) -> bool:
    """Delete the stages of an unfinished import; False where there are none."""
    with store.write() as session:
        ids = {stage.table_id for stage in find_stages(session, location)}
        for table_id in ids:
            store.forget_table(session, table_id)
    return bool(ids)


def fingerprint(plan: HistoryPlan, following: int) -> str:
    """A digest of the names, sizes and times of the log files before a version."""
    digest = hashlib.sha256()
    files: list[LogFile] = []
    for piece in plan.base_pieces:
        files += piece.files if isinstance(piece, Checkpoint) else (piece,)
    if plan.base_commit is not None:
        files.append(plan.base_commit)
    files += [file for file in plan.commits if file.version < following]
    lines = [f"{file.key}\n{file.size}\n{file.modified_ms}\n" for file in files]
    digest.update("".join(lines).encode())
    return digest.hexdigest()


def _concurrent_import(location: str) -> CatalogBusyError:
    return CatalogBusyError(
        f"Another import of {location} is under way",
        why="It has written the stage that this one was about to write",
        fix="Wait until it has finished; if it was killed, import again",
    )


def _stage(row: Row) -> Stage:
    table_id, number, _, following, mark, data, _ = row
    commits: list[list[Any]] = json.loads(zlib.decompress(bytes(data)))
    rows = tuple(CommitRow(*commit) for commit in commits)
    return Stage(str(table_id), int(number), int(following), mark, rows)


def _without_keys(adds: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa

    none = pa.nulls(adds.num_rows, pa.int64())
    arrays = [*adds.columns, *(none for _ in KEY_COLUMNS)]
    return pa.record_batch(arrays, schema=schema_of((*ADD_COLUMNS, *KEY_COLUMNS)))


def _map_texts(column: pa.ChunkedArray) -> list[str | None]:
    """Maps in canonical JSON: an engine may return them in another order and spacing."""
    texts: dict[str | None, str | None] = {None: None}
    for text in column.unique().to_pylist():
        if text is not None:
            texts[text] = map_text(json.loads(text))
    return [texts[text] for text in column.to_pylist()]
