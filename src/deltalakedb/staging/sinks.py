"""Writes data files to local disks and object stores.

An unfinished file does not exist for readers: on a local disk it is deleted if writing fails, in an
object store its parts are never assembled.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalakedb.errors import StorageError
from deltalakedb.storage import (
    check_options,
    check_process,
    delete_leftovers,
    local_path,
    normalise_location,
    open_object_store,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class Sinks:
    """Creates files below one location."""

    def __init__(self, location: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.location = normalise_location(location)
        self._options = check_options(storage_options)
        self._folder = local_path(self.location)
        self._store: ObjectStore | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Sinks, (self.location, self._options)

    def create(self, key: str) -> Sink:
        """Create a binary file; `close()` finishes it, `abandon()` discards it."""
        if self._folder is not None:
            path = self._folder / key
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                return _LocalSink(path)
            except OSError as error:
                raise StorageError(
                    f"Cannot write {path}",
                    why=str(error),
                    fix="Check that the disk has room and that you may write there",
                ) from error
        from obstore import open_writer

        check_process(self.location)
        if self._store is None:
            self._store = open_object_store(self.location, self._options)
        return _StoreSink(open_writer(self._store, key))

    def delete(self, keys: list[str]) -> None:
        """Delete files that no commit refers to; failures are left to vacuum."""
        delete_leftovers(self.location, keys, self._options)


class Sink(ABC):
    """A file that pyarrow writes sequentially."""

    closed = False
    _abandoned = False

    def __init__(self) -> None:
        self._position = 0

    def tell(self) -> int:
        """The number of bytes written."""
        return self._position

    def write(self, data: Any) -> int:
        """Add bytes."""
        # A writer of pyarrow that is collected unfinished still writes its footer.
        if not self._abandoned:
            self._write(data)
        self._position += len(data)
        return len(data)

    def flush(self) -> None:  # noqa: B027 - pyarrow calls it
        """Do nothing: the file appears when it is complete."""

    def close(self) -> None:
        """Finish the file."""
        if not self.closed:
            self.closed = True
            self._finish()

    def abandon(self) -> None:
        """Discard the file."""
        self._abandoned = True
        if not self.closed:
            self.closed = True
            self._drop()

    @abstractmethod
    def _write(self, data: Any) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...

    @abstractmethod
    def _drop(self) -> None: ...


class _LocalSink(Sink):
    """A file that is on the disk when it is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("xb")

    def _write(self, data: Any) -> None:
        self._file.write(data)

    def _finish(self) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def _drop(self) -> None:
        self._file.close()


class _StoreSink(Sink):
    """An object that appears when it is closed."""

    def __init__(self, writer: Any) -> None:
        super().__init__()
        self._writer = writer

    def _write(self, data: Any) -> None:
        self._writer.write(bytes(data))

    def _finish(self) -> None:
        self._writer.close()

    def _drop(self) -> None:
        self._writer = None
