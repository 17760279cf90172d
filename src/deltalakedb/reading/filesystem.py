"""Opens the files of a table for reading, on a local disk or in an object store.

Guarantees:

- Local files are read by pyarrow itself; every other store through `obstore`, with its names of
  storage options, in the calling thread: pyarrow's own threads never call into Python.
- A path of the log is decoded once. It is relative to the table, or absolute; then it is opened
  only where files of the table may lie (`storage.locations`).
- An error names the table and the file. No secret of the storage options appears in one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from deltalakedb.errors import DataFileError, DataFileMissingError
from deltalakedb.storage import check_options, check_process, open_object_store
from deltalakedb.storage.locations import FilePlaces

if TYPE_CHECKING:
    import pyarrow as pa

_SECRET: Final = re.compile(
    r"secret|key|token|password|sas|credential|authorization", re.IGNORECASE
)


class TableFiles:
    """The files of the table at `location` (a URI or a local path)."""

    def __init__(
        self,
        location: str,
        storage_options: Mapping[str, str] | None = None,
        allowed_roots: Sequence[str] = (),
    ) -> None:
        self._places = FilePlaces(location, allowed_roots)
        self.location = self._places.location
        self._options = check_options(storage_options)
        self._stores: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"TableFiles({self.location!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return TableFiles, (self.location, self._options, self._places.allowed_roots)

    @property
    def is_local(self) -> bool:
        """Whether the table lies on a disk, and not in an object store."""
        return self._places.is_local

    def open(self, log_path: str) -> pa.NativeFile | RangeReader:
        """Open the file of a log path for random access."""
        from pyarrow.fs import LocalFileSystem

        place = self._places.resolve(log_path)
        try:
            if place.scheme == "file":
                return LocalFileSystem().open_input_file(place.path)
            return RangeReader(self._store(place.store), place.path.removeprefix("/"))
        except FileNotFoundError as error:
            raise self._missing(log_path, place.path) from error
        except OSError as error:
            raise self.failed(log_path, error) from None

    def local_path(self, log_path: str) -> str | None:
        """Return the local path of a log path; None in an object store."""
        place = self._places.resolve(log_path)
        return place.path if place.scheme == "file" else None

    def read_range(self, log_path: str, start: int, length: int) -> bytes:
        """Read `length` bytes from `start` on, or fewer where the file ends before."""
        with self.open(log_path) as file:
            try:
                if start >= file.size():
                    return b""
                file.seek(start)
                return bytes(file.read(length))
            except OSError as error:
                raise self.failed(log_path, error) from None

    def relative(self, path: str) -> str:
        """Encode a path below the table as the log does."""
        return quote(path)

    def _store(self, url: str) -> Any:
        if url not in self._stores:
            self._stores[url] = open_object_store(url, self._options)
        return self._stores[url]

    def _missing(self, log_path: str, path: str) -> DataFileMissingError:
        return DataFileMissingError(
            f"A file of the table at {self.location} is missing: {log_path}",
            why=f"the table refers to it, but there is nothing at {path}",
            fix="It was deleted or moved, perhaps by a vacuum with too short a retention. Restore "
            "it from a backup, or restore the table to a version that does not need it",
        )

    def failed(self, log_path: str, error: BaseException) -> DataFileError:
        """The error to raise when a file cannot be read."""
        text = str(error)
        for name, value in self._options.items():
            if value and _SECRET.search(name):
                text = text.replace(value, "***").replace(quote(value, safe=""), "***")
        # A signature may be part of the URL.
        text = re.sub(r"\?[^\s\"')>]+", "?***", text)
        return DataFileError(
            f"Cannot read {log_path} of the table at {self.location}",
            why=text[:500],
            fix="Check that the file is whole, and that it may be read with these storage options",
        )


def _translated(call: Callable[..., Any], store: Any, path: str, **options: Any) -> Any:
    """Call obstore and raise its errors as OSError."""
    import obstore

    check_process(path)
    try:
        return call(store, path, **options)
    except obstore.exceptions.BaseError as error:
        raise OSError(str(error).partition("\n")[0]) from None


class RangeReader(io.RawIOBase):
    """An object as a file. Each read is one request, unless `prefetch` has fetched it before."""

    def __init__(self, store: Any, path: str) -> None:
        import obstore

        super().__init__()
        self._store = store
        self._path = path
        self._size = int(_translated(obstore.head, store, path)["size"])
        self._position = 0
        self._fetched: list[tuple[int, Any]] = []

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch these ranges (start, length) in one request; drop the ranges fetched before."""
        import obstore

        starts = [start for start, _ in ranges]
        lengths = [length for _, length in ranges]
        parts = _translated(
            obstore.get_ranges, self._store, self._path, starts=starts, lengths=lengths
        )
        self._fetched = [
            (start, memoryview(part)) for start, part in zip(starts, parts, strict=True)
        ]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        """The size of the object in bytes."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size - self._position, 0)
        length = left if size is None or size < 0 else min(size, left)
        if not length:
            return b""
        data = self._range(self._position, length)
        self._position += len(data)
        return data

    def _range(self, start: int, length: int) -> bytes:
        for first, part in self._fetched:
            if first <= start and start + length <= first + len(part):
                return bytes(part[start - first : start - first + length])
        import obstore

        return bytes(
            _translated(obstore.get_range, self._store, self._path, start=start, length=length)
        )
