"""What keeps a table in good order, planned in SQL; none of it needs Spark."""

from deltalakedb.maintenance.compaction import Compaction, compact
from deltalakedb.maintenance.restore import Restore, restore
from deltalakedb.maintenance.vacuum import Vacuum, vacuum

__all__ = ["Compaction", "Restore", "Vacuum", "compact", "restore", "vacuum"]
