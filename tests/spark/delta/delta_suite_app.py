"""Run one module of Delta's own Python tests, with or without a lake (test_delta_suite.py).

Every table that the tests make lies below TMPDIR, which is the warehouse of the lake. What came of
each test, and which commits Delta and the lake have seen, is written as JSON.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from typing import Any, cast

from pyspark import SparkConf
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.spark import configure
from deltalakedb.spark.io.spark_internals import builder_settings

# What Delta logs of each commit that it takes for done.
COMMITTED = re.compile(r"Committed delta #(\d+) to ")


class Outcomes(unittest.TextTestResult):
    """What came of each test."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.outcomes: dict[str, str] = {}

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - the name of unittest
        """Note the test as passed, unless it was noted as something else."""
        super().stopTest(test)
        self.outcomes.setdefault(test.id().rpartition(".")[2], "passed")

    def _note(self, test: unittest.TestCase, outcome: str) -> None:
        self.outcomes[test.id().rpartition(".")[2]] = outcome

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 - as above
        """Note it."""
        super().addFailure(test, err)
        self._note(test, f"failed: {err[1]}")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 - as above
        """Note it."""
        super().addError(test, err)
        self._note(test, f"failed: {err[1]}")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802 - as above
        """Note it."""
        super().addSkip(test, reason)
        self._note(test, f"skipped: {reason}")


class Ratified(logging.Handler):
    """Counts the commits that a lake has ratified, by their versions."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.commits: Counter[int] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count it, unless it is of something else or was counted before."""
        if getattr(record, "event", "") == "ratified":
            fields = record.__dict__["fields"]
            if not fields["repeated"]:
                self.commits[fields["version"]] += 1


def with_settings(test: type[Any], lake: deltalakedb.Lake | None, jars: str) -> type[Any]:
    """The tests of a class, with more settings of the session."""

    def conf(cls: type[Any]) -> SparkConf:
        settings: SparkConf = test.conf.__func__(cls)
        settings.set("spark.jars", jars)
        if lake is None:
            return settings
        builder = SparkSession.Builder()
        for name, value in settings.getAll():
            builder = builder.config(name, value)
        return settings.setAll(list(builder_settings(configure(builder, lake)).items()))

    return type(test.__name__, (test,), {"conf": classmethod(conf)})


def committed(log: Path) -> Counter[int]:
    """The commits that Delta has logged, by their versions."""
    return Counter(map(int, COMMITTED.findall(log.read_text(errors="replace"))))


def main() -> None:
    """Run it."""
    module, answer, jars, log, *catalog = sys.argv[1:]
    tests = importlib.import_module(f"delta.tests.{module}")
    lake = None
    ratified = Ratified()
    if catalog:
        logger = logging.getLogger("deltalakedb")
        logger.setLevel(logging.INFO)
        logger.addHandler(ratified)
        lake = deltalakedb.connect(catalog[0], warehouse=tempfile.gettempdir())
    suite = unittest.TestSuite()
    for value in vars(tests).values():
        if (
            isinstance(value, type)
            and issubclass(value, unittest.TestCase)
            and (value.__module__ == tests.__name__)
        ):
            suite.addTests(
                unittest.defaultTestLoader.loadTestsFromTestCase(with_settings(value, lake, jars))
            )
    runner = unittest.TextTestRunner(resultclass=Outcomes, verbosity=2)
    result = cast("Outcomes", runner.run(suite))
    if lake is not None:
        lake.close()
    Path(answer).write_text(
        json.dumps(
            {
                "outcomes": result.outcomes,
                "committed": committed(Path(log)),
                "ratified": ratified.commits,
            }
        )
    )


if __name__ == "__main__":
    main()
