"""The jar: it is built from the sources that are here, and its own tests pass."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from deltalakedb.errors import MissingDriverError
from deltalakedb.spark.delta import jar as jar_module
from deltalakedb.spark.delta.jar import CATALOG, JAR, LOG_STORE, jar
from deltalakedb.spark.java import java_home
from interop.readers import REPOSITORY, Unavailable, peer

TESTS = REPOSITORY / "jvm" / "test"


@pytest.fixture(scope="module")
def class_path() -> str:
    """The jar, and what it is compiled against."""
    try:
        delta = peer("Delta on Spark", "delta-spark")
    except Unavailable as missing:
        pytest.skip(str(missing))
    if not JAR.is_file():
        pytest.skip("the jar was not built: `make jar` says why")
    return f"{jar()}:{delta}/*:{Path(pyspark.__file__).parent}/jars/*"


def test_the_jar_has_its_classes_and_is_that_of_the_sources(class_path: str) -> None:
    with zipfile.ZipFile(jar()) as archive:
        names = archive.namelist()
    for name in (LOG_STORE, CATALOG):
        assert f"{name.replace('.', '/')}.class" in names
    script = REPOSITORY / "scripts" / "jar.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == "", "make jar builds another one"


def test_the_log_store_takes_no_nonsense_for_an_answer(class_path: str, tmp_path: Path) -> None:
    java = java_home() / "bin"
    sources = [str(path) for path in TESTS.rglob("*.java")]
    javac = java / "javac"
    if not javac.is_file():
        pytest.skip("there is no javac beside java")
    lint = ["-Xlint:all,-path", "-Werror", "--release", "17"]
    subprocess.run([javac, *lint, "-cp", class_path, "-d", tmp_path, *sources], check=True)
    done = subprocess.run(
        [java / "java", "-cp", f"{tmp_path}:{class_path}", "io.deltalakedb.LogStoreTest"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed: ") > 10


def test_without_the_jar_the_error_names_the_ways_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jar_module, "JAR", tmp_path / JAR.name)
    with pytest.raises(MissingDriverError, match="make jar"):
        jar()
    assert jar_module.main() == 1
    assert "make jar" in capsys.readouterr().err
