"""Delta Lake tables whose transaction log lives in a SQL database.

    import deltalakedb
    lake = deltalakedb.connect("sqlite:///lake.db")

Importing this package imports no driver; `connect` imports the one that its URL needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from deltalakedb import errors
from deltalakedb.extensions import register_extension

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.clock import Clock
    from deltalakedb.lake import Lake
    from deltalakedb.table import Table
    from deltalakedb.transaction.attempt import ReadSet
    from deltalakedb.transaction.retry import RetryPolicy

__all__ = ["Lake", "ReadSet", "RetryPolicy", "Table", "connect", "errors", "migrate"]

_WHERE = {
    "Lake": "deltalakedb.lake",
    "ReadSet": "deltalakedb.transaction.attempt",
    "RetryPolicy": "deltalakedb.transaction.retry",
    "Table": "deltalakedb.table",
}


def _spark_extension() -> Any:
    from deltalakedb.spark import extension

    return extension


def _service_extension() -> Any:
    from deltalakedb import service

    return service


register_extension("pyspark", _spark_extension)
register_extension("service", _service_extension)


def connect(
    url: str,
    *,
    committer: str | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
    storage_options: Mapping[str, str] | None = None,
    mirror: str = "inline",
    create: bool = True,
    on_drift: str = "refuse",
    warehouse: str | None = None,
) -> Lake:
    """Open the catalog at `url`: sqlite:///lake.db, duckdb:///lake.duckdb, postgresql://….

    - A database without a catalog gets one, or is refused if `create` is False. The schema of an
      existing catalog is checked.
    - `committer` is the name recorded with each commit (default: the user of this process).
    - `retry` limits how often and how long a commit is retried.
    - `storage_options` are the settings of the object store of the tables (credentials, region,
      endpoint); missing ones come from the environment.
    - `mirror="inline"` publishes each commit to `_delta_log` at once, and retries after a failure;
      "worker" leaves publishing to `deltalakedb mirror run`.
    - A table whose `_delta_log` has commits that the catalog does not have (of a foreign writer, or
      after a backup was restored) accepts no commit. With `on_drift="allow"` it does, but they
      cannot be published.
    - Tables that are created without a location lie below the `warehouse`. The catalog keeps it;
      connecting with another one is refused, and `Lake.set_warehouse` changes it.

    The result is also a context manager.
    """
    from deltalakedb.lake import Lake

    return Lake.connect(
        url,
        committer=committer,
        retry=retry,
        clock=clock,
        storage_options=storage_options,
        mirror=mirror,
        create=create,
        on_drift=on_drift,
        warehouse=warehouse,
    )


def migrate(url: str) -> list[str]:
    """Bring the schema of the catalog at `url` up to date; returns the applied migrations.

    All or nothing: a file that did not exist before is deleted after a failure.
    """
    from deltalakedb.store import Store

    store = Store.open(url)
    try:
        applied = [f"{m.version:04d}_{m.name}" for m in store.migrator.up()]
    except BaseException:
        store.abandon()
        raise
    store.close()
    return applied


def __getattr__(name: str) -> Any:
    # Public names are imported when a program uses them.
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'deltalakedb' has no attribute {name!r}")
