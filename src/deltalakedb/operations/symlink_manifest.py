"""Manifests for readers that support Hive's symlink tables and not the Delta log.

Each partition has a file `manifest` below `_symlink_format_manifest` in the table's folder, with
the full path of a data file in each line. It is valid until the next commit. Its readers support
neither deletion vectors nor column mapping, so tables with them are refused.
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
    """The number of manifests written, and of those deleted with their partitions."""

    table: str
    version: int
    written: int
    deleted: int

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
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
            f"No manifest can be written for table {name!r}",
            why="Its columns have other names in its files, which readers of manifests do not know",
            fix="Read it by its _delta_log, or copy the rows to a table without column mapping",
        )
    names = dict.fromkeys(snapshot.partition_columns, STRING)
    listed: dict[str, list[str]] = {} if names else {f"{FOLDER}/{_NAME}": []}
    for row in snapshot.files(columns=_COLUMNS).to_pylist():
        if row["deletion_vector"] is not None:
            raise UnsupportedFeatureError(
                f"No manifest can be written for table {name!r}",
                why="It has deletion vectors, and readers of manifests would see deleted rows",
                fix="Set delta.enableDeletionVectors to false and rewrite the rows, e.g. with "
                "overwrite, or read the table by its _delta_log",
            )
        folder = partition_directory(json.loads(row["partition_values"]), names)
        key = "/".join(part for part in (FOLDER, folder, _NAME) if part)
        listed.setdefault(key, []).append(_full_path(snapshot.table.location, row["path"]))
    return listed


def _full_path(location: str, path: str) -> str:
    """The path as Hadoop writes it: not percent-encoded, and local ones without a host."""
    full = decode_path(absolute_path(location, path))
    return full.replace("file:///", "file:/", 1) if full.startswith("file:///") else full
