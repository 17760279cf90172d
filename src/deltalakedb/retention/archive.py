"""An archive: rows of the catalog as Parquet files in a folder.

Guarantees:

- The manifest is written last, after every other file was read back with the digest that the
  manifest has: a folder with a manifest is complete.
- Memory holds one file at a time, of at most `_MAX_ROWS` rows.
- Rows have the same form from every engine.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from deltalakedb.errors import ArchiveError
from deltalakedb.store.relations import Kind, Relation
from deltalakedb.store.retention import EXPIRING

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.storage import Storage
    from deltalakedb.store.dialect import Row

MANIFEST: Final = "manifest.json"
STAYS: Final = "kept"
"""The additional column: whether the row stays in the catalog. The format names it so."""

_FORMAT: Final = "deltalakedb archive"
_VERSION: Final = 1
_MAX_ROWS: Final = 50_000
_MAX_CHARACTERS: Final = 32 * 1024 * 1024
_BATCH: Final = 10_000
_RELATIONS: Final = {relation.name: relation for relation in EXPIRING}


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A Parquet file of an archive: rows of one relation, of which `kept` stay in the catalog.

    The fields are those of the manifest.
    """

    relation: str
    key: str
    rows: int
    kept: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of an archive: versions of a table, and the files with their rows."""

    table_id: str
    name: str
    location: str
    first_version: int
    last_version: int
    created_at: int
    files: tuple[ArchivedFile, ...]

    def to_json(self) -> bytes:
        """The text of the manifest."""
        document = {"format": _FORMAT, "format_version": _VERSION, **asdict(self)}
        return json.dumps(document, indent=1, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes, *, where: str) -> Manifest:
        """The inverse of `to_json`; ArchiveError for anything else."""
        try:
            document: dict[str, Any] = json.loads(data)
            if document.pop("format") != _FORMAT:
                raise ArchiveError(
                    f"{where} is not the manifest of an archive", fix="Check the location"
                )
            if (version := document.pop("format_version")) != _VERSION:
                raise ArchiveError(
                    f"The archive {where} has format version {version}",
                    why=f"this release knows version {_VERSION}",
                    fix="Upgrade deltalakedb",
                )
            files = tuple(ArchivedFile(**file) for file in document.pop("files"))
            manifest = cls(**document, files=files)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArchiveError(
                f"The manifest {where} is damaged",
                why=str(error),
                fix="Restore it from a copy",
            ) from error
        unknown = sorted({file.relation for file in files} - set(_RELATIONS))
        if unknown:
            raise ArchiveError(
                f"The archive {where} has rows of unknown relations: {', '.join(unknown)}",
                fix="Upgrade deltalakedb",
            )
        return manifest


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a relation for one file; `stays` has for each whether it stays in the catalog."""

    relation: str
    key: str
    rows: list[Row]
    stays: list[bool]
    folder: str


PartWriter: TypeAlias = Callable[[Iterable[Part]], Iterator[ArchivedFile]]
"""Writes parts, in this process or elsewhere; returns their files in order."""


def parts_of(
    relation: Relation, pages: Iterator[tuple[list[Row], list[bool]]], *, folder: str
) -> Iterator[Part]:
    """All rows of a relation, in parts."""
    rows: list[Row] = []
    stays: list[bool] = []
    size = number = 0
    for page, stays_of_page in pages:
        rows += page
        stays += stays_of_page
        size += sum(len(value) for row in page for value in row if type(value) is str)
        if len(rows) >= _MAX_ROWS or size >= _MAX_CHARACTERS:
            yield _part(relation, number, rows, stays, folder)
            rows, stays, size, number = [], [], 0, number + 1
    if rows:
        yield _part(relation, number, rows, stays, folder)


def _part(relation: Relation, number: int, rows: list[Row], stays: list[bool], folder: str) -> Part:
    return Part(relation.name, f"{relation.name}-{number:05d}.parquet", rows, stays, folder)


def write_part(storage: Storage, part: Part) -> ArchivedFile:
    """Write one file; idempotent."""
    data = _encode(_RELATIONS[part.relation], part.rows, part.stays)
    storage.put(f"{part.folder}/{part.key}", data)
    digest = hashlib.sha256(data).hexdigest()
    return ArchivedFile(part.relation, part.key, len(part.rows), sum(part.stays), len(data), digest)


def complete(storage: Storage, folder: str, manifest: Manifest) -> Manifest:
    """Read every file of an archive back, then write its manifest."""
    for file in manifest.files:
        data = storage.get(f"{folder}/{file.key}")
        check_file(file, len(data), hashlib.sha256(data).hexdigest(), folder=folder)
    storage.put(f"{folder}/{MANIFEST}", manifest.to_json())
    return manifest


def check_file(file: ArchivedFile, size: int, digest: str, *, folder: str) -> None:
    """Raise ArchiveError where a file has not the recorded size and digest."""
    if (size, digest) != (file.size_bytes, file.sha256):
        raise ArchiveError(
            f"The file {folder}/{file.key} of the archive is damaged",
            why="it has another digest than when it was written"
            if size == file.size_bytes
            else f"it has {size} bytes instead of {file.size_bytes}",
            fix="Restore the file from a copy",
        )


def read_rows(file: ArchivedFile, data: bytes) -> Iterator[list[Row]]:
    """The rows of a file that were deleted from the catalog, page by page."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    relation = _RELATIONS[file.relation]
    parquet = pq.ParquetFile(pa.BufferReader(data))
    if parquet.schema_arrow.names != [*relation.columns, STAYS]:
        raise ArchiveError(
            f"The file {file.key} of the archive has other columns than {relation.name}",
            why="another release has written it",
            fix="Use the release that wrote it",
        )
    for batch in parquet.iter_batches(batch_size=_BATCH):
        deleted = batch.filter(pc.invert(batch.column(STAYS))).select(list(relation.columns))
        columns = [column.to_pylist() for column in deleted.columns]
        if deleted.num_rows:
            yield list(zip(*columns, strict=True))


def relation_of(file: ArchivedFile) -> Relation:
    """The relation that a file has rows of."""
    return _RELATIONS[file.relation]


def _encode(relation: Relation, rows: Sequence[Row], stays: Sequence[bool]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = schema_of(relation)
    columns = [*zip(*rows, strict=True), tuple(stays)]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink, compression="zstd")
    return sink.getvalue()


def schema_of(relation: Relation) -> pa.Schema:
    """The schema of the files of a relation: its columns, then `STAYS`.

    UUIDs, maps and documents are text, lists are lists of text.
    """
    import pyarrow as pa

    types = {
        Kind.INT: pa.int64(),
        Kind.BOOL: pa.bool_(),
        Kind.LIST: pa.list_(pa.string()),
        Kind.BYTES: pa.binary(),
    }
    fields = [
        pa.field(name, types.get(kind, pa.string()))
        for name, kind in zip(relation.columns, relation.kinds, strict=True)
    ]
    return pa.schema([*fields, pa.field(STAYS, pa.bool_(), nullable=False)])
