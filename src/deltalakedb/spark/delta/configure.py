"""`configure` prepares the builder of a Spark session, and `attach` points a session at a lake."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from deltalakedb.arguments import require_kind, require_number, require_session
from deltalakedb.errors import ConfigurationError, InvalidArgumentError
from deltalakedb.lake import Lake
from deltalakedb.spark.api.session import open_lake
from deltalakedb.spark.delta.embedded import Service, embedded_service, running_service
from deltalakedb.spark.delta.jar import CATALOG, LOG_STORE
from deltalakedb.spark.delta.settings import (
    SCHEMES,
    SPARK_CATALOG,
    TOKEN,
    URI,
    default_settings,
    has_local_master,
    log_store_setting,
    require_delta,
    session_settings_for,
)
from deltalakedb.spark.io.hadoop import hadoop_options
from deltalakedb.spark.io.spark_internals import (
    SPARK_ERRORS,
    builder_settings,
    first_line,
    is_connect,
    set_hadoop_default,
)
from deltalakedb.storage import check_options

_FIX: Final = "Start it with deltalakedb.spark.configure(SparkSession.builder, catalog=...)"


def configure(
    builder: SparkSession.Builder,
    catalog: str | Lake | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    service: str | None = None,
    token: str | None = None,
    timeout: float | None = None,
) -> SparkSession.Builder:
    """Make Delta on Spark a client of a lake: all of Spark's SQL works on its tables, by name.

        builder = SparkSession.builder.config("spark.jars.packages", "io.delta:delta-spark_...")
        spark = deltalakedb.spark.configure(builder, catalog="sqlite:///lake.db").getOrCreate()

    - The builder needs Delta's own jars; ours is added to them.
    - `catalog` is the URL of a catalog or an open lake. Its service runs in this process, on
      loopback, until the lake is closed or the process ends.
    - `service` and `token` name a running `deltalakedb serve` instead.
    - `timeout` limits each call to the service, in seconds (60 by default). A statement fails when
      it ends, and is never committed without the catalog.
    - Tables without a location lie in the warehouse of the lake.
    - With a local master, Python functions run in the Python of this process, by the variable
      PYSPARK_PYTHON, which PySpark reads when a session starts. A value that it has stays.
    """
    require_kind("builder", builder, SparkSession.Builder, "a SparkSession.Builder")
    if timeout is not None and require_number("timeout", timeout) <= 0:
        raise InvalidArgumentError(f"timeout is {timeout!r}", fix="Pass a number above 0")
    known = {**default_settings(), **builder_settings(builder)}
    running = SparkSession.getActiveSession()
    if running is not None and running.conf.get(SPARK_CATALOG, "") != CATALOG:
        raise ConfigurationError(
            "A Spark session is running already, without the classes of deltalakedb",
            why="Spark loads classes when it starts",
            fix="Stop it first: spark.stop()",
        )
    require_delta(known)
    warehouse, storage = None, {}
    if service is None and token is None:
        lake = _lake(catalog, storage_options)
        warehouse = lake.warehouse
        storage = hadoop_options(warehouse or "", lake.storage_options)
        target = embedded_service(lake)
    else:
        target = _running(catalog, storage_options, service, token)
    settings = session_settings_for(
        known, target, warehouse=warehouse, storage=storage, timeout=timeout
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    if has_local_master(known):
        # Otherwise it is the first Python of the PATH. PySpark reads no setting in its place.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return builder


def attach(
    spark: SparkSession,
    catalog: str | Lake | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    service: str | None = None,
    token: str | None = None,
) -> None:
    """Point a running session at a lake: its tables are known to `spark.sql` by their names, live.

    The session must have been started with the classes of deltalakedb, which `configure` adds. The
    arguments are those of `configure`.
    """
    require_session("spark", spark)
    _require_classes(spark)
    if service is None and token is None:
        if is_connect(spark):
            raise ConfigurationError(
                "A session of Spark Connect cannot use a catalog of this process",
                why="Its Spark runs in another process, which may be on another machine",
                fix="Run `deltalakedb serve`, and pass service='https://host:port' and a token",
            )
        target = embedded_service(_lake(catalog, storage_options))
    else:
        target = _running(catalog, storage_options, service, token)
    before = {name: spark.conf.get(name, None) for name in (URI, TOKEN)}
    settings = {URI: target.uri, TOKEN: target.token}
    _set(spark, settings)
    try:
        # DeltaTable.forName looks into the session's own catalog only.
        for database in spark.catalog.listDatabases():
            spark.sql(f"SHOW TABLES IN `{database.name.replace('`', '``')}`").collect()
    except SPARK_ERRORS as error:
        _set(spark, before)
        raise ConfigurationError(
            f"The session cannot use the service at {target.uri}",
            why=first_line(error),
            fix="Check its address and token",
        ) from error
    if not is_connect(spark):
        # A new session of this Spark would otherwise write tables of the lake without it.
        set_hadoop_default(spark, settings)


def _set(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def _lake(catalog: object, storage_options: Mapping[str, str] | None) -> Lake:
    if isinstance(catalog, Lake):
        if storage_options is not None:
            raise InvalidArgumentError(
                "storage_options is for the URL of a catalog",
                fix="Connect the lake with them: deltalakedb.connect(url, storage_options=...)",
            )
        return catalog
    if not isinstance(catalog, str):
        # Not its value: a URL may have a password in it.
        raise InvalidArgumentError(
            f"catalog is a {type(catalog).__name__}",
            fix="Pass the URL of a catalog, or a lake; or the address and token of a service",
        )
    return open_lake(catalog, check_options(storage_options or {}))


def _running(
    catalog: object, storage_options: object, service: str | None, token: str | None
) -> Service:
    if catalog is not None or storage_options is not None:
        raise InvalidArgumentError(
            "service and token cannot be combined with catalog and storage_options",
            fix="Pass either a catalog, or a service that has one",
        )
    return running_service(service, token)


def _require_classes(spark: SparkSession) -> None:
    expected = {SPARK_CATALOG: CATALOG, **{log_store_setting(s): LOG_STORE for s in SCHEMES[:1]}}
    for name, value in expected.items():
        if spark.conf.get(name, "") != value:
            raise ConfigurationError(
                "The session was started without the classes of deltalakedb",
                why=f"Its setting {name} is not {value}",
                fix=_FIX,
            )
