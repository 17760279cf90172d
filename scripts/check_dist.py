"""Prove that the wheel in dist/ works where nothing else is: one empty environment for each extra.

`make dist` builds the wheel and the sdist and calls this. Each environment gets the wheel with one
extra, at the pinned versions, and does a little real job: a catalog in SQLite, DuckDB or a real
Postgres, tables on disk and on an S3 server, Spark, the command line. The wheel made from the
sdist must hold the same files, and a type checker must see the types. Names as arguments
(`scripts/check_dist.py base cli`) do only these.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
sys.path.insert(0, str(ROOT / "tests"))

# What every environment does with its catalog and location; it prints what it read back.
TABLE_JOB = """
import sys, json, deltalakedb, pyarrow as pa
url, location, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
assert "site-packages" in deltalakedb.__file__, deltalakedb.__file__
with deltalakedb.connect(url, storage_options=options) as lake:
    rows = pa.table({"id": [1, 2, 3], "day": ["mon", "tue", "tue"]})
    options = {"schema": rows.schema, "partition_by": ["day"]}
    orders = lake.create_table("orders", location=location, **options)
    orders.append(rows)
    orders.overwrite(rows.slice(0, 1), where="day = 'mon'")
    found = orders.snapshot().to_arrow(where="day = 'tue'")
    assert lake.verify("orders").ok
    print(orders.version, found.num_rows)
"""
MISSING_JOB = """
import sys, deltalakedb
try:
    deltalakedb.connect(sys.argv[1])
except deltalakedb.errors.MissingDriverError as error:
    print(error)
"""
SPARK_JOB = """
import sys
from pyspark.sql import SparkSession
from deltalakedb.spark import DeltaTable
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
         .config("spark.sql.shuffle.partitions", "1").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
orders = DeltaTable.forName(spark, "orders", catalog=sys.argv[1])
orders.delete("id = 2")
print(orders.toDF().count())
spark.stop()
"""
WEB_JOB = """
import sys, urllib.request, deltalakedb
from deltalakedb.service import OperationsPage
with deltalakedb.connect(sys.argv[1]) as lake, OperationsPage(lake) as page:
    text = urllib.request.urlopen(page.address + "/tables").read().decode()
    urllib.request.urlopen(page.address + "/metrics").read()
    metrics = urllib.request.urlopen(lake.serve_metrics(port=0).address).read().decode()
print("orders" in text and "/style.css" in text, "deltalakedb_catalog_tables 1.0" in metrics)
"""
MISSING_WEB_JOB = """
import deltalakedb
try:
    import deltalakedb.service
except deltalakedb.errors.MissingDriverError as error:
    print(error)
"""
OTEL_JOB = """
import deltalakedb.telemetry
from opentelemetry import trace
print(trace.get_tracer("x") is not None)
"""
TYPED = """
import deltalakedb
reveal_type(deltalakedb.connect("sqlite:///lake.db").table("orders").snapshot().version)
"""


def main() -> int:
    """Do every check, or those that are named; 1 where one fails."""
    wanted = sys.argv[1:]
    failed = []
    for name, check in CHECKS.items():
        if wanted and name not in wanted:
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="dldb-dist-") as folder:
            try:
                told = check(Path(folder))
            except (subprocess.CalledProcessError, AssertionError) as error:
                failed.append(name)
                output = getattr(error, "stderr", None) or ""
                told = f"FAILED: {error}\n{output}"
        print(f"{name:10} {time.monotonic() - begun:5.0f} s  {told}", flush=True)
    return 1 if failed else 0


# --- environments -------------------------------------------------------------------------


def wheel() -> Path:
    """The one wheel in dist/."""
    found = sorted(DIST.glob("deltalakedb-*.whl"))
    assert len(found) == 1, f"dist/ holds {len(found)} wheels: run make dist"
    return found[0]


def environment(folder: Path, extra: str) -> Path:
    """An environment with the wheel, one extra, and nothing else; its Python."""
    python = folder / "venv" / "bin" / "python"
    target = f"{wheel()}[{extra}]" if extra else str(wheel())
    constraints = str(ROOT / "constraints.txt")
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        run(uv, "venv", "--quiet", "--python", sys.executable, folder / "venv")
        run(uv, "pip", "install", "--quiet", "--python", python, "-c", constraints, target)
    else:
        run(sys.executable, "-m", "venv", folder / "venv")
        run(python, "-m", "pip", "install", "--quiet", "-c", constraints, target)
    return python


def run(*command: str | Path, cwd: Path | None = None, code: int = 0) -> str:
    """Run a command away from the sources; what it prints. Another exit code is a failure."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DELTALAKEDB_CATALOG")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd or Path(tempfile.gettempdir()),
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != code:
        raise subprocess.CalledProcessError(
            done.returncode, str(command[0]), done.stdout, done.stdout + done.stderr
        )
    return (done.stdout + (done.stderr if code else "")).strip()


def table_job(
    python: Path, folder: Path, url: str, location: str = "", options: dict[str, str] | None = None
) -> str:
    """Write and read a table; what was read."""
    place = location or str(folder / "orders")
    told = run(python, "-I", "-c", TABLE_JOB, url, place, json.dumps(options or {}), cwd=folder)
    assert told == "2 2", told
    return "rows written, replaced, read and verified"


# --- checks -------------------------------------------------------------------------------


def check_base(folder: Path) -> str:
    """The embedded default; what is missing is told, and no traceback."""
    python = environment(folder, "")
    told = table_job(python, folder, f"sqlite:///{folder}/lake.db")
    for url, extra in (("postgresql://me@db/lake", "postgres"), ("duckdb:///x.duckdb", "duckdb")):
        told_missing = run(python, "-I", "-c", MISSING_JOB, url, cwd=folder)
        assert f"deltalakedb[{extra}]" in told_missing, told_missing
    missing = run(python, "-I", "-c", MISSING_WEB_JOB, cwd=folder)
    assert "deltalakedb[web]" in missing, missing
    missing = run(python, "-I", "-m", "deltalakedb", "tables", cwd=folder, code=1)
    assert missing.startswith("Error: The command line needs"), missing
    return f"{told}; missing extras are named"


def check_cli(folder: Path) -> str:
    """Both names of the command line."""
    python = environment(folder, "cli")
    version = run(python, "-I", "-m", "deltalakedb", "--version", cwd=folder)
    command = python.with_name("deltalakedb")
    catalog = ("--catalog", f"sqlite:///{folder}/lake.db")
    run(command, "create", "orders", str(folder / "orders"), "id long", *catalog, cwd=folder)
    (table,) = json.loads(run(command, "tables", "--json", *catalog, cwd=folder))
    assert table["name"] == "orders"
    checks = json.loads(run(command, "doctor", "--json", *catalog, cwd=folder))
    assert checks["ok"], checks
    spark = json.loads(run(command, "doctor", "--json", "--spark", cwd=folder, code=3))
    wrong = [check["found"] for check in spark["checks"] if check["state"] == "wrong"]
    assert any("pyspark is not installed" in one for one in wrong), wrong
    return f"{version}; create, tables, doctor"


def check_postgres(folder: Path) -> str:
    """A catalog on a real server."""
    from support.postgres_server import PostgresServer

    python = environment(folder, "postgres")
    with PostgresServer(fsync=False) as server:
        return table_job(python, folder, server.url(server.create_database()))


def check_duckdb(folder: Path) -> str:
    """A catalog in DuckDB."""
    return table_job(environment(folder, "duckdb"), folder, f"duckdb:///{folder}/lake.duckdb")


def check_s3(folder: Path) -> str:
    """A table on an S3 server."""
    from support.s3 import running_server

    python = environment(folder, "s3")
    with running_server() as server:
        location = f"s3://{server.new_bucket()}/orders"
        url = f"sqlite:///{folder}/lake.db"
        return table_job(python, folder, url, location, server.storage_options)


def check_otel(folder: Path) -> str:
    """Spans have somewhere to go."""
    python = environment(folder, "otel")
    assert run(python, "-I", "-c", OTEL_JOB, cwd=folder) == "True"
    return table_job(python, folder, f"sqlite:///{folder}/lake.db")


def check_web(folder: Path) -> str:
    """The operations page and metrics, with the templates of the wheel."""
    python = environment(folder, "web")
    url = f"sqlite:///{folder}/lake.db"
    result = table_job(python, folder, url)
    assert run(python, "-I", "-c", WEB_JOB, url, cwd=folder) == "True True"
    return f"{result}; page and metrics served"


def check_spark(folder: Path) -> str:
    """Spark changes a table, and reads it."""
    from deltalakedb.spark.java import java_home

    os.environ["JAVA_HOME"] = str(java_home())
    python = environment(folder, "spark")
    url = f"sqlite:///{folder}/lake.db"
    told = table_job(python, folder, url)
    os.environ["PYSPARK_PYTHON"] = str(python)
    # Spark's classes are loaded from a file beside ours: -I would hide nothing more.
    assert run(python, "-c", SPARK_JOB, url, cwd=folder).splitlines()[-1] == "2"
    return f"{told}; Spark deleted and counted rows"


def check_types(folder: Path) -> str:
    """A type checker finds our types in an environment that has the wheel."""
    python = environment(folder, "")
    (folder / "user.py").write_text(TYPED)
    mypy = Path(sys.executable).with_name("mypy")
    told = run(mypy, "--strict", "--python-executable", python, "user.py", cwd=folder)
    assert 'Revealed type is "int"' in told or "builtins.int" in told, told
    return told.splitlines()[0].partition("note: ")[2]


def check_files(folder: Path) -> str:
    """The wheel made from the sdist is the wheel; marker, SQL, licence and metadata are in it."""
    (sdist,) = DIST.glob("deltalakedb-*.tar.gz")
    shutil.unpack_archive(sdist, folder, filter="data")
    (source,) = folder.glob("deltalakedb-*")
    again = folder / "again"
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", again, cwd=source)
    (other,) = again.glob("*.whl")
    names = _names(wheel())
    assert _names(other) == names
    assert {"deltalakedb/py.typed", "deltalakedb/__main__.py"} <= names
    assert "deltalakedb/service/templates/page.html" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    for name in ("LICENSE", "README.md", "Makefile", "constraints.txt", "deploy/Dockerfile"):
        assert (source / name).is_file(), f"the sdist lacks {name}"
    return f"{wheel().name}: {len(names)} files, the same from {sdist.name}"


def _names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


CHECKS: dict[str, Callable[[Path], str]] = {
    "files": check_files,
    "base": check_base,
    "types": check_types,
    "cli": check_cli,
    "postgres": check_postgres,
    "duckdb": check_duckdb,
    "s3": check_s3,
    "otel": check_otel,
    "web": check_web,
    "spark": check_spark,
}


if __name__ == "__main__":
    sys.exit(main())
