"""The settings that a builder gets, and the builders that are refused; no Spark is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.errors import ConfigurationError, InvalidArgumentError, MissingDriverError
from deltalakedb.lake import Lake
from deltalakedb.spark import configure
from deltalakedb.spark.delta import jar as jar_module
from deltalakedb.spark.delta.embedded import embedded_service
from deltalakedb.spark.delta.jar import CATALOG, DELTA, EXTENSION, JAR, LOG_STORE
from deltalakedb.spark.delta.settings import SCHEMES
from deltalakedb.spark.io.spark_internals import builder_settings

PACKAGES = "spark.jars.packages"
SERVICE: dict[str, Any] = {"service": "https://lake.example:8765/", "token": "a-long-enough-token"}


@pytest.fixture(autouse=True)
def plain_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No session, no settings of others, and a jar."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "PYSPARK_PYTHON"):
        # Set first: then it is gone after the test too, if `configure` sets it.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    if not JAR.is_file():
        monkeypatch.setattr(jar_module, "JAR", Path(__file__))


@pytest.fixture
def builder() -> SparkSession.Builder:
    """A builder with Delta."""
    return SparkSession.Builder().config(PACKAGES, DELTA)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake with a warehouse."""
    with deltalakedb.connect(f"sqlite:///{tmp_path}/lake.db", warehouse=str(tmp_path / "w")) as it:
        yield it


def token_of(settings: dict[str, str]) -> str:
    """The token in the file that the setting names, which only its user can read."""
    setting = settings["spark.hadoop.deltalakedb.token"]
    assert setting.startswith("@")
    file = Path(setting[1:])
    assert file.stat().st_mode & 0o077 == 0
    return file.read_text()


def test_the_file_of_a_token_ends_with_its_process(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from deltalakedb.spark.delta.token_file import token_setting\n"
        "setting = token_setting('a-long-enough-token')\n"
        "assert token_setting('a-long-enough-token') == setting\n"
        "child = os.fork()\n"
        "if child == 0:\n    sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "assert open(setting[1:]).read() == 'a-long-enough-token'\n"
        "print(setting)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.stdout.startswith(f"@{tmp_path}/")
    assert list(tmp_path.iterdir()) == []


def test_a_builder_gets_everything(builder: SparkSession.Builder, lake: Lake) -> None:
    settings = builder_settings(configure(builder, lake))
    service = embedded_service(lake)
    assert settings["spark.sql.catalog.spark_catalog"] == CATALOG
    assert settings["spark.sql.extensions"] == EXTENSION
    assert settings["spark.jars"] == str(jar_module.JAR)
    assert {settings[f"spark.delta.logStore.{scheme}.impl"] for scheme in SCHEMES} == {LOG_STORE}
    assert settings["spark.hadoop.deltalakedb.uri"] == service.uri
    assert service.uri.startswith("http://127.0.0.1:")
    assert token_of(settings) == service.token
    assert service.token not in str(settings)  # they are arguments of Java
    assert settings["spark.sql.warehouse.dir"] == lake.warehouse
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert int(settings["spark.databricks.delta.maxCommitAttempts"]) <= 1000
    assert service.token not in repr(service)


def test_what_the_builder_has_stays(builder: SparkSession.Builder, lake: Lake) -> None:
    own = {
        "spark.jars": "/a.jar, /b.jar",
        "spark.sql.extensions": "a.B",
        "spark.sql.warehouse.dir": "/mine",
        "spark.databricks.delta.maxCommitAttempts": "7",
    }
    for name, value in own.items():
        builder = builder.config(name, value)
    settings = builder_settings(configure(configure(builder, lake), lake))
    assert settings["spark.jars"] == f"/a.jar,/b.jar,{jar_module.JAR}"
    assert settings["spark.sql.extensions"] == f"a.B,{EXTENSION}"
    for name in list(own)[2:]:
        assert settings[name] == own[name]


def test_defaults_of_the_file_stay(
    builder: SparkSession.Builder, tmp_path: Path, lake: Lake
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\nspark.jars /delta-spark_4.2_2.13-4.4.0.jar\nspark.sql.extensions=x.Y\n"
    )
    settings = builder_settings(configure(SparkSession.Builder(), lake))
    assert settings["spark.jars"] == f"/delta-spark_4.2_2.13-4.4.0.jar,{jar_module.JAR}"
    assert settings["spark.sql.extensions"] == f"x.Y,{EXTENSION}"


def test_a_cluster_chooses_its_own_python(builder: SparkSession.Builder) -> None:
    builder = builder.master("spark://host:7077")
    configure(builder, **SERVICE)
    assert "PYSPARK_PYTHON" not in os.environ


def test_a_python_that_was_chosen_stays(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/a/python")
    configure(builder, **SERVICE)
    assert os.environ["PYSPARK_PYTHON"] == "/a/python"


def test_a_service_is_named_by_address_and_token(builder: SparkSession.Builder) -> None:
    settings = builder_settings(configure(builder, **SERVICE, timeout=5))
    assert settings["spark.hadoop.deltalakedb.uri"] == "https://lake.example:8765"
    assert token_of(settings) == SERVICE["token"]
    assert settings["spark.hadoop.deltalakedb.timeout"] == "5"


def test_a_lake_on_s3_brings_its_settings(builder: SparkSession.Builder, tmp_path: Path) -> None:
    options = {"access_key_id": "k", "secret_access_key": "s", "endpoint_url": "http://h:1"}
    url = f"sqlite:///{tmp_path}/s3.db"
    with deltalakedb.connect(url, warehouse="s3://b/lake", storage_options=options) as lake:
        settings = builder_settings(configure(builder, lake))
    assert settings["spark.sql.warehouse.dir"] == "s3a://b/lake"
    assert settings["spark.hadoop.fs.s3a.access.key"] == "k"
    assert settings["spark.hadoop.fs.s3a.endpoint"] == "http://h:1"


def test_a_spark_without_delta_is_refused(lake: Lake) -> None:
    with pytest.raises(MissingDriverError, match=DELTA):
        configure(SparkSession.Builder(), lake)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.catalog.spark_catalog", "io.other.Catalog"),
        ("spark.delta.logStore.s3a.impl", "io.delta.storage.S3DynamoDBLogStore"),
    ],
)
def test_classes_of_others_are_refused(
    builder: SparkSession.Builder, name: str, value: str
) -> None:
    with pytest.raises(ConfigurationError, match=name):
        configure(builder.config(name, value), **SERVICE)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"catalog": 1},
        {"catalog": "sqlite:///x.db", **SERVICE},
        {"service": "https://h:1"},
        {"token": "t"},
        {"service": "h:1", "token": "t"},
        {"service": "ftp://h", "token": "t"},
        {"service": "http://h:x", "token": "t"},
        {"service": "http://u:secret@h", "token": "t"},
        {"service": 1, "token": "t"},
        {"service": "http://h:1", "token": "@/run/secret"},
        {**SERVICE, "timeout": 0},
        {**SERVICE, "timeout": "x"},
    ],
)
def test_wrong_arguments_are_refused(
    builder: SparkSession.Builder, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        configure(builder, **arguments)
    assert "secret" not in str(refused.value)


def test_something_else_is_no_builder() -> None:
    wrong: Any = object()
    with pytest.raises(InvalidArgumentError, match="builder"):
        configure(wrong, **SERVICE)


def test_a_java_that_runs_already_needs_the_jar_at_its_start(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars /a.jar pyspark-shell")
    with pytest.raises(ConfigurationError, match=r"python -m deltalakedb\.spark\.delta\.jar"):
        configure(builder, **SERVICE)


def test_the_service_ends_with_its_lake(tmp_path: Path) -> None:
    import socket
    from urllib.parse import urlsplit

    with deltalakedb.connect(f"sqlite:///{tmp_path}/lake.db") as lake:
        service = embedded_service(lake)
        assert embedded_service(lake) is service
        port = urlsplit(service.uri).port
        socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
