"""Spark reads tables on S3 through Hadoop, with the credentials that the lake was given."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.errors import MissingDriverError
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.io.hadoop import hadoop_options
from interop.readers import Unavailable, peer

from support.s3 import SECRET, S3Server
from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

TESTS = Path(__file__).resolve().parent.parent


def test_options_of_the_store_become_those_of_hadoop() -> None:
    given = {
        "AWS_ACCESS_KEY_ID": "me",
        "aws_secret_access_key": "s",
        "region": "eu-central-1",
        "endpoint_url": "http://127.0.0.1:9000",
        "timeout": "5s",
    }
    assert hadoop_options("s3://bucket/t", given) == {
        "fs.s3a.access.key": "me",
        "fs.s3a.secret.key": "s",
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.endpoint.region": "eu-central-1",
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
    }
    token = hadoop_options("s3://bucket/t", {"aws_session_token": "x"})
    assert "Temporary" in token["fs.s3a.aws.credentials.provider"]
    assert hadoop_options("s3://bucket/t", {}) == {}
    assert hadoop_options("file:///t", given) == {}


def test_without_hadoops_connector_a_read_is_refused_at_the_call(
    spark: SparkSession, s3_server: S3Server, s3_bucket: str, catalogs: Catalogs
) -> None:
    options = s3_server.storage_options
    with (
        catalogs.fresh("sqlite") as url,
        deltalakedb.connect(url, storage_options=options) as lake,
    ):
        lake.create_table_as("t", [{"id": 1}], location=f"s3://{s3_bucket}/t")
        table = DeltaTable.forName(spark, "t", catalog=lake)
        reader = spark.read.format("deltalakedb").option("catalog", url)
        reads: list[Callable[[], object]] = [
            table.toDF,
            lambda: reader.load("t"),
            lambda: lake.sql(spark, "SELECT * FROM t"),
            lambda: table.delete("id % 2 = 1"),
        ]
        for read in reads:
            with pytest.raises(MissingDriverError, match="hadoop-aws:") as told:
                read()
            assert len(str(told.value).splitlines()) == 1


@pytest.mark.timeout(600)
def test_a_table_on_s3(
    s3_server: S3Server, s3_bucket: str, catalogs: Catalogs, tmp_path: Path
) -> None:
    try:
        jars = sorted(peer("Hadoop for S3", "hadoop-aws").glob("*.jar"))
    except Unavailable as missing:
        pytest.skip(str(missing))
    with catalogs.fresh("sqlite") as url:
        given = {
            "url": url,
            "location": f"s3://{s3_bucket}/a b/t",
            "storage_options": s3_server.storage_options,
            "jars": ",".join(map(str, jars)),
            "scratch": str(tmp_path),
        }
        answer = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "spark.s3a_app", json.dumps(given)],
            env={**os.environ, "PYTHONPATH": str(TESTS), "PYSPARK_PYTHON": sys.executable},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    failures = [
        line for line in answer.stderr.splitlines() if "Exception" in line or "Error" in line
    ]
    assert answer.returncode == 0, "\n".join(failures)[:3000]
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["ids"] == [*range(11, 20), 700]
    assert found["source"] == [5, 6, *range(8, 20), 700]
    assert found["files"]
    assert all(file.startswith(f"s3a://{s3_bucket}/a%20b/t/part=") for file in found["files"])
    # Nobody gets to see the key: neither in plans and settings, nor in what Spark logs.
    assert not [name for name in found["settings"] if "s3a" in name and name.endswith(".key")]
    for text in (found["plan"], found["source plan"], answer.stderr):
        assert SECRET not in text
