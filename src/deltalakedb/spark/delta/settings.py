"""The settings by which a Spark session makes Delta a client of a lake."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltalakedb.errors import ConfigurationError, MissingDriverError
from deltalakedb.spark.delta.jar import CATALOG, DELTA, EXTENSION, JAR, LOG_STORE, jar
from deltalakedb.spark.delta.token_file import token_setting

if TYPE_CHECKING:
    from deltalakedb.spark.delta.embedded import Service

# The stores that tables of a lake lie in, by the schemes that Hadoop has for them.
SCHEMES: Final = ("file", "s3", "s3a", "s3n", "gs", "abfs", "abfss")
URI: Final = "deltalakedb.uri"
TOKEN: Final = "deltalakedb.token"  # noqa: S105 - the name of the setting
TIMEOUT: Final = "deltalakedb.timeout"
SPARK_CATALOG: Final = "spark.sql.catalog.spark_catalog"
EXTENSIONS: Final = "spark.sql.extensions"
JARS: Final = "spark.jars"
PACKAGES: Final = "spark.jars.packages"
WAREHOUSE: Final = "spark.sql.warehouse.dir"
MASTER: Final = "spark.master"
ATTEMPTS: Final = "spark.databricks.delta.maxCommitAttempts"
# Delta's own default is 10,000,000: hours of tries where another writer never lets it win.
_MOST_ATTEMPTS: Final = "1000"
_DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_HADOOP: Final = "spark.hadoop."
_DELTA_JAR: Final = re.compile(r"delta-spark[_-]")


def log_store_setting(scheme: str) -> str:
    """The setting of Delta that names the log store of a scheme."""
    return f"spark.delta.logStore.{scheme}.impl"


def session_settings_for(
    known: Mapping[str, str],
    service: Service,
    *,
    warehouse: str | None,
    storage: Mapping[str, str],
    timeout: float | None,
) -> dict[str, str]:
    """The settings that a builder needs beside those that it has."""
    settings = {
        JARS: _joined(known.get(JARS), str(jar())),
        EXTENSIONS: _joined(known.get(EXTENSIONS), EXTENSION),
        SPARK_CATALOG: CATALOG,
        _HADOOP + URI: service.uri,
        _HADOOP + TOKEN: token_setting(service.token),
        **{log_store_setting(scheme): LOG_STORE for scheme in SCHEMES},
    }
    for name, value in settings.items():
        _refuse_other(known, name, value)
    defaults = {ATTEMPTS: _MOST_ATTEMPTS, **{_HADOOP + n: v for n, v in storage.items()}}
    if warehouse is not None:
        defaults[WAREHOUSE] = spark_location(warehouse)
    if timeout is not None:
        settings[_HADOOP + TIMEOUT] = str(timeout)
    settings.update({name: value for name, value in defaults.items() if name not in known})
    return settings


def spark_location(location: str) -> str:
    """A location of a lake as Spark names it."""
    return re.sub(r"^s3://", "s3a://", location)


def _joined(known: str | None, value: str) -> str:
    """A list of Spark with one more value, once."""
    values = [one.strip() for one in (known or "").split(",") if one.strip()]
    return ",".join(values if value in values else [*values, value])


def _refuse_other(known: Mapping[str, str], name: str, value: str) -> None:
    """Refuse a builder that names other classes."""
    other = known.get(name)
    if name in (JARS, EXTENSIONS) or name.startswith(_HADOOP) or other in (None, value):
        return
    if name == SPARK_CATALOG and other == _DELTA_CATALOG:
        return
    raise ConfigurationError(
        f"The builder has {name}={other!r}",
        why=f"Delta has to ask the lake by {value} there",
        fix="Remove that setting from the builder",
    )


def require_delta(known: Mapping[str, str]) -> None:
    """Refuse settings of a session that would have no Delta."""
    named = [known.get(name, "") for name in (JARS, PACKAGES, "spark.driver.extraClassPath")]
    names = [path.name for path in (_spark_home() / "jars").glob("delta-spark*.jar")]
    if not any(map(_DELTA_JAR.search, [*named, *names])):
        raise MissingDriverError(
            "Spark has no Delta: its jars are neither in spark.jars nor in spark.jars.packages, "
            "nor among Spark's own",
            fix=f"Add .config('{PACKAGES}', '{DELTA}') to the builder, where Spark may download "
            f"it, or .config('{JARS}', ...) with the files",
        )


def default_settings() -> dict[str, str]:
    """The settings that a session has without a builder: of the file, and of `spark-submit`."""
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark import SparkConf

        settings = dict(SparkConf().getAll())
        if JAR.name in settings.get(JARS, "") + settings.get("spark.driver.extraClassPath", ""):
            return settings
        raise _too_late("spark-submit has started Java already")
    if "--jars" in arguments and JAR.name not in arguments:
        raise _too_late("The jars of PYSPARK_SUBMIT_ARGS replace those of the builder")
    file = Path(os.environ.get("SPARK_CONF_DIR", str(_spark_home() / "conf")))
    file /= "spark-defaults.conf"
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    pairs = [re.split(r"[\s=]+", line.strip(), maxsplit=1) for line in lines]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and not pair[0].startswith("#")}


def has_local_master(known: Mapping[str, str]) -> bool:
    """Whether the executors of a session are threads of its driver."""
    return known.get(MASTER, "local").startswith("local")


def _too_late(why: str) -> ConfigurationError:
    return ConfigurationError(
        "The jar of deltalakedb cannot be added to this Spark",
        why=why,
        fix="Name it there: --jars $(python -m deltalakedb.spark.delta.jar),<the others>",
    )


def _spark_home() -> Path:
    import pyspark

    return Path(os.environ.get("SPARK_HOME", str(Path(pyspark.__file__).parent)))
