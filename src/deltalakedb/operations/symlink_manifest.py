"""Manifests of the files of a table, for readers that know Hive's symlink tables and no Delta log.

One file `manifest` for each partition, below `_symlink_format_manifest` in the table's folder, with
the full path of each data file of that partition in a line. It is right until the next commit: make
it anew then. Whoever reads in this way sees neither deletion vectors nor mapped columns, so tables
that have them are refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions.datatypes import STRING
from deltalakedb.actions.file_paths import absolute_path
from deltalakedb.actions.partition import decode_path, partition_directory
from deltalakedb.actions.properties import TableProperties
from deltalakedb.errors import UnsupportedFeatureError
from deltalakedb.storage import open_storage

if TYPE_CHECKING:
    from deltalakedb.snapshot import Snapshot

FOLDER: Final = "_symlink_format_manifest"
_NAME: Final = "manifest"
_COLUMNS: Final = ("path", "partition_values", "deletion_vector")


@dataclass(frozen=True, slots=True)
class Manifests:
    """What was written, and what was deleted: partitions that the table does not have any more."""

    table: str
    version: int
    written: int
    deleted: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def symlink_manifests(snapshot: Snapshot) -> Manifests:
    """Write the manifests of a snapshot, and delete those of earlier ones."""
    listed = _listed(snapshot)
    storage = open_storage(snapshot.table.location, snapshot.storage_options)
    stale = {info.key for info in storage.list(f"{FOLDER}/")} - listed.keys()
    for key, paths in listed.items():
        text = "".join(f"{path}\n" for path in sorted(paths))
        storage.put(key, text.encode("utf-8"))
    storage.delete_many(sorted(stale))
    return Manifests(snapshot.table.name, snapshot.version, len(listed), len(stale))


def _listed(snapshot: Snapshot) -> dict[str, list[str]]:
    """The data files by the key of their manifest."""
    name = snapshot.table.name
    if TableProperties(snapshot.properties).column_mapping_mode != "none":
        raise UnsupportedFeatureError(
            f"No manifest can be made of table {name!r}",
            why="Its columns have other names in its files, which readers of manifests do not know",
            fix="Read it by its _delta_log, or copy the rows to a table without column mapping",
        )
    names = dict.fromkeys(snapshot.partition_columns, STRING)
    listed: dict[str, list[str]] = {} if names else {f"{FOLDER}/{_NAME}": []}
    for row in snapshot.files(columns=_COLUMNS).to_pylist():
        if row["deletion_vector"] is not None:
            raise UnsupportedFeatureError(
                f"No manifest can be made of table {name!r}",
                why="It has deletion vectors, and readers of manifests would see deleted rows",
                fix="Set delta.enableDeletionVectors to false and write the rows anew, e.g. with "
                "overwrite, or read the table by its _delta_log",
            )
        folder = partition_directory(json.loads(row["partition_values"]), names)
        key = "/".join(part for part in (FOLDER, folder, _NAME) if part)
        listed.setdefault(key, []).append(_full_path(snapshot.table.location, row["path"]))
    return listed


def _full_path(location: str, path: str) -> str:
    """As Hadoop writes paths: nothing is percent-encoded, and those of a disk have no host."""
    full = decode_path(absolute_path(location, path))
    return full.replace("file:///", "file:/", 1) if full.startswith("file:///") else full
