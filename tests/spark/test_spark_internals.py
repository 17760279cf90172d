"""What is used of Spark beyond its public API works with this version, and a probe tells if not."""

import ast
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import deltalakedb.spark
from deltalakedb.cli.checks import _internals
from deltalakedb.spark.io import spark_internals
from deltalakedb.spark.io.spark_internals import broken_internals

PRIVATE = {"_jvm", "_jdf", "_jsc", "_jconf", "_jsparkSession", "_jreader", "_jwrite", "_sc"}


def test_every_internal_works(spark: SparkSession) -> None:
    before = spark_internals.session_settings(spark)
    assert broken_internals(spark) == {}
    assert spark_internals.session_settings(spark) == before


def test_the_doctor_reports_a_broken_one(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renamed(spark: object, settings: object) -> object:
        raise AttributeError("cloneSession is gone")

    monkeypatch.setattr(spark_internals, "_clone", renamed)
    broken = broken_internals(spark)
    assert broken == {"scans and writes with settings of their own": "cloneSession is gone"}
    check = _internals({"spark": "9.9", "broken": broken})
    assert check.state == "wrong"
    assert "cloneSession is gone" in check.found
    assert _internals({"spark": "4.2", "broken": {}}).state == "ok"


def test_no_other_module_uses_internals() -> None:
    room = Path(str(deltalakedb.spark.__file__)).parent
    own = Path(spark_internals.__file__)
    found = [
        f"{path.relative_to(room)}: {node.attr}"
        for path in room.rglob("*.py")
        if path != own
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE
    ]
    assert found == []
