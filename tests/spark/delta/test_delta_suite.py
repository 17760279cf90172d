"""Delta's own Python tests: what passes without our log store passes with it.

They are not part of this project. Name the folder of a clone of delta-io/delta at the tag of the
Delta that is used here:

    DELTALAKEDB_DELTA_TESTS=/path/to/delta make soak ARGS=tests/spark/delta/test_delta_suite.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.spark.delta.jar import DELTA, jar
from deltalakedb.spark.java import java_home
from interop.readers import REPOSITORY, Unavailable, peer

APP = Path(__file__).with_name("delta_suite_app.py")
VARIABLE = "DELTALAKEDB_DELTA_TESTS"
MODULES = ("test_sql", "test_deltatable")
LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
logger.delta.name = org.apache.spark.sql.delta.OptimisticTransaction
logger.delta.level = info
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %m%n
"""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Result:
    """What came of the tests of a module."""

    outcomes: dict[str, str]
    committed: Counter[str]
    """The commits that Delta has logged, by their versions."""
    ratified: Counter[str]
    """Those that the lake has ratified."""

    @property
    def passed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome == "passed"}


@pytest.fixture(scope="module")
def suite() -> Path:
    """The folder of Delta's Python package, with its tests."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} names no clone of delta-io/delta")
    folder = Path(named).resolve() / "python"
    version = re.search(r"__version__ = \"(.*)\"", (folder / "delta" / "version.py").read_text())
    assert version, folder
    assert DELTA.endswith(f":{version[1]}"), f"these are the tests of {version[1]}"
    return folder


@pytest.fixture(scope="module")
def jars() -> str:
    """Delta's jars."""
    try:
        jar()
        return ",".join(map(str, sorted(peer("Delta on Spark", "delta-spark").glob("*.jar"))))
    except (Unavailable, DeltaLakeDbError) as missing:
        pytest.skip(str(missing))


def run(suite: Path, module: str, folder: Path, jars: str, *catalog: str) -> Result:
    """Run the tests of a module, which write below a folder."""
    settings, places, answer = folder / "conf", folder / "places", folder / "answer.json"
    for one in (settings, places):
        one.mkdir(parents=True)
    log = folder / "delta.log"
    (settings / "log4j2.properties").write_text(LOGGING.format(file=log))
    with (folder / "output.txt").open("w") as output:
        subprocess.run(
            [sys.executable, APP, module, answer, jars, log, *catalog],
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            cwd=places,
            env={
                **os.environ,
                "PYTHONPATH": f"{suite}:{REPOSITORY / 'src'}",
                "TMPDIR": str(places),
                "SPARK_CONF_DIR": str(settings),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "JAVA_HOME": str(java_home()),
            },
        )
    assert answer.is_file(), (folder / "output.txt").read_text()[-4000:]
    told = json.loads(answer.read_text())
    return Result(told["outcomes"], Counter(told["committed"]), Counter(told["ratified"]))


@pytest.mark.parametrize("module", MODULES)
def test_what_passes_without_a_lake_passes_with_one(
    suite: Path, jars: str, module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run(suite, module, tmp_path / "plain", jars)
    ours = run(suite, module, tmp_path / "ours", jars, f"sqlite:///{tmp_path}/lake.db")
    with capsys.disabled():
        for name, result in (("without", plain), ("with", ours)):
            sys.stdout.write(
                f"\n{module} {name} a lake: {len(result.passed)} of {len(result.outcomes)} tests "
                f"pass, {result.committed.total()} commits, of which {result.ratified.total()} "
                "were ratified\n"
            )
            for test in sorted(result.outcomes.keys() - result.passed):
                sys.stdout.write(f"  {test}: {result.outcomes[test][:500]}\n")
    assert plain.passed
    assert plain.outcomes.keys() == ours.outcomes.keys()
    assert plain.passed <= ours.passed, plain.passed - ours.passed
    assert plain.ratified.total() == 0
    assert plain.committed
    assert ours.committed == ours.ratified
