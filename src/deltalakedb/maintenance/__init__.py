"""What keeps a table in good order, planned in SQL; none of it needs Spark."""

from deltalakedb.maintenance.compaction import Compaction, compact
from deltalakedb.maintenance.manifest import Manifests, symlink_manifests
from deltalakedb.maintenance.restore import Restore, restore
from deltalakedb.maintenance.vacuum import Vacuum, vacuum

__all__ = [
    "Compaction",
    "Manifests",
    "Restore",
    "Vacuum",
    "compact",
    "restore",
    "symlink_manifests",
    "vacuum",
]
