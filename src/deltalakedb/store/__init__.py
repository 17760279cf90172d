"""The store: the log of every table in a SQL database."""

from deltalakedb.store.rows import Counts, Payload, TableRecord, VersionRecord, account
from deltalakedb.store.store import Store

__all__ = ["Counts", "Payload", "Store", "TableRecord", "VersionRecord", "account"]
