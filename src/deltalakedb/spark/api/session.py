"""The settings of a Spark session: its catalog, and the defaults of reads, writes and new tables.

A catalog is opened once for each URL, and closed when the process ends.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from deltalakedb.actions.properties import KNOWN, spelled
from deltalakedb.arguments import require_session
from deltalakedb.errors import ConfigurationError, InvalidArgumentError
from deltalakedb.forking import ProcessLock
from deltalakedb.lake import Lake, open_lakes
from deltalakedb.spark.io.spark_internals import session_settings
from deltalakedb.storage import check_options
from deltalakedb.store.url import parse_url

CATALOG: Final = "spark.deltalakedb.catalog"
"""The setting of a session that names its catalog."""
_STORAGE: Final = "spark.deltalakedb.storage."
# Settings of Delta and Spark, and the option of a write that each is the default of.
_OPTIONS: Final = {
    "spark.sql.sources.partitionOverwriteMode": "partitionoverwritemode",
    "spark.databricks.delta.schema.autoMerge.enabled": "mergeschema",
    "spark.databricks.delta.optimizeWrite.enabled": "optimizewrite",
    "spark.sql.files.maxRecordsPerFile": "maxrecordsperfile",
}
_PROPERTIES: Final = "spark.databricks.delta.properties.defaults."
# They describe the state of one table, and configure nothing.
_OF_ONE_TABLE: Final = frozenset(
    {
        "delta.columnMapping.maxColumnId",
        "delta.ignoreProtocolDefaults",
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.inCommitTimestampEnablementVersion",
        "delta.liquid.clusteringColumns",
        "delta.minReaderVersion",
        "delta.minWriterVersion",
        "delta.requireCheckpointProtectionBeforeVersion",
        "delta.rowTrackingSuspended",
    }
)
_open: dict[tuple[str, tuple[tuple[str, str], ...]], Lake] = {}
_lock = ProcessLock()


def lake_of(
    spark: SparkSession,
    catalog: str | Lake | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Lake:
    """The lake at a URL, by default that of the session's settings; a lake is returned as it is.

    Without `storage_options`, the settings `spark.deltalakedb.storage.*` apply.
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
    """The lake of a URL and options: one for each, until the process ends."""
    key = (url, tuple(sorted(storage_options.items())))
    with _lock.lock:
        lake = _open.get(key)
        if lake is None or lake.closed:
            lake = _open[key] = Lake.connect(url, storage_options=dict(storage_options))
        return lake


@contextmanager
def using_lake(url: str, storage_options: Mapping[str, str]) -> Iterator[Lake]:
    """A lake of this process that is open at a URL; otherwise a new one, closed at the end.

    With storage options, the open lake has to have the same.
    """
    wanted = parse_url(url)
    for lake in open_lakes():
        if lake.store.is_at(wanted) and (
            not storage_options or lake.storage_options == dict(storage_options)
        ):
            yield lake
            return
    with Lake.connect(url, storage_options=dict(storage_options)) as lake:
        yield lake


def catalog_options(spark: SparkSession) -> dict[str, str]:
    """The catalog and the options of the object store that a session names, as options."""
    url = spark.conf.get(CATALOG, None)
    options = {f"storage.{name}": value for name, value in _session_options(spark).items()}
    return {"catalog": url, **options} if url else options


def _session_options(spark: SparkSession) -> dict[str, str]:
    return {
        name.removeprefix(_STORAGE): value
        for name, value in session_settings(spark).items()
        if name.startswith(_STORAGE)
    }


def default_options(spark: SparkSession) -> dict[str, str]:
    """The options of a write that a session sets, by their names in lower case."""
    settings = session_settings(spark)
    return {option: settings[name] for name, option in _OPTIONS.items() if name in settings}


def default_properties(spark: SparkSession) -> dict[str, str]:
    """The properties of new tables that a session sets; those that Delta knows."""
    properties = {
        spelled(f"delta.{name.removeprefix(_PROPERTIES)}"): value
        for name, value in session_settings(spark).items()
        if name.startswith(_PROPERTIES)
    }
    return {n: value for n, value in properties.items() if n in KNOWN and n not in _OF_ONE_TABLE}


def _close_all() -> None:
    with _lock.lock:
        while _open:
            _open.popitem()[1].close()


atexit.register(_close_all)
