"""Files of a commit as a listing has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from deltalakedb.actions import AddFile
from deltalakedb.actions.codec import to_dict
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.snapshot.listing import DEFAULT_COLUMNS
from deltalakedb.store.arrow import schema_of

if TYPE_CHECKING:
    import pyarrow as pa


def files_of_adds(
    adds: Iterable[AddFile], version: int, columns: Sequence[str] = DEFAULT_COLUMNS
) -> pa.Table:
    """The files that actions add, sorted by path; `columns` are some of `listing.COLUMNS`."""
    import pyarrow as pa

    rows = []
    for add in sorted(adds, key=lambda one: (one.path, one.dv_id)):
        vector = to_dict(add)["add"].get("deletionVector")
        rows.append(
            {
                "path": add.path,
                "dv_id": add.dv_id,
                "added_version": version,
                "size_bytes": add.size,
                "modification_time": add.modification_time,
                "partition_values": dumps(dict(add.partition_values)),
                "stats": add.stats,
                "deletion_vector": None if vector is None else dumps(vector),
                "tags": None if add.tags is None else dumps(dict(add.tags)),
                "base_row_id": add.base_row_id,
                "default_row_commit_version": add.default_row_commit_version,
                "data_change": add.data_change,
                "clustering_provider": add.clustering_provider,
                "extra": dumps(dict(add.extra)) if add.extra else None,
            }
        )
    return pa.Table.from_pylist(rows, schema=schema_of(columns))
