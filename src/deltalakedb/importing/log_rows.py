"""Commit files turned straight into columns of the ledger.

Guarantees:

- A `Piece` has everything that some commit files in a row say: columns for added and removed files
  and for the commits themselves, values for all other actions.
- The same commit gives the same rows here as through `parse_commit`: what is not of the plainest
  form is left to it, and so is the message where a line is damaged.
- Where a commit says two things of one file, application or domain, the last one counts.
- Pure: bytes in, columns out. It runs in this process, in helpers and
  in Spark's workers alike; pieces can be pickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orjson import loads as quick_loads

from deltalakedb.actions import Action, AddFile, CommitInfo, Metadata, RemoveFile
from deltalakedb.actions.codec import from_dict, parse_commit
from deltalakedb.actions.jsonvalue import loads
from deltalakedb.actions.planning import Plan, plan_of
from deltalakedb.deltalog.replay import file_key_of, reconcile
from deltalakedb.deltalog.tally import Span
from deltalakedb.errors import InvalidActionError, InvalidSchemaError
from deltalakedb.store.arrow import schema_of
from deltalakedb.store.records import VersionRecord
from deltalakedb.store.relations import ACTIVE_FILES, ADD_FILES, REMOVE_FILES
from deltalakedb.store.rows import FileKeys, add_values, map_text, remove_values

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store.dialect import Row

ADD_COLUMNS: Final = ADD_FILES.columns[1:]
REMOVE_COLUMNS: Final = REMOVE_FILES.columns[1:]
KEY_COLUMNS: Final = ACTIVE_FILES.columns[-9:]
_INT64: Final = 2**63
_MAPS: Final = 4096
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_ADD_NULLS: Final = (None,) * 6
_REMOVE_NULLS: Final = (None,) * 6


class CommitRow(NamedTuple):
    """What is kept of one commit beside its actions."""

    version: int
    file_ms: int
    in_commit_ms: int | None
    num_actions: int
    digest: str
    size: int
    committer: str | None
    operation: str | None
    operation_params: str | None
    operation_metrics: str | None
    commit_info: str | None


@dataclass(frozen=True, slots=True)
class Piece:
    """Some commits in a row, or a part of a state. Files are in the order of versions and paths.

    `plans` are those that the keys of its files were made by (None: they have none), `plan` is the
    one in force at its end.
    """

    spans: list[Span]
    commits: list[CommitRow]
    adds: pa.RecordBatch
    removes: pa.RecordBatch
    others: list[tuple[int, list[Action]]]
    plans: tuple[Plan | None, ...]
    plan: Plan


class CommitFile(NamedTuple):
    """A commit file to read: its key, version and time."""

    key: str
    version: int
    modified_ms: int


@dataclass(slots=True)
class PieceBuilder:
    """Collects commits until `piece` gives them out. `plan` is what the files' keys are made by.

    A metaData action brings the plan of the files after it.
    """

    plan: Plan = ()
    _adds: list[Row] = field(default_factory=list)
    _removes: list[Row] = field(default_factory=list)
    _spans: list[Span] = field(default_factory=list)
    _commits: list[CommitRow] = field(default_factory=list)
    _others: list[tuple[int, list[Action]]] = field(default_factory=list)
    _maps: dict[tuple[tuple[str, str | None], ...], str] = field(default_factory=dict)
    _keys: FileKeys | None = None
    _plans: dict[Plan, None] = field(default_factory=dict)

    def add_commit(self, file: CommitFile, data: bytes) -> None:
        """A commit file; InvalidLogError with its name and the line where it is damaged."""
        found = _Found()
        try:
            self._read(data, found)
        except (_OddError, InvalidActionError, UnicodeDecodeError):
            found = _Found()
            _sort(parse_commit(data, file=file.key), found)
        kept = self._keep(file.version, found, file.key)
        self._commits.append(commit_row(file, data, found.info, kept))

    def add_state(self, version: int, actions: Sequence[Action], *, file: str) -> int:
        """Actions of a state that is no commit of its own; how many of them count."""
        found = _Found()
        _sort(actions, found)
        return self._keep(version, found, file)

    def add_provenance(self, row: CommitRow) -> None:
        """What is kept of the commit whose state came before."""
        self._spans.append(Span(row.version, 0, 0, ""))
        self._commits.append(row)

    def piece(self) -> Piece:
        """What has been collected."""
        adds = _batch((*ADD_COLUMNS, *KEY_COLUMNS), self._adds)
        removes = _batch(REMOVE_COLUMNS, self._removes)
        return Piece(
            self._spans,
            self._commits,
            adds,
            removes,
            self._others,
            tuple(self._plans),
            self.plan,
        )

    # --- one commit -----------------------------------------------------------------------

    def _read(self, data: bytes, found: _Found) -> None:
        adds, removes = found.adds, found.removes
        # Only a line feed ends a line: U+0085, U+2028 and their like may stand inside strings.
        for line in data.removeprefix(_BYTE_ORDER_MARK).split(b"\n"):
            if not line:
                continue
            try:
                document = quick_loads(line)
            except ValueError:
                document = None
            if type(document) is dict and len(document) == 1:
                ((name, given),) = document.items()
                row: Row | None
                if name == "add" and type(given) is dict:
                    row = self._plain_add(given)
                    if row is not None:
                        adds.append(row)
                        continue
                elif name == "remove" and type(given) is dict:
                    row = self._plain_remove(given)
                    if row is not None:
                        removes.append(row)
                        continue
            self._read_exactly(line.decode(), found)
        if len({file_key_of(row[0], row[1]) for row in adds + removes}) < len(adds) + len(removes):
            # Two actions on one file, of which the later one counts.
            raise _OddError

    def _read_exactly(self, line: str, found: _Found) -> None:
        """A line with anything but plain files: there numbers may be of any size."""
        if line.isspace():
            return
        document = loads(line)
        if type(document) is not dict or len(document) != 1:
            raise _OddError
        action = from_dict(document)
        if type(action) is AddFile:
            found.adds.append(add_values(action))
        elif type(action) is RemoveFile:
            found.removes.append(remove_values(action))
        else:
            found.others.append(action)

    def _plain_add(self, given: Mapping[str, Any]) -> Row | None:
        """The row of an add of the form that nearly all have; None for any other."""
        get = given.get
        path, size, time, change = (
            get("path"),
            get("size"),
            get("modificationTime"),
            get("dataChange"),
        )
        stats, values = get("stats"), get("partitionValues")
        if (
            len(given) == 5 + (stats is not None)
            and _is_path(path)
            and type(size) is int
            and 0 <= size < _INT64
            and type(time) is int
            and 0 <= time < _INT64
            and (change is True or change is False)
            and (stats is None or (type(stats) is str and stats.isascii()))
            and type(values) is dict
        ):
            text = self._map(values)
            if text is not None:
                return (path, "", size, time, change, text, stats, *_ADD_NULLS)
        return None

    def _plain_remove(self, given: Mapping[str, Any]) -> Row | None:
        get = given.get
        path, time, change = get("path"), get("deletionTimestamp"), get("dataChange")
        size, values, extended = get("size"), get("partitionValues"), get("extendedFileMetadata")
        known = sum(item is not None for item in (path, time, change, size, values, extended))
        if (
            known == len(given)
            and _is_path(path)
            and type(time) is int
            and 0 <= time < _INT64
            and (change is True or change is False)
            and (extended is None or extended is True or extended is False)
            and (size is None or (type(size) is int and 0 <= size < _INT64))
            and (values is None or type(values) is dict)
        ):
            text = None if values is None else self._map(values)
            if (text is None) == (values is None):
                return (path, "", time, change, extended, text, size, *_REMOVE_NULLS)
        return None

    def _map(self, values: dict[str, Any]) -> str | None:
        """The text of a map of plain strings; None where it holds anything else."""
        key = tuple(values.items())
        try:
            text = self._maps.get(key)
        except TypeError:  # a list or an object inside, which is wrong
            return None
        if text is None:
            for name, value in key:
                if not (name.isascii() and (value is None or _is_ascii(value))):
                    return None
            if len(self._maps) >= _MAPS:
                self._maps.clear()
            text = self._maps[key] = map_text(values) or "{}"
        return text

    def _keep(self, version: int, found: _Found, file: str) -> int:
        """Keep what counts of a commit, in the order of paths; how many actions that is."""
        for action in found.others:
            if type(action) is Metadata:
                plan = planned(action)
                if plan != self.plan:
                    self.plan, self._keys = plan, None
        found.reconcile()
        found.adds.sort(key=_by_path)
        found.removes.sort(key=_by_path)
        if found.adds:
            self._plans[self.plan] = None
            if self._keys is None:
                self._keys = FileKeys(self.plan)
            keys = self._keys.of
            self._adds += [(version, *row, *keys(row[6], row[5])) for row in found.adds]
        self._removes += [(version, *row) for row in found.removes]
        self._spans.append(Span(version, len(found.adds), len(found.removes), file))
        if found.others:
            self._others.append((version, found.others))
        return len(found.adds) + len(found.removes) + len(found.others)


class _OddError(Exception):
    """A line of a form that only the general parser knows what to do with."""


@dataclass(slots=True)
class _Found:
    """The actions of one commit."""

    adds: list[Row] = field(default_factory=list)
    removes: list[Row] = field(default_factory=list)
    others: list[Action] = field(default_factory=list)
    info: CommitInfo | None = None
    order: dict[tuple[str, str], bool] | None = None
    """The files whose last action is an add, where the order of adds and removes was kept."""

    def reconcile(self) -> None:
        """Leave the last action on each file, application and domain."""
        infos = [action for action in self.others if type(action) is CommitInfo]
        if infos:
            self.info = infos[0]
        self.others = reconcile(self.others)
        if self.order is not None:
            self.adds = _last(self.adds, self.order, added=True)
            self.removes = _last(self.removes, self.order, added=False)


def _last(rows: list[Row], order: Mapping[tuple[str, str], bool], *, added: bool) -> list[Row]:
    by_key = {file_key_of(row[0], row[1]): row for row in rows}
    return [row for key, row in by_key.items() if order[key] is added]


def _sort(actions: Iterable[Action], found: _Found) -> None:
    """Sort actions by kind, and note what comes last of each file."""
    found.order = {}
    for action in actions:
        if type(action) is AddFile:
            found.adds.append(add_values(action))
            found.order[file_key_of(action.path, action.dv_id)] = True
        elif type(action) is RemoveFile:
            found.removes.append(remove_values(action))
            found.order[file_key_of(action.path, action.dv_id)] = False
        else:
            found.others.append(action)


def commit_row(file: CommitFile, data: bytes, info: CommitInfo | None, kept: int) -> CommitRow:
    """What is kept of a commit of `kept` actions beside its commitInfo."""
    user = None if info is None else info.fields.get("userName")
    committer = user if isinstance(user, str) else None
    row = VersionRecord("", file.version, 0, 0, committer, info).to_row()
    return CommitRow(
        version=file.version,
        file_ms=file.modified_ms,
        in_commit_ms=None if info is None else info.in_commit_timestamp,
        num_actions=kept + (info is not None),
        digest=hashlib.sha256(data).hexdigest(),
        size=len(data),
        committer=committer,
        operation=row[4],
        operation_params=row[5],
        operation_metrics=row[6],
        commit_info=row[7],
    )


def planned(metadata: Metadata) -> Plan:
    """The planned columns; none where nobody can read the schema.

    Only the newest schema has to be readable, and whoever needs it checks that.
    """
    try:
        return plan_of(metadata)
    except InvalidSchemaError:
        return ()


def _batch(columns: tuple[str, ...], rows: list[Row]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = schema_of(columns)
    values: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else ([] for _ in columns)
    arrays = [pa.array(column, kind) for column, kind in zip(values, schema.types, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def _is_path(value: object) -> bool:
    return (
        type(value) is str
        and value.isascii()
        and value != ""
        and "\0" not in value
        and "%00" not in value
    )


def _is_ascii(value: object) -> bool:
    return type(value) is str and value.isascii()


def _by_path(row: Row) -> tuple[str, str]:
    return row[0], row[1]
