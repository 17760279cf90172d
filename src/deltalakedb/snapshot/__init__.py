"""Snapshots: tables at one version, read from the catalog."""

from deltalakedb.snapshot.snapshot import Snapshot, open_snapshot

__all__ = ["Snapshot", "open_snapshot"]
