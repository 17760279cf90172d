"""Where tables lie: locations as URIs, and the object stores behind them.

Guarantees:

- `put_if_absent` is atomic: of any number of callers one creates the object, and nobody ever sees
  half of it. On local disks the object is on the disk when the call returns, and a process that is
  killed in the middle leaves nothing behind where the system can make files without a name.
  A store without conditional writes is looked at, written to, and read back: there the later one of
  two that come at the same moment overwrites the other.
- Whatever a store says comes out as a StorageError; `transient` tells whether to try again.
- Credentials never appear in an error or a repr.
"""

from deltalakedb.storage.locations import (
    local_path,
    normalise_location,
    root_locations,
    table_location,
)
from deltalakedb.storage.object_store import check_options, check_process, open_object_store
from deltalakedb.storage.storage import ObjectInfo, Storage, delete_leftovers, open_storage

__all__ = [
    "ObjectInfo",
    "Storage",
    "check_options",
    "check_process",
    "delete_leftovers",
    "local_path",
    "normalise_location",
    "open_object_store",
    "open_storage",
    "root_locations",
    "table_location",
]
