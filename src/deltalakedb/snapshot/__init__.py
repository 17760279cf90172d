"""Tables at one version, straight from SQL."""

from deltalakedb.snapshot.snapshot import Snapshot, open_snapshot

__all__ = ["Snapshot", "open_snapshot"]
