"""Promises of the package as a whole: a light import, complete pins, a complete wheel."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*==[0-9][A-Za-z0-9.+!]*")

# Prints what `import deltalakedb` adds to a fresh interpreter.
NEWLY_IMPORTED = """
import json, sys
before = set(sys.modules)
import deltalakedb
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.fixture(scope="module")
def newly_imported() -> list[str]:
    answer = subprocess.run(
        [sys.executable, "-c", NEWLY_IMPORTED], capture_output=True, text=True, check=True
    )
    names: list[str] = json.loads(answer.stdout)
    return names


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)["project"]
    return table


@pytest.fixture(scope="module")
def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not PIN.fullmatch(line)] == []
    names = [line.partition("==")[0] for line in pins]
    assert sorted(set(names)) == sorted(names), "a name is pinned twice"
    return dict(line.split("==") for line in pins)


def test_importing_the_package_imports_nothing_but_the_standard_library(
    newly_imported: list[str],
) -> None:
    ours = {"deltalakedb"}
    roots = {name.partition(".")[0] for name in newly_imported}
    assert "deltalakedb" in roots
    assert roots - ours - sys.stdlib_module_names == set()


def test_importing_the_package_imports_few_modules(newly_imported: list[str]) -> None:
    assert len([name for name in newly_imported if name.startswith("deltalakedb")]) <= 5
    assert len(newly_imported) <= 60


def test_every_declared_dependency_is_pinned(
    project: dict[str, Any], pinned: dict[str, str]
) -> None:
    declared = {*project["dependencies"]}.union(*project["optional-dependencies"].values())
    names = {re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in declared}
    assert names - {"deltalakedb"} - set(pinned) == set()


def test_engines_and_peers_are_pinned_to_the_versions_that_results_name(
    pinned: dict[str, str],
) -> None:
    held = {"pyspark", "duckdb", "duckdb-extension-delta", "deltalake", "polars"}
    source = (ROOT / "scripts" / "pins.py").read_text()
    for name in held:
        assert re.search(rf'"{name}(\[\w+\])?=={re.escape(pinned[name])}"', source), name


def test_the_wheel_holds_the_types_marker_and_every_sql_file_and_template(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("deltalakedb-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    package = ROOT / "src" / "deltalakedb"
    expected = {package / "py.typed", *package.rglob("*.sql"), *package.rglob("*.html")}
    expected |= set(package.rglob("*.css"))
    assert {path.relative_to(ROOT / "src").as_posix() for path in expected} <= packed
    assert not any(name.startswith("tests/") for name in packed)
