"""One Spark for all tests of a process, as small as it goes."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltalakedb.errors import ConfigurationError
from deltalakedb.spark import disable, enable
from deltalakedb.spark.java import java_home

from support.profiles import SOAK

_TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, in UTC, without its page."""
    try:
        os.environ["JAVA_HOME"] = str(java_home())
    except ConfigurationError as missing:
        pytest.skip(str(missing))
    # Executors run the Python of the tests, and not whatever is first on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {} if SOAK else {"spark.python.daemon.module": "support.spark_daemon"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(_TESTS), prepend=os.pathsep)  # where the daemon lies
        session = new_session(tmp_path_factory.mktemp("spark"), **options)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def native_format(spark: SparkSession) -> Iterator[None]:
    """Spark's own reader and writer for `format("deltalakedb")`, as after `enable`."""
    enable(spark)
    yield
    disable()


def new_session(folder: Path, **options: str) -> SparkSession:
    """A session that keeps what it writes for itself in a folder."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("deltalakedb-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.ui.showConsoleProgress", "false")
    )
    for name, value in options.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
