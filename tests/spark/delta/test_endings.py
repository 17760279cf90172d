"""Programs that are interrupted or killed, or end without closing anything; and what they show."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import deltalakedb
from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.lake import Lake
from deltalakedb.spark.delta.embedded import embedded_service
from deltalakedb.spark.delta.jar import jar
from deltalakedb.spark.java import java_home
from interop.readers import Unavailable, peer

from support.broken_service import BrokenService, Request, Wire
from support.web_client import Client

APP = Path(__file__).with_name("ending_app.py")
# Everything that Spark logs.
LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c %m%n
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def jars() -> str:
    """Delta's jars."""
    try:
        jar()
        return ",".join(map(str, sorted(peer("Delta on Spark", "delta-spark").glob("*.jar"))))
    except (Unavailable, DeltaLakeDbError) as missing:
        pytest.skip(str(missing))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake with a warehouse."""
    url = f"sqlite:///{tmp_path}/lake.db"
    with deltalakedb.connect(url, warehouse=str(tmp_path / "lake")) as lake:
        yield lake


@contextlib.contextmanager
def program(
    scenario: str, folder: Path, jars: str, *arguments: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A program, in a group of processes of its own; nothing of it is left in the end."""
    temporary = folder / "tmp"
    temporary.mkdir()
    with (folder / "errors.txt").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, APP, scenario, folder, jars, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            start_new_session=True,
            env={
                **os.environ,
                **variables,
                "TMPDIR": str(temporary),
                "JAVA_HOME": str(java_home()),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )
        try:
            with process:
                yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def tokens(folder: Path) -> list[Path]:
    """The files of tokens that are left."""
    return list((folder / "tmp").glob("deltalakedb-token-*"))


@pytest.mark.parametrize("decided", [False, True])
def test_an_interrupt_ends_the_statement_and_not_the_program(
    lake: Lake, tmp_path: Path, jars: str, decided: bool
) -> None:
    def stall(wire: Wire, request: Request) -> None:
        if decided:
            broken.forward(request)
        wire.stall()

    with BrokenService(embedded_service(lake)) as broken:
        service = broken.service
        with program("interrupted", tmp_path, jars, service.uri, TOKEN=service.token) as running:
            assert running.stdout is not None
            assert running.stdin is not None
            assert running.stdout.readline() == "ready\n", errors_of(tmp_path)
            with broken.fault("commits", stall):
                running.stdin.write("\n")
                running.stdin.flush()
                wait_for(lambda: any(one.route == "commits" for one in broken.requests))
                os.killpg(running.pid, signal.SIGINT)  # as a terminal does
                started = time.monotonic()
                assert running.stdout.readline() == "interrupted\n", errors_of(tmp_path)
                took = time.monotonic() - started
            said = running.stdout.readline()
            assert running.wait(60) == 0, errors_of(tmp_path)
    assert said == f"done {1 + decided}\n", errors_of(tmp_path)
    assert took < 30
    assert lake.table("t").version == 1 + decided
    assert lake.verify("t").ok


def errors_of(folder: Path) -> str:
    """The last errors of a program."""
    return (folder / "errors.txt").read_text()[-4000:]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes(running: subprocess.Popen[str]) -> list[str]:
    """What every user of the machine can see of the processes of a program."""
    done = subprocess.run(
        ["/bin/ps", "-ww", "-eo", "pgid=,args="], capture_output=True, text=True, check=True
    )
    found = [line.strip().partition(" ") for line in done.stdout.splitlines()]
    return [arguments for group, _, arguments in found if group == str(running.pid)]


@pytest.mark.parametrize(("scenario", "code"), [("left", 0), ("killed", -signal.SIGKILL)])
def test_a_program_that_closes_nothing_leaves_a_lake_that_works(
    lake: Lake, tmp_path: Path, jars: str, scenario: str, code: int
) -> None:
    import pyarrow as pa

    lake.create_table("t", schema=pa.schema([("id", pa.int64())]))
    with program(scenario, tmp_path, jars) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "done\n", errors_of(tmp_path)
        assert running.wait(60) == code, errors_of(tmp_path)
        wait_for(lambda: not processes(running))
    assert "Traceback" not in errors_of(tmp_path)
    if code == 0:
        assert tokens(tmp_path) == []
    assert lake.table("t").version == 1
    lake.table("t").append([{"id": 2}])
    assert lake.verify("t").ok
    assert lake.table("t").snapshot().to_arrow().num_rows == 2


def test_the_token_is_nowhere_to_be_seen(lake: Lake, tmp_path: Path, jars: str) -> None:
    import pyarrow as pa

    lake.create_table("t", schema=pa.schema([("id", pa.int64())]))
    seen: dict[str, str] = {}
    settings, log = tmp_path / "conf", tmp_path / "spark.log"
    settings.mkdir()
    (settings / "log4j2.properties").write_text(LOGGING.format(file=log))
    with program("shown", tmp_path, jars, SPARK_CONF_DIR=str(settings)) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        first = running.stdout.readline().split()
        assert len(first) == 3, errors_of(tmp_path)
        token, address, application = first
        lines: list[str] = []
        while "shown\n" not in lines:
            lines.append(running.stdout.readline())
            assert lines[-1], errors_of(tmp_path)
        seen["output"] = "".join(lines)
        environment = f"/api/v1/applications/{application}/environment"
        pages = Client(address)
        for page in (environment, "/environment/", "/SQL/", "/jobs/"):
            seen[page] = pages(page).text
        seen["ps"] = "\n".join(processes(running))
        assert "org.apache.spark.deploy.SparkSubmit" in seen["ps"]
        running.stdin.close()
        assert running.wait(60) == 0, errors_of(tmp_path)
    for path in [*(tmp_path / "events").rglob("*"), tmp_path / "errors.txt", log]:
        if path.is_file():
            seen[path.name] = path.read_text(errors="replace")
    # The settings are there, without the secret.
    hadoop = dict(json.loads(seen[environment])["hadoopProperties"])
    assert hadoop["deltalakedb.uri"].startswith("http://127.0.0.1:")
    assert "redacted" in hadoop["deltalakedb.token"]
    assert sum(line.startswith("done") for line in lines) == 3
    assert "refused True" in seen["output"]
    assert "INFO org.apache.spark" in seen["spark.log"]
    assert any("SparkListenerEnvironmentUpdate" in text for text in seen.values())
    assert [place for place, text in seen.items() if token in text] == []
