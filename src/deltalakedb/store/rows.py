"""Rows of the catalog: tables, versions and actions to rows and back, without loss.

The commitInfo of a commit lives in its row of dl_table_versions; every other action has a row in
the relation of its kind. A field that the protocol leaves out is NULL, an empty map is an empty
map; unknown fields and explicit nulls are in `extra`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from deltalakedb.actions import (
    Action,
    AddFile,
    CdcFile,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from deltalakedb.actions.codec import from_dict, to_dict
from deltalakedb.actions.fields import read_deletion_vector, write_deletion_vector
from deltalakedb.actions.jsonvalue import dumps, loads
from deltalakedb.actions.order_keys import FileKeys
from deltalakedb.actions.planning import Plan
from deltalakedb.errors import InvalidActionError
from deltalakedb.store.relations import (
    ADD_FILES,
    CDC_FILES,
    DOMAIN_METADATA,
    LIVE,
    METADATA_UPDATES,
    OTHER_ACTIONS,
    PROTOCOL_UPDATES,
    REMOVE_FILES,
    TXN_ACTIONS,
    UNPLANNED_FILES,
    Relation,
)

if TYPE_CHECKING:
    from deltalakedb.store.dialect import Row, Session

RowsByRelation = dict[Relation, list["Row"]]
_PARTITION_VALUES = UNPLANNED_FILES.columns.index("partition_values")
_STATS = UNPLANNED_FILES.columns.index("stats")
_MAX_LONG: Final = 2**63 - 1


def to_rows(table_id: str, version: int, actions: Iterable[Action]) -> RowsByRelation:
    """The ledger rows of one commit; its commitInfo is left to the caller."""
    rows: RowsByRelation = {}
    others: list[Row] = []
    for action in actions:
        if type(action) is CommitInfo:
            continue
        writer = _WRITERS.get(type(action))
        if writer is None:
            others.append((table_id, version, len(others), dumps(to_dict(action))))
        else:
            relation, write = writer
            rows.setdefault(relation, []).append((table_id, version, *write(action)))
    if others:
        rows[OTHER_ACTIONS] = others
    return rows


def active_rows(add_rows: Iterable[Row]) -> list[Row]:
    """The rows of dl_active_files that rows of dl_add_files open."""
    return [
        (table_id, path, dv_id, version, LIVE, *rest)
        for table_id, version, path, dv_id, *rest in add_rows
    ]


def planned_rows(files: Iterable[Row], plan: Plan) -> list[Row]:
    """Rows of dl_active_files (without keys) with the keys of a plan."""
    keys = FileKeys(plan)
    return [(*row, *keys.of(row[_STATS], row[_PARTITION_VALUES])) for row in files]


def decode_map(text: str, decode: Callable[[str], str]) -> str:
    """The JSON text of a map whose strings the engine may have stored in another form."""
    document = json.loads(text)
    changed = {decode(k): v if v is None else decode(v) for k, v in document.items()}
    return text if changed == document else _compact(changed)


def from_row(relation: Relation, row: Row, session: Session) -> Action:
    """The action of a ledger row, in the column order of its relation."""
    return _READERS[relation](_Reader(session, relation, row))


def read_commit_info(text: str | None) -> CommitInfo | None:
    """The commitInfo of a version, or None where it had none."""
    return None if text is None else CommitInfo(loads(text))


# --- writing ------------------------------------------------------------------------------

_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def map_text(value: Mapping[str, str | None] | None) -> str | None:
    """A map of the protocol as the ledger has it."""
    if not value:
        return None if value is None else "{}"
    return _compact(dict(value))


def _extra(value: Mapping[str, Any]) -> str | None:
    return dumps(value) if value else None


def _vector(value: DeletionVectorDescriptor | None) -> str | None:
    return None if value is None else dumps(write_deletion_vector(value))


def add_values(a: AddFile) -> Row:
    """The row of an added file, after its table and version."""
    return (
        a.path,
        a.dv_id,
        a.size,
        a.modification_time,
        a.data_change,
        map_text(a.partition_values),
        a.stats,
        map_text(a.tags),
        _vector(a.deletion_vector),
        a.base_row_id,
        a.default_row_commit_version,
        a.clustering_provider,
        _extra(a.extra),
    )


def remove_values(r: RemoveFile) -> Row:
    """The row of a removed file, after its table and version."""
    return (
        r.path,
        r.dv_id,
        r.deletion_timestamp,
        r.data_change,
        r.extended_file_metadata,
        map_text(r.partition_values),
        r.size,
        r.stats,
        map_text(r.tags),
        _vector(r.deletion_vector),
        r.base_row_id,
        r.default_row_commit_version,
        _extra(r.extra),
    )


def _cdc(c: CdcFile) -> Row:
    return (
        c.path,
        c.size,
        c.data_change,
        map_text(c.partition_values),
        map_text(c.tags),
        _extra(c.extra),
    )


def _metadata(m: Metadata) -> Row:
    if m.schema_string is not None:
        _check_json(m.schema_string)
    return (
        m.id,
        m.name,
        m.description,
        m.format_provider,
        map_text(m.format_options),
        m.schema_string,
        list(m.partition_columns),
        map_text(m.configuration),
        m.created_time,
        _extra(m.extra),
    )


def _check_json(schema_string: str) -> None:
    try:
        loads(schema_string)
    except InvalidActionError as error:
        raise InvalidActionError(
            "The metaData action has a schemaString that is not JSON",
            why=error.why,
            fix="Pass the schema as the Delta protocol writes it",
        ) from error


def _protocol(p: Protocol) -> Row:
    return (
        p.min_reader_version,
        p.min_writer_version,
        None if p.reader_features is None else list(p.reader_features),
        None if p.writer_features is None else list(p.writer_features),
        _extra(p.extra),
    )


def _txn(t: Txn) -> Row:
    return (t.app_id, t.version, t.last_updated, _extra(t.extra))


def _domain(d: DomainMetadata) -> Row:
    return (d.domain, d.configuration, d.removed, _extra(d.extra))


_WRITERS: Mapping[type[Any], tuple[Relation, Callable[[Any], Row]]] = {
    AddFile: (ADD_FILES, add_values),
    RemoveFile: (REMOVE_FILES, remove_values),
    CdcFile: (CDC_FILES, _cdc),
    Metadata: (METADATA_UPDATES, _metadata),
    Protocol: (PROTOCOL_UPDATES, _protocol),
    Txn: (TXN_ACTIONS, _txn),
    DomainMetadata: (DOMAIN_METADATA, _domain),
}


# --- reading ------------------------------------------------------------------------------


class _Reader:
    """The columns of one row by name, decoded from what the engine gives back."""

    def __init__(self, session: Session, relation: Relation, row: Row) -> None:
        self._decode = session.decode_text
        self._row = dict(zip(relation.columns, row, strict=True))

    def plain(self, column: str) -> Any:
        return self._row[column]

    def text(self, column: str) -> Any:
        value = self._row[column]
        return None if value is None else self._decode(value)

    def boolean(self, column: str) -> Any:
        value = self._row[column]
        return None if value is None else bool(value)

    def map(self, column: str) -> Any:
        value = self._row[column]
        if value is None:
            return None
        decode = self._decode
        return {
            decode(key): item if item is None else decode(item)
            for key, item in json.loads(value).items()
        }

    def names(self, column: str) -> tuple[str, ...] | None:
        value = self._row[column]
        if value is None:
            return None
        items: Sequence[str] = json.loads(value) if isinstance(value, str) else value
        return tuple(self._decode(item) for item in items)

    def document(self, column: str) -> Any:
        value = self._row[column]
        return None if value is None else loads(value)

    def extra(self) -> Mapping[str, Any]:
        return self.document("extra") or {}

    def vector(self) -> DeletionVectorDescriptor | None:
        value = self.document("deletion_vector")
        return None if value is None else read_deletion_vector(value)


def _read_add(r: _Reader) -> AddFile:
    return AddFile(
        path=r.text("path"),
        partition_values=r.map("partition_values"),
        size=r.plain("size_bytes"),
        modification_time=r.plain("modification_time"),
        data_change=r.boolean("data_change"),
        stats=r.text("stats"),
        tags=r.map("tags"),
        deletion_vector=r.vector(),
        base_row_id=r.plain("base_row_id"),
        default_row_commit_version=r.plain("default_row_commit_version"),
        clustering_provider=r.text("clustering_provider"),
        extra=r.extra(),
    )


def _read_remove(r: _Reader) -> RemoveFile:
    return RemoveFile(
        path=r.text("path"),
        data_change=r.boolean("data_change"),
        deletion_timestamp=r.plain("deletion_timestamp"),
        extended_file_metadata=r.boolean("extended_file_metadata"),
        partition_values=r.map("partition_values"),
        size=r.plain("size_bytes"),
        stats=r.text("stats"),
        tags=r.map("tags"),
        deletion_vector=r.vector(),
        base_row_id=r.plain("base_row_id"),
        default_row_commit_version=r.plain("default_row_commit_version"),
        extra=r.extra(),
    )


def _read_cdc(r: _Reader) -> CdcFile:
    return CdcFile(
        path=r.text("path"),
        partition_values=r.map("partition_values"),
        size=r.plain("size_bytes"),
        data_change=r.boolean("data_change"),
        tags=r.map("tags"),
        extra=r.extra(),
    )


def _read_metadata(r: _Reader) -> Metadata:
    return Metadata(
        id=r.text("metadata_id"),
        format_provider=r.text("format_provider"),
        format_options=r.map("format_options"),
        schema_string=r.plain("schema_json"),
        partition_columns=r.names("partition_columns") or (),
        configuration=r.map("table_properties"),
        name=r.text("name"),
        description=r.text("description"),
        created_time=r.plain("created_time"),
        extra=r.extra(),
    )


def _read_protocol(r: _Reader) -> Protocol:
    return Protocol(
        min_reader_version=r.plain("min_reader_version"),
        min_writer_version=r.plain("min_writer_version"),
        reader_features=r.names("reader_features"),
        writer_features=r.names("writer_features"),
        extra=r.extra(),
    )


def _read_txn(r: _Reader) -> Txn:
    return Txn(
        app_id=r.text("app_id"),
        version=r.plain("txn_version"),
        last_updated=r.plain("last_update"),
        extra=r.extra(),
    )


def _read_domain(r: _Reader) -> DomainMetadata:
    return DomainMetadata(
        domain=r.text("domain"),
        configuration=r.text("configuration"),
        removed=r.boolean("removed"),
        extra=r.extra(),
    )


_READERS: Mapping[Relation, Callable[[_Reader], Action]] = {
    ADD_FILES: _read_add,
    REMOVE_FILES: _read_remove,
    CDC_FILES: _read_cdc,
    METADATA_UPDATES: _read_metadata,
    PROTOCOL_UPDATES: _read_protocol,
    TXN_ACTIONS: _read_txn,
    DOMAIN_METADATA: _read_domain,
    OTHER_ACTIONS: lambda r: from_dict(r.document("action")),
}


# --- tables and versions ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A registered table, with the newest protocol and properties repeated for listings."""

    table_id: str
    name: str
    location: str
    protocol_min_reader: int
    protocol_min_writer: int
    properties: Mapping[str, str]
    created_at: int
    updated_at: int
    plan: str | None = None
    """The planned columns of the keys of its files (see actions.planning)."""
    allowed_roots: tuple[str, ...] = ()
    """Where files of the table may lie beside its location."""

    def to_row(self) -> Row:
        """The row of dl_tables."""
        return (
            self.table_id,
            self.name,
            self.location,
            self.protocol_min_reader,
            self.protocol_min_writer,
            dumps(self.properties),
            self.created_at,
            self.updated_at,
            self.plan,
            roots_text(self.allowed_roots),
        )

    @classmethod
    def from_row(cls, row: Row, session: Session) -> TableRecord:
        """The inverse of `to_row`, for what a query on dl_tables gives back."""
        table_id, name, location, reader, writer, properties, created_at, updated_at, *rest = row
        plan, roots = rest
        decode = session.decode_text
        return cls(
            table_id=table_id,
            name=decode(name),
            location=decode(location),
            protocol_min_reader=reader,
            protocol_min_writer=writer,
            properties={decode(k): decode(v) for k, v in json.loads(properties).items()},
            created_at=created_at,
            updated_at=updated_at,
            plan=None if plan is None else decode(plan),
            allowed_roots=() if roots is None else tuple(json.loads(decode(roots))),
        )


def roots_text(roots: Sequence[str]) -> str | None:
    """Allowed roots as dl_tables has them."""
    return json.dumps(list(roots)) if roots else None


class Counts(NamedTuple):
    """How much a commit changed, and what was live after it: columns of dl_table_versions."""

    num_actions: int = 0
    num_adds: int = 0
    num_removes: int = 0
    bytes_added: int = 0
    bytes_removed: int = 0
    live_files: int = 0
    live_bytes: int = 0


class VersionRecord(NamedTuple):
    """A commit in the ledger: time, committer, commitInfo, and counts.

    The ledger repeats operation, parameters and metrics in columns of their own, to be searched.
    """

    table_id: str
    version: int
    committed_at: int
    recorded_at: int
    committer: str | None = None
    commit_info: CommitInfo | None = None
    commit_uuid: str | None = None
    transaction_id: str | None = None
    counts: Counts = Counts()
    commit_info_text: str | None = None
    """The commitInfo as canonical JSON, if it was serialised before."""

    @property
    def timestamp(self) -> datetime:
        """When it was committed, in UTC."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.committed_at)

    @property
    def operation(self) -> str | None:
        """What was done, e.g. `WRITE` or `MERGE`."""
        return None if self.commit_info is None else self.commit_info.operation

    @property
    def operation_parameters(self) -> Mapping[str, Any]:
        """How it was done."""
        return (self.commit_info and self.commit_info.operation_parameters) or {}

    @property
    def operation_metrics(self) -> Mapping[str, Any]:
        """How much was done, as text."""
        return (self.commit_info and self.commit_info.operation_metrics) or {}

    def to_row(self) -> Row:
        """The row of dl_table_versions."""
        info = self.commit_info or CommitInfo()
        return (
            self.table_id,
            self.version,
            self.committed_at,
            self.committer,
            info.operation,
            _json(info.operation_parameters),
            _json(info.operation_metrics),
            self.commit_info_text or _json(None if self.commit_info is None else info.fields),
            self.commit_uuid,
            self.transaction_id,
            *self.counts,
            self.recorded_at,
        )

    @classmethod
    def from_row(cls, row: Row, session: Session) -> VersionRecord:
        """The inverse of `to_row`, for what a query on dl_table_versions gives back."""
        committer = row[3]
        return cls(
            table_id=row[0],
            version=row[1],
            committed_at=row[2],
            recorded_at=row[17],
            committer=None if committer is None else session.decode_text(committer),
            commit_info=read_commit_info(row[7]),
            commit_uuid=row[8],
            transaction_id=row[9],
            counts=Counts(*row[10:17]),
        )


class Payload(NamedTuple):
    """What the mirror has to publish for a version."""

    data: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class ActiveFilesProblem:
    """A difference between dl_active_files and the ledger: a row `missing` or `extra`."""

    problem: str
    path: str
    dv_id: str
    added_version: int
    removed_version: int


def account(
    before: Counts,
    actions: Iterable[Action],
    live: Mapping[tuple[str, str], int],
    *,
    num_others: int = 0,
) -> tuple[Counts, list[tuple[str, str]]]:
    """Counts of a commit on top of `before`, and the live files whose interval it ends.

    `live` maps the (path, dv_id) that are live and touched by the commit to their sizes;
    `num_others` is how many actions it has beside `actions`.
    """
    adds = removes = bytes_added = bytes_removed = 0
    total = num_others
    live_files, live_bytes = before.live_files, before.live_bytes
    closing: list[tuple[str, str]] = []
    for action in actions:
        total += 1
        if isinstance(action, AddFile):
            adds += 1
            bytes_added += action.size
            live_files += 1
            live_bytes += action.size
        elif isinstance(action, RemoveFile):
            removes += 1
            bytes_removed += action.size or 0
        else:
            continue
        key = (action.path, action.dv_id)
        if key in live:
            closing.append(key)
            live_files -= 1
            live_bytes -= live[key]
    if max(bytes_added, bytes_removed, live_bytes) > _MAX_LONG:
        raise InvalidActionError(
            "The sizes of the files of this commit add up to more than a long can hold",
            why=f"{max(bytes_added, bytes_removed, live_bytes)} bytes",
            fix="Pass the real sizes of the files",
        )
    return Counts(total, adds, removes, bytes_added, bytes_removed, live_files, live_bytes), closing


def _json(value: Mapping[str, Any] | None) -> str | None:
    if not value:
        return None if value is None else "{}"
    return dumps(value)
