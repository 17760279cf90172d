"""Commit files parsed directly into columns of the ledger.

Guarantees:

- A `LogBatch` has all actions of consecutive commit files: columns for added and removed files,
  rows for the commits, values for all other actions.
- A commit gives the same rows here as through `parse_commit`: lines of an unusual form are left to
  it, and so is the error where a line is damaged.
- The last action of a commit on a file, application or domain counts.
- Pure: bytes in, columns out. It runs in this process, in parser processes and in Spark's workers
  alike; batches can be pickled.
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
from deltalakedb.actions.order_keys import FileKeys
from deltalakedb.actions.planning import Plan, plan_of
from deltalakedb.deltalog.replay import VersionSpan, file_id, reconcile
from deltalakedb.errors import InvalidActionError, InvalidSchemaError
from deltalakedb.store.arrow import schema_of
from deltalakedb.store.relations import ACTIVE_FILES, ADD_FILES, REMOVE_FILES
from deltalakedb.store.rows import VersionRecord, add_values, map_text, remove_values

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
    """A commit without its actions."""

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
class LogBatch:
    """Consecutive commits, or a part of a state. Files are in the order of versions and paths.

    `plans` are those of the keys of its files (None: they have none), `plan` is the one after its
    last commit.
    """

    spans: list[VersionSpan]
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
class LogBatchBuilder:
    """Collects commits for a `LogBatch`; the keys of files follow from `plan`.

    A metaData action sets the plan of the files after it.
    """

    plan: Plan = ()
    _adds: list[Row] = field(default_factory=list)
    _removes: list[Row] = field(default_factory=list)
    _spans: list[VersionSpan] = field(default_factory=list)
    _commits: list[CommitRow] = field(default_factory=list)
    _others: list[tuple[int, list[Action]]] = field(default_factory=list)
    _maps: dict[tuple[tuple[str, str | None], ...], str] = field(default_factory=dict)
    _keys: FileKeys | None = None
    _plans: dict[Plan, None] = field(default_factory=dict)

    def add_commit(self, file: CommitFile, data: bytes) -> None:
        """Add a commit file; InvalidLogError with its name and the line where it is damaged."""
        actions = _CommitActions()
        try:
            self._read(data, actions)
        except (_UnusualFormError, InvalidActionError, UnicodeDecodeError):
            actions = _commit_actions(parse_commit(data, file=file.key))
        num_actions = self._append(file.version, actions, file.key)
        self._commits.append(commit_row(file, data, actions.info, num_actions))

    def add_state(self, version: int, actions: Sequence[Action], *, file: str) -> int:
        """Add actions of a state that has no commit file; returns how many of them count."""
        return self._append(version, _commit_actions(actions), file)

    def add_commit_row(self, row: CommitRow) -> None:
        """Add the commit whose actions `add_state` has added."""
        self._spans.append(VersionSpan(row.version, 0, 0, ""))
        self._commits.append(row)

    def build(self) -> LogBatch:
        """The batch of all that was added."""
        adds = _record_batch((*ADD_COLUMNS, *KEY_COLUMNS), self._adds)
        removes = _record_batch(REMOVE_COLUMNS, self._removes)
        return LogBatch(
            self._spans,
            self._commits,
            adds,
            removes,
            self._others,
            tuple(self._plans),
            self.plan,
        )

    # --- one commit -----------------------------------------------------------------------

    def _read(self, data: bytes, actions: _CommitActions) -> None:
        adds, removes = actions.adds, actions.removes
        # Only a line feed ends a line: U+0085, U+2028 and their like may stand inside strings.
        for line in data.removeprefix(_BYTE_ORDER_MARK).split(b"\n"):
            if not line:
                continue
            try:
                document = quick_loads(line)
            except ValueError:
                document = None
            if type(document) is dict and len(document) == 1:
                ((name, fields),) = document.items()
                row: Row | None
                if name == "add" and type(fields) is dict:
                    row = self._plain_add(fields)
                    if row is not None:
                        adds.append(row)
                        continue
                elif name == "remove" and type(fields) is dict:
                    row = self._plain_remove(fields)
                    if row is not None:
                        removes.append(row)
                        continue
            self._read_exactly(line.decode(), actions)
        if len({file_id(row[0], row[1]) for row in adds + removes}) < len(adds) + len(removes):
            # Two actions on one file, of which the later one counts.
            raise _UnusualFormError
        actions.info = commit_info(actions.others)
        actions.others = reconcile(actions.others)

    def _read_exactly(self, line: str, actions: _CommitActions) -> None:
        """Read a line of any other form, where numbers may be of any size."""
        if line.isspace():
            return
        document = loads(line)
        if type(document) is not dict or len(document) != 1:
            raise _UnusualFormError
        action = from_dict(document)
        if type(action) is AddFile:
            actions.adds.append(add_values(action))
        elif type(action) is RemoveFile:
            actions.removes.append(remove_values(action))
        else:
            actions.others.append(action)

    def _plain_add(self, fields: Mapping[str, Any]) -> Row | None:
        """The row of an add of the usual form; None for any other."""
        get = fields.get
        path, size, time, change = (
            get("path"),
            get("size"),
            get("modificationTime"),
            get("dataChange"),
        )
        stats, values = get("stats"), get("partitionValues")
        if (
            len(fields) == 5 + (stats is not None)
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

    def _plain_remove(self, fields: Mapping[str, Any]) -> Row | None:
        """The row of a remove of the usual form; None for any other."""
        get = fields.get
        path, time, change = get("path"), get("deletionTimestamp"), get("dataChange")
        size, values, extended = get("size"), get("partitionValues"), get("extendedFileMetadata")
        num_fields = sum(item is not None for item in (path, time, change, size, values, extended))
        if (
            num_fields == len(fields)
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

    def _append(self, version: int, actions: _CommitActions, file: str) -> int:
        """Append the actions that count, in the order of paths; returns how many they are."""
        for action in actions.others:
            if type(action) is Metadata:
                plan = planned_columns(action)
                if plan != self.plan:
                    self.plan, self._keys = plan, None
        actions.adds.sort(key=_by_path)
        actions.removes.sort(key=_by_path)
        if actions.adds:
            self._plans[self.plan] = None
            if self._keys is None:
                self._keys = FileKeys(self.plan)
            keys = self._keys.of
            self._adds += [(version, *row, *keys(row[6], row[5])) for row in actions.adds]
        self._removes += [(version, *row) for row in actions.removes]
        self._spans.append(VersionSpan(version, len(actions.adds), len(actions.removes), file))
        if actions.others:
            self._others.append((version, actions.others))
        return len(actions.adds) + len(actions.removes) + len(actions.others)


class _UnusualFormError(Exception):
    """A commit that only `parse_commit` can read."""


@dataclass(slots=True)
class _CommitActions:
    """The last action of a commit on each file, application and domain; and its commitInfo."""

    adds: list[Row] = field(default_factory=list)
    removes: list[Row] = field(default_factory=list)
    others: list[Action] = field(default_factory=list)
    info: CommitInfo | None = None


def _commit_actions(actions: Sequence[Action]) -> _CommitActions:
    result = _CommitActions(info=commit_info(actions))
    for action in reconcile(actions):
        if type(action) is AddFile:
            result.adds.append(add_values(action))
        elif type(action) is RemoveFile:
            result.removes.append(remove_values(action))
        else:
            result.others.append(action)
    return result


def commit_info(actions: Iterable[Action]) -> CommitInfo | None:
    """The first commitInfo of a commit."""
    return next((action for action in actions if type(action) is CommitInfo), None)


def commit_row(
    file: CommitFile, data: bytes, info: CommitInfo | None, num_actions: int
) -> CommitRow:
    """The row of a commit of `num_actions` actions beside its commitInfo."""
    user = None if info is None else info.fields.get("userName")
    committer = user if isinstance(user, str) else None
    row = VersionRecord("", file.version, 0, 0, committer, info).to_row()
    return CommitRow(
        version=file.version,
        file_ms=file.modified_ms,
        in_commit_ms=None if info is None else info.in_commit_timestamp,
        num_actions=num_actions + (info is not None),
        digest=hashlib.sha256(data).hexdigest(),
        size=len(data),
        committer=committer,
        operation=row[4],
        operation_params=row[5],
        operation_metrics=row[6],
        commit_info=row[7],
    )


def planned_columns(metadata: Metadata) -> Plan:
    """The planned columns; none where the schema is invalid.

    Only the newest schema has to be valid, and the import checks that one.
    """
    try:
        return plan_of(metadata)
    except InvalidSchemaError:
        return ()


def _record_batch(columns: tuple[str, ...], rows: list[Row]) -> pa.RecordBatch:
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
