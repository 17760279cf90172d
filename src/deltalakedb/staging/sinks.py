"""Where data files are written: local disks and object stores alike.

A file that is not finished is not there: on a local disk it is deleted when its writing fails, in
an object store its parts are never put together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalakedb.errors import StorageError
from deltalakedb.storage import (
    check_options,
    local_path,
    normalise_location,
    open_object_store,
    open_storage,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class Sinks:
    """Makes files below one location."""

    def __init__(self, location: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.location = normalise_location(location)
        self._options = check_options(storage_options)
        self._folder = local_path(self.location)
        self._store: ObjectStore | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Sinks, (self.location, self._options)

    def create(self, key: str) -> Any:
        """A binary file to write; `close()` finishes it."""
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

        if self._store is None:
            self._store = open_object_store(self.location, self._options)
        return open_writer(self._store, key)

    def delete(self, keys: list[str]) -> None:
        """Delete files that no commit will ever name; what cannot be deleted is left to vacuum."""
        storage = open_storage(self.location, self._options)
        for key in keys:
            try:
                storage.delete(key)
            except StorageError:
                continue


class _LocalSink:
    """A file that is on the disk when it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
