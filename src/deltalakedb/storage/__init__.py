"""Object stores: locations as URIs, and the objects below them.

Guarantees:

- `put_if_absent` is atomic: one of any number of callers creates the object, and no reader sees a
  part of it. On local disks the object is on the disk when the call returns, and a killed process
  leaves nothing behind if the system has files without a name (O_TMPFILE). In a store without
  conditional writes the object is looked up, written and read back: the later of two concurrent
  writers overwrites the other.
- Every failure of a store is a StorageError; `transient` says whether a retry can help.
- Credentials never appear in an error or a repr.
"""

from deltalakedb.storage.locations import (
    local_path,
    normalise_location,
    root_locations,
    table_location,
)
from deltalakedb.storage.storage import (
    ObjectInfo,
    Storage,
    check_options,
    check_process,
    delete_leftovers,
    open_object_store,
    open_storage,
)
from deltalakedb.storage.warehouse import name_of, place_of, warehouse_location

__all__ = [
    "ObjectInfo",
    "Storage",
    "check_options",
    "check_process",
    "delete_leftovers",
    "local_path",
    "name_of",
    "normalise_location",
    "open_object_store",
    "open_storage",
    "place_of",
    "root_locations",
    "table_location",
    "warehouse_location",
]
