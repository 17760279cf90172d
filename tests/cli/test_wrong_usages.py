"""What people do wrong, one by one: each gets one readable paragraph, and nothing has changed.

docs/wrong-usages.md is the record of what they print, and compared with what they print today.
`DELTALAKEDB_RECORD=1 pytest tests/cli/test_wrong_usages.py` writes it anew.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.cli import app
from deltalakedb.cli.app import run
from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.spark.java import java_home

from support.broken_lake import BrokenLake, new_broken_lake
from support.postgres_server import PostgresServer
from support.s3 import SECRET

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wrong-usages.md"
RECORD = os.environ.get("DELTALAKEDB_RECORD") == "1"
SECRETS = ("wrong-password", "right-password", "p/ss")
PG = "postgresql://PGDB_%s@127.0.0.1:PGPORT/PGDB"


@dataclass(frozen=True, slots=True)
class Case:
    """A wrong usage. `usage` is a command line, or Python where `ends` names an error."""

    title: str
    usage: str
    ends: int | str = 1
    needs: str = ""  # spark, a disk that can be mounted, or what is missing in a process of its own
    environ: tuple[tuple[str, str], ...] = ()


def cli(title: str, usage: str, ends: int = 1, **more: str) -> Case:
    needs = more.pop("needs", "")
    return Case(title, usage, ends, needs, tuple(more.items()))


CHAPTERS: dict[str, list[Case]] = {
    "Commands and options": [
        cli("An unknown command", "tabels", 2),
        cli("No catalog is named", "tables", 2, DELTALAKEDB_CATALOG=""),
        cli("An unknown option", "files sales.orders --wher 'id = 1'", 2),
        cli("An argument is missing", "show", 2),
        cli("A word where a number belongs", "files sales.orders --limit many", 2),
        cli("A number out of range", "mirror once --concurrency 0", 2),
        cli("A setting of the object store without value", "tables --storage-option region", 2),
        cli("A property without value", "create t new 'id long' --property owner", 2),
        cli("An unknown log level", "mirror run --log-level loud", 2),
        cli("New files of no size", "optimize sales.orders --target-mb 0", 2),
        cli("The port of the page is taken", "serve --port TAKEN"),
        cli("The port of the metrics is taken", "mirror run --metrics-port TAKEN"),
    ],
    "Catalog URLs": [
        cli("A database that is not supported", "tables -c mysql://me@db/lake"),
        cli("A path instead of a URL", "tables -c lake.db"),
        cli("Two slashes instead of three", "tables -c sqlite://lake.db"),
        cli("A catalog in memory", "tables -c sqlite:///:memory:"),
        cli("A variable that is not set", "tables -c 'postgresql://me:${LAKE_PW}@db/lake'"),
        cli("A password that is not quoted", "tables -c postgresql://me:p/ss@db/lake"),
        cli("An option that cannot be read", "tables -c 'sqlite:///lake.db?timeout=soon'"),
    ],
    "Reaching the catalog": [
        cli("A wrong password", f"tables -c {PG % 'reader:wrong-password'}"),
        cli("Nothing listens there", "tables -c postgresql://etl@127.0.0.1:CLOSED/lake?timeout=1"),
        cli("No such database", f"tables -c {PG % 'reader:right-password'}_old"),
        cli("A role without any rights", f"tables -c {PG % 'stranger:right-password'}"),
        cli(
            "A role that may only read",
            f"create t new 'id long' -c {PG % 'reader:right-password'}",
        ),
        cli("A catalog that does not exist", "show sales.orders -c sqlite:///lkae.db"),
        cli("The folder does not exist", "tables -c sqlite:///nowhere/lake.db"),
        cli("A file that is not a database", "tables -c sqlite:///text.db"),
        cli("DuckDB told to open a SQLite file", "tables -c duckdb:///lake.db"),
        cli("A second process on a DuckDB file", "tables -c duckdb:///held.duckdb?timeout=0.1"),
        cli(
            "Somebody else is writing", "create t new 'id long' -c sqlite:///locked.db?timeout=0.1"
        ),
        cli("A catalog of a newer release", "tables -c sqlite:///newer.db"),
        cli("A newer release, asked to migrate", "migrate -c sqlite:///newer.db"),
    ],
    "Missing parts": [
        cli("The extra `postgres` is missing", "tables -c postgresql://me@db/lake", needs="extra"),
        cli("The extra `duckdb` is missing", "migrate -c duckdb:///new.duckdb", needs="extra"),
        cli("The extra `cli` is missing", "tables", needs="extra"),
        cli("No Java for Spark", "doctor --spark --json", 3, needs="java"),
    ],
    "Tables and versions": [
        cli("A table that does not exist", "show sales.order"),
        cli("A version that does not exist", "show sales.orders --version 99"),
        cli("A time before the table", "show sales.orders --timestamp 2001-01-01T00:00:00Z"),
        cli("A time that cannot be read", "show sales.orders --timestamp yesterday"),
        cli(
            "A version and a time",
            "show sales.orders --version 1 --timestamp 2001-01-01T00:00:00Z",
        ),
        cli("A name that is taken", "create sales.orders new 'id long'"),
        cli("No location, and no warehouse", "create sales.more 'id long'"),
        cli("Only a name", "create sales.more", 2),
        cli("A location that is taken", "create sales.more orders 'id long'"),
        cli("A Delta table lies there already", "create sales.more foreign 'id long'"),
        cli("A column without type", "create t new id"),
        cli("An unknown type", "create t new 'id number'"),
        cli("Partitioned by an unknown column", "create t new 'id long' --partition-by day"),
        cli(
            "A property with an impossible value",
            "create t new 'id long' --property delta.checkpointInterval=often",
        ),
        cli("A version to restore that does not exist", "restore sales.orders --version 99"),
        cli("Restore to which version?", "restore sales.orders"),
        cli("A clone over a table", "clone sales.orders sales.copy lost"),
        cli("No Parquet files to convert", "convert notes"),
        cli("Folders that name partition columns", "convert parquet"),
        cli("A name that an import would take", "import foreign --name sales.orders"),
    ],
    "Conditions": [
        cli("An unknown column", "files sales.orders --where 'price > 3'"),
        cli("A value of another type", "files sales.orders --where \"id > 'x'\""),
        cli("A condition that is not SQL", "files sales.orders --where 'id >> (3'"),
        cli("Optimizing by a column of no partition", "optimize sales.orders --where 'id = 1'"),
    ],
    "The log": [
        cli("No Delta table there", "import notes"),
        cli("A damaged log", "import corrupt"),
        cli("A log with a gap", "import gap"),
        cli("A log of a newer protocol", "import future"),
        cli("Imported already", "import orders --name sales.again"),
        cli("A drifted table cannot leave", "export sales.drifted"),
        cli("Foreign commits that are garbage", "adopt sales.drifted"),
        cli("A table to retry that does not exist", "mirror retry sales.nothing"),
        cli("A retention that is too short", "vacuum sales.orders --retention-hours 0"),
        cli("Nowhere to put expired versions", "expire sales.orders --older-than '0 days'"),
        cli("Versions that exist nowhere else", "drop sales.drifted"),
        cli("A duration that cannot be read", "expire sales.orders --older-than soon"),
        cli("No archive there", "restore-expired sales.orders notes"),
    ],
    "Disks and object stores": [
        cli("A full disk, for rows", "optimize sales.full", needs="disk"),
        cli(
            "A full disk, for the catalog",
            "create t new 'id long' -c sqlite:///full/small.db",
            needs="disk",
        ),
        cli("A full disk, for a new catalog", "migrate -c sqlite:///full/new.db", needs="disk"),
        cli(
            "A full disk, for a new DuckDB catalog",
            "migrate -c duckdb:///full/new.duckdb",
            needs="disk",
        ),
        cli(
            "A read-only catalog",
            "create t new 'id long' -c sqlite:///readonly/small.db",
            needs="disk",
        ),
        Case(
            "A read-only location",
            'lake.table("sales.readonly").append(rows)',
            "StorageError",
            "disk",
        ),
        Case("A full disk", 'lake.table("sales.full").append(rows)', "StorageError", "disk"),
        cli("No such bucket", "import s3://no-such-bucket/table", needs="s3"),
        cli("An unknown object store", "import ftp://host/table"),
    ],
    "Python": [
        Case(
            "Columns that the table does not have",
            'lake.table("sales.orders").append(pa.table({"id": [3], "price": [1.5]}))',
            "SchemaMismatchError",
        ),
        Case(
            "Values of another type",
            'lake.table("sales.orders").append(pa.table({"id": ["three"], "day": ["mon"]}))',
            "SchemaMismatchError",
        ),
        Case(
            "Null in a column that must not be null",
            'lake.table("sales.orders").append([{"id": None, "day": "mon"}])',
            "ConstraintViolatedError",
        ),
        Case(
            "A row that breaks a constraint",
            'lake.table("sales.orders").append([{"id": -1, "day": "mon"}])',
            "ConstraintViolatedError",
        ),
        Case(
            "Rows outside of what is overwritten",
            'lake.table("sales.orders").overwrite(rows, where="day = \'sun\'")',
            "ConstraintViolatedError",
        ),
        Case(
            "Somebody was faster",
            'lake.table("sales.orders").commit([], expected_version=1)',
            "UnexpectedVersionError",
        ),
        Case(
            "An action that is not valid",
            'lake.table("sales.orders").commit([{"add": {"path": 5}}])',
            "InvalidActionError",
        ),
        Case(
            "Rows deleted from a table that only grows",
            'lake.table("sales.log").overwrite(rows)',
            "CommitRejectedError",
        ),
        Case(
            "A data file is missing",
            'lake.table("sales.lost").snapshot().to_arrow()',
            "DataFileMissingError",
        ),
        Case(
            "A data file is damaged",
            'lake.table("sales.cut").snapshot().to_arrow()',
            "DataFileError",
        ),
        Case(
            "An option with an unknown value",
            'deltalakedb.connect("sqlite:///lake.db", mirror="sometimes")',
            "InvalidArgumentError",
        ),
        Case(
            "A table of a transaction does not exist",
            "with lake.transaction() as tx:\n"
            '    tx.table("sales.orders").append(rows)\n'
            '    tx.table("sales.nothing").append(rows)',
            "TableNotFoundError",
        ),
        Case(
            "A lake that is closed",
            'lake.close()\nlake.table("sales.orders")',
            "CatalogError",
        ),
    ],
    "Spark": [
        Case(
            "No catalog for Spark",
            'DeltaTable.forName(spark, "sales.orders")',
            "ConfigurationError",
            "spark",
        ),
        Case(
            "A table that does not exist, for Spark",
            'DeltaTable.forName(spark, "sales.order", catalog="sqlite:///lake.db")',
            "SparkTableNotFoundError",
            "spark",
        ),
        Case(
            "A wrong predicate for Spark",
            'orders = DeltaTable.forName(spark, "sales.orders", catalog="sqlite:///lake.db")\n'
            'orders.delete("price > 3")',
            "InvalidConditionError",
            "spark",
        ),
    ],
}
CASES = [case for cases in CHAPTERS.values() for case in cases]
# What only somebody in Python can follow. Options of a catalog URL are written in the same way.
_PYTHON = re.compile(
    r"\b(?:lake|table|snapshot|tx|spark)\.(?!db\b|duckdb\b)[a-z_]+"
    r"|\bdeltalakedb\.[a-z]|storage_options|\bpyarrow\b|\bdatetime\b|\btimedelta\b"
    r"|(?<![-\w?&])(?!(?:timeout|pool_size|sslmode|threads)=)[a-z_]+=(?:…|True|False|None|['\d{(\[])"
)
# No package of an extra is there: what is told to somebody who installed `deltalakedb` alone.
_BARE = """
import io, json, shlex, sys
from contextlib import redirect_stderr
missing, usages = json.loads(sys.argv[1])
for name in missing:
    sys.modules[name] = None
from deltalakedb.cli import main
for usage in usages:
    if usage == "tables":
        sys.modules["typer"] = None
    sys.argv = ["deltalakedb", *shlex.split(usage)]
    with redirect_stderr(io.StringIO()) as told:
        try:
            main()
        except SystemExit as end:
            print(json.dumps([usage, end.code, told.getvalue()]))
"""
_INTRODUCTION = """# What people do wrong, and what they are told

Each of these was tried on a lake in which everything is wrong that can be, and this is what was
printed. No row of a catalog, no file and no folder has changed afterwards.
`tests/cli/test_wrong_usages.py` tries them all again and compares.

Exit codes of commands: 1 refused or failed; 2 wrong usage; 3 done, but something needs your
attention. In Python every error is a `deltalakedb.errors.DeltaLakeDbError`: its class is the kind,
and `what`, `why` and `fix` are its parts.
"""


@pytest.fixture(scope="module")
def broken_lake(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer
) -> Iterator[BrokenLake]:
    with new_broken_lake(tmp_path_factory.mktemp("wrong"), postgres_server) as made:
        yield made


@pytest.fixture(scope="module")
def bare(broken_lake: BrokenLake) -> dict[str, tuple[int, str]]:
    """Exit codes and errors of the cases that miss an extra, by usage."""
    usages = [case.usage for case in CASES if case.needs == "extra"]
    answer = subprocess.run(
        [sys.executable, "-c", _BARE, json.dumps([["psycopg", "duckdb"], usages])],
        cwd=broken_lake.root,
        env={**os.environ, "DELTALAKEDB_CATALOG": broken_lake.catalog},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = map(json.loads, answer.stdout.splitlines())
    return {usage: (code, told) for usage, code, told in lines}


@pytest.fixture(scope="module")
def record() -> Iterator[dict[str, str]]:
    """The sections of the page by title; those of this run are written, where that is wanted."""
    sections = {} if RECORD else _recorded()
    yield sections
    if RECORD and len(sections) == len(CASES):
        text = [_INTRODUCTION]
        for chapter, cases in CHAPTERS.items():
            text += [f"## {chapter}\n", *(sections[case.title] for case in cases)]
        PAGE.write_text("\n".join(text), "utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_wrong_usage_is_told_in_a_paragraph_and_changes_nothing(
    case: Case,
    broken_lake: BrokenLake,
    record: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if case.needs == "disk" and broken_lake.unmounted:
        pytest.skip(broken_lake.unmounted)
    monkeypatch.chdir(broken_lake.root)
    monkeypatch.setenv("DELTALAKEDB_CATALOG", broken_lake.catalog)
    for name, value in case.environ:
        monkeypatch.setenv(name, value)
    before = broken_lake.state()
    ends, told = (
        _command(case, broken_lake, request)
        if isinstance(case.ends, int)
        else _python(case, broken_lake, request)
    )
    assert ends == case.ends, told
    _check_paragraph(told)
    if isinstance(case.ends, int):
        found = _PYTHON.search(told)
        assert found is None, f"{found} is nothing to type at the command line"
    after = broken_lake.state(fresh=True)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    # Beside a SQLite catalog that a writer has waited for: empty, and used by every later one.
    assert {name for name in changed if not name.endswith("-queue")} == set()
    section = _section(case, broken_lake, told)
    if RECORD:
        record[case.title] = section
    else:
        assert record.get(case.title) == section


def test_the_record_has_every_case_and_no_other() -> None:
    assert len(CASES) >= 40
    assert RECORD or list(_recorded()) == [case.title for case in CASES]


def _command(
    case: Case, broken_lake: BrokenLake, request: pytest.FixtureRequest
) -> tuple[int, str]:
    """The exit code of a command, and what it says to people."""
    if case.needs == "extra":
        answers: dict[str, tuple[int, str]] = request.getfixturevalue("bare")
        return answers[case.usage]
    monkeypatch = request.getfixturevalue("monkeypatch")
    capsys = request.getfixturevalue("capsys")
    arguments = shlex.split(broken_lake.fill_in(case.usage))
    if case.needs == "s3":
        options = request.getfixturevalue("s3_server").storage_options
        arguments += [f"--storage-option={name}={value}" for name, value in options.items()]
    if case.needs == "java":
        # The one that `make setup` brings lies in the Python environment.
        monkeypatch.setitem(java_home.__kwdefaults__, "prefix", "/venv")
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.delenv("JAVA_HOME", raising=False)
    errors = _watch(monkeypatch)
    code = run(arguments)
    assert all(error.fix for error in errors), "it does not say what to do"
    out, err = capsys.readouterr()
    if "doctor" in arguments:
        wrong = [check for check in json.loads(out)["checks"] if check["state"] == "wrong"]
        return code, " ".join(f"{check['found']}. {check['fix']}." for check in wrong)
    assert out == ""
    return code, err


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[DeltaLakeDbError]:
    """The errors that are told from now on; they are told as ever."""
    errors: list[DeltaLakeDbError] = []
    tell = app._print_error

    def tell_and_keep(error: Exception, text: str) -> None:
        if isinstance(error, DeltaLakeDbError):
            errors.append(error)
        tell(error, text)

    monkeypatch.setattr(app, "_print_error", tell_and_keep)
    return errors


def _python(case: Case, broken_lake: BrokenLake, request: pytest.FixtureRequest) -> tuple[str, str]:
    """The class of an error, and its message."""
    names: dict[str, object] = {"deltalakedb": deltalakedb, "pa": pa}
    names["rows"] = pa.table({"id": [7], "day": ["mon"]})
    if case.needs == "spark":
        from deltalakedb.spark import DeltaTable

        names |= {"spark": request.getfixturevalue("spark"), "DeltaTable": DeltaTable}
    with (
        deltalakedb.connect(broken_lake.catalog) as names["lake"],
        pytest.raises(DeltaLakeDbError) as caught,
    ):
        exec(case.usage, names)  # noqa: S102 - that is the test
    assert caught.value.fix, "it does not say what to do"
    return type(caught.value).__name__, str(caught.value)


def _check_paragraph(told: str) -> None:
    """One paragraph of a few sentences, without a secret and without where it comes from."""
    text = told.strip()
    assert text
    assert "\n" not in text
    assert len(text) < 900
    assert re.search(r"[.?!)]$", text), "it breaks off"
    assert len(re.findall(r"[.?!](?: |$|\))", text)) >= 2, "it says what, but not what to do"
    for word in ("Traceback", 'File "', "does not know", *SECRETS, SECRET):
        assert word not in text


# --- the record ---------------------------------------------------------------------------


def _section(case: Case, broken_lake: BrokenLake, told: str) -> str:
    is_command = isinstance(case.ends, int)
    usage = f"deltalakedb {case.usage}" if is_command else case.usage
    end = f"Exit code {case.ends}:" if is_command else f"`{case.ends}`:"
    lines = textwrap.wrap(
        broken_lake.normalise(told.strip()), 110, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(
        [
            f"### {case.title}\n",
            f"```{'sh' if is_command else 'python'}",
            broken_lake.normalise(broken_lake.fill_in(usage)),
            "```\n",
            f"{end}\n",
            "```text",
            *lines,
            "```\n",
        ]
    )


def _recorded() -> dict[str, str]:
    parts = re.split(r"^(?=##)", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    sections = [part for part in parts if part.startswith("### ")]
    return {part.partition("\n")[0].removeprefix("### "): part.rstrip() + "\n" for part in sections}
