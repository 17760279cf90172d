"""The catalog that a Spark session works with: opened once for each URL, closed at the end."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from deltalakedb.arguments import require_session
from deltalakedb.errors import ConfigurationError, InvalidArgumentError
from deltalakedb.forking import ProcessLock
from deltalakedb.lake import Lake, open_lakes
from deltalakedb.spark.io.spark_internals import session_settings
from deltalakedb.storage import check_options
from deltalakedb.store.url import parse_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG: Final = "spark.deltalakedb.catalog"
"""The setting of a session that names its catalog."""
_STORAGE: Final = "spark.deltalakedb.storage."
_open: dict[tuple[str, tuple[tuple[str, str], ...]], Lake] = {}
_lock = ProcessLock()


def lake_of(
    spark: SparkSession,
    catalog: str | Lake | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Lake:
    """The lake at a URL, or of the session's settings; one that was opened elsewhere is used as is.

    Options of the object store are taken from `spark.deltalakedb.storage.*` where none are given.
    """
    require_session("sparkSession", spark)
    if isinstance(catalog, Lake):
        return catalog
    options = None if storage_options is None else check_options(storage_options)
    url: object = spark.conf.get(CATALOG, None) if catalog is None else catalog
    if url is None:
        raise ConfigurationError(
            "No catalog is named",
            fix=f"Pass catalog='sqlite:///lake.db', or set {CATALOG} in the session",
        )
    if not isinstance(url, str):
        # Not its value: a URL may have a password in it.
        raise InvalidArgumentError(
            f"catalog is a {type(url).__name__}", fix="Pass the URL of a catalog, or a lake"
        )
    return open_lake(url, _session_options(spark) if options is None else options)


def open_lake(url: str, storage_options: Mapping[str, str]) -> Lake:
    """One lake for each URL and options, for as long as the process lives."""
    key = (url, tuple(sorted(storage_options.items())))
    with _lock.lock:
        found = _open.get(key)
        if found is None or found.closed:
            found = _open[key] = Lake.connect(url, storage_options=dict(storage_options))
        return found


@contextmanager
def using_lake(url: str, storage_options: Mapping[str, str]) -> Iterator[Lake]:
    """A lake of this process that is open at a URL; otherwise a new one, closed at the end.

    With storage options it is one that has the same.
    """
    wanted = parse_url(url)
    for lake in open_lakes():
        there = lake.store.dialect.url
        same = (there.engine, there.target, there.schema) == (
            wanted.engine,
            wanted.target,
            wanted.schema,
        )
        if same and (not storage_options or lake.storage_options == dict(storage_options)):
            yield lake
            return
    with Lake.connect(url, storage_options=dict(storage_options)) as lake:
        yield lake


def catalog_options(spark: SparkSession) -> dict[str, str]:
    """The catalog and the options of the object store that a session names, as options."""
    url = spark.conf.get(CATALOG, None)
    found = {f"storage.{name}": value for name, value in _session_options(spark).items()}
    return found if not url else {"catalog": url, **found}


def _session_options(spark: SparkSession) -> dict[str, str]:
    return {
        name.removeprefix(_STORAGE): value
        for name, value in session_settings(spark).items()
        if name.startswith(_STORAGE)
    }


def _close_all() -> None:
    with _lock.lock:
        while _open:
            _open.popitem()[1].close()


atexit.register(_close_all)
