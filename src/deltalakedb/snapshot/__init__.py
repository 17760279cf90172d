"""Tables at one version, straight from SQL."""

from deltalakedb.snapshot.snapshot import Snapshot, open_snapshot, resolve_version

__all__ = ["Snapshot", "open_snapshot", "resolve_version"]
