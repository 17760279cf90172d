"""The service that Spark's scans ask for their files, over loopback.

A scan (`LakeFileIndex` in the jar) asks when it runs, with the filters that Spark has by then.

Guarantees:

- The service needs a token, a new one in each process, and ends with the process.
- A request names a version of a table: whenever it is sent, the files are the same.
- The catalog need not stay open. One that was closed is opened for the request.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from deltalakedb.actions.arrow import type_to_arrow
from deltalakedb.asgi import Server
from deltalakedb.conditions.predicate import Opaque, Predicate, conjunction
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import DeltaLakeDbError, InvalidConditionError, TableNotFoundError
from deltalakedb.forking import ProcessLock
from deltalakedb.lake import open_lakes
from deltalakedb.reading.data_files import DataFile, deleted_rows
from deltalakedb.reading.dataset import layout_of
from deltalakedb.service.access import Access, RefusedError, Scope, Token, bearer
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.snapshot import open_snapshot
from deltalakedb.spark.io.file_columns import file_schema, name_in_files
from deltalakedb.spark.io.paths import hadoop_uris
from deltalakedb.spark.io.timestamps import zone_of
from deltalakedb.storage.locations import FilePlaces
from deltalakedb.store import Store

if TYPE_CHECKING:
    from deltalakedb.store.url import CatalogUrl

_COLUMNS: Final = ("path", "size_bytes", "modification_time", "partition_values", "deletion_vector")
_BATCH: Final = 65_536


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """A scan of a version of a table.

    `where` is a condition of the user, with times in `zone`, Spark's name of the session's; the
    table has the name `alias` in it.
    """

    catalog: int
    table_id: str
    version: int
    where: str | None = None
    zone: str = "UTC"
    alias: str | None = None

    def text(self) -> str:
        """The scan as text; `read` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> ScanSpec:
        """The scan of a text."""
        return cls(**json.loads(text))


# --- the service --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileService:
    """The address of the service, and its token."""

    address: str
    token: str = field(repr=False)


_lock: Final = ProcessLock()
_running: list[FileService] = []
_catalogs: list[tuple[CatalogUrl, dict[str, str]]] = []


def file_service() -> FileService:
    """The service of this process; the first call starts it."""
    with _lock.lock:
        if not _running:
            token = secrets.token_urlsafe(32)
            app = Starlette(routes=[Route("/files", _endpoint(token), methods=["POST"])])
            server = Server("Lists of files for Spark", app, host="127.0.0.1", port=0).start()
            _running.append(FileService(f"{server.address}/files", token))
        return _running[0]


def scan_of(snapshot: Snapshot, where: str | None, zone: str, alias: str | None) -> ScanSpec:
    """The scan of a snapshot, for requests to the service."""
    number = _catalog_number(snapshot.store)
    return ScanSpec(number, snapshot.table.table_id, snapshot.version, where, zone, alias)


def _catalog_number(store: Store) -> int:
    """The number by which requests name a catalog: its URL can have a password in it."""
    options = dict(store.storage_options)
    with _lock.lock:
        for number, (url, known) in enumerate(_catalogs):
            if store.is_at(url) and known == options:
                return number
        _catalogs.append((store.dialect.url, options))
        return len(_catalogs) - 1


def _endpoint(token: str) -> Any:
    access = Access([Token(token)])

    async def files(request: Request) -> Response:
        try:
            access.check(bearer(request.headers.get("Authorization", "")), Scope.READ)
            asked = json.loads(await request.body())
            spec, filters = ScanSpec.read(asked["scan"]), asked["filters"]
            body = await to_thread.run_sync(_answer, spec, filters, abandon_on_cancel=True)
        except RefusedError as error:
            return PlainTextResponse(str(error), error.status)
        except DeltaLakeDbError as error:
            return PlainTextResponse(str(error), 500)
        return Response(body, media_type="application/vnd.apache.arrow.stream")

    return files


def _answer(spec: ScanSpec, filters: list[str]) -> bytes:
    with _store(spec) as store:
        snapshot = _snapshot(store, spec)
        table = _encoded(snapshot, _matching(snapshot, spec, filters))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=_BATCH)
    body: bytes = sink.getvalue().to_pybytes()
    return body


@contextmanager
def _store(spec: ScanSpec) -> Iterator[Store]:
    """The catalog of a scan: one that is open in this process, or else a new connection."""
    url, options = _catalogs[spec.catalog]
    for lake in open_lakes():
        if lake.store.is_at(url) and lake.storage_options == options:
            yield lake.store
            return
    store = Store.open(url, storage_options=options)
    try:
        yield store
    finally:
        store.close()


def _snapshot(store: Store, spec: ScanSpec) -> Snapshot:
    table = store.dialect.ask(lambda session: store.table_by_id(session, spec.table_id))
    if table is None:
        raise TableNotFoundError(
            "The table is no longer in the catalog",
            why="It was dropped after the DataFrame was created",
            fix="Create the DataFrame again, from a table that exists",
        )
    return open_snapshot(store, None, table, spec.version)


# --- its answers --------------------------------------------------------------------------


def _matching(snapshot: Snapshot, spec: ScanSpec, filters: Iterable[str]) -> pa.Table:
    """The files that can hold rows for the condition of the user and all filters of Spark.

    A filter that the catalog cannot plan with leaves all files; Spark applies it to the rows.
    """
    partitions = snapshot.partition_columns
    parts: list[Predicate] = []
    if spec.where is not None:
        zone = zone_of(spec.zone) or UTC
        parts.append(
            parse_where(
                spec.where, snapshot.schema, partitions, strict=False, zone=zone, alias=spec.alias
            )
        )
    # Spark's filters name columns as the files do.
    schema = file_schema(snapshot)
    names = [name_in_files(snapshot, snapshot.schema.field(name)) for name in partitions]
    for text in filters:
        with suppress(InvalidConditionError):
            parts.append(parse_where(text, schema, names, strict=False))
    known = [part for part in parts if not isinstance(part, Opaque)]
    return snapshot.files(where=conjunction(known), columns=_COLUMNS)


def _encoded(snapshot: Snapshot, files: pa.Table) -> pa.Table:
    """URIs, sizes, times, numbers of deleted rows, and the values of the partition columns."""
    places = FilePlaces(snapshot.table.location, snapshot.table.allowed_roots)
    return pa.table(
        {
            "uri": hadoop_uris(places, files["path"]),
            "size": files["size_bytes"],
            "time": files["modification_time"],
            "deleted": _deleted(snapshot, files),
            **_partition_values(snapshot, files),
        }
    )


def _deleted(snapshot: Snapshot, files: pa.Table) -> pa.Array:
    """The numbers of the deleted rows of each file, eight bytes each; null for a file without."""
    vectors = files["deletion_vector"]
    if vectors.null_count == files.num_rows:
        return pa.nulls(files.num_rows, pa.binary())
    layout = layout_of(snapshot)

    def read(path: str, values: str, vector: str | None) -> bytes | None:
        deleted = None if vector is None else deleted_rows(layout, DataFile(path, values, vector))
        if deleted is None or not deleted.cardinality:
            return None
        return bytes(deleted.numbers().buffers()[1])

    rows = (files[name].to_pylist() for name in ("path", "partition_values", "deletion_vector"))
    return pa.array(map(read, *rows), pa.binary())


def _partition_values(snapshot: Snapshot, files: pa.Table) -> dict[str, pa.Array]:
    """The values of the partition columns, by number; each distinct text is decoded once."""
    layout = layout_of(snapshot)
    texts = pc.dictionary_encode(files["partition_values"]).combine_chunks()
    decoded = [layout.partition(text) for text in texts.dictionary.to_pylist()]
    columns = {}
    for number, name in enumerate(snapshot.partition_columns):
        field = snapshot.schema.field(name)
        values = [one[field.name].as_py() for one in decoded]
        columns[f"value_{number}"] = pa.array(values, type_to_arrow(field.type)).take(texts.indices)
    return columns
