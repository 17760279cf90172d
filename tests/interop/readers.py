"""Engines that read our mirror, one class each, all asked in the same way.

`Reader.read` gives the rows of a Delta table as Arrow, at its head, at a version or at an instant;
whatever an engine raises comes out as `Refused`. What an engine cannot do is no business of this
module: `limits.py` declares it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import distribution
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.spark.java import java_home

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NAMES = ("delta-rs", "DuckDB", "polars", "Sail", "Delta on Spark")
REPOSITORY = Path(__file__).resolve().parents[2]
PEERS = REPOSITORY / "build" / "peers"
_WORKER = Path(__file__).with_name("spark_worker.py")
SPARK_SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Golden tables are older than any retention.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # Compiling a query takes longer than reading a handful of rows without.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


class Refused(Exception):  # noqa: N818 -- a refusal is an answer, not an error of ours
    """The engine does not read this table; the message is its own."""


class Unavailable(Exception):  # noqa: N818 -- a reason to skip
    """An engine is not there, and why."""

    def __init__(self, reader: str, why: str) -> None:
        super().__init__(why)
        self.reader = reader


class Reader:
    """An engine that reads Delta tables."""

    name: ClassVar[str]
    # Slow ones are asked for fewer versions.
    slow: ClassVar[bool] = False

    def __init__(self) -> None:
        self._held = ExitStack()

    def _read(self, path: str, version: int | None, timestamp: datetime | None) -> pa.Table:
        raise NotImplementedError

    def read(
        self, path: Path | str, *, version: int | None = None, timestamp: datetime | None = None
    ) -> pa.Table:
        """The rows at a version or at an instant; `Refused` with what the engine said."""
        try:
            return self._read(str(path), version, timestamp)
        except Refused:
            raise
        except (KeyboardInterrupt, SystemExit):
            raise
        # Panics of engines written in Rust derive from BaseException.
        except BaseException as error:
            raise Refused(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Let go of whatever is held."""
        self._held.close()


class DeltaRs(Reader):
    """delta-rs, by its SQL."""

    name = "delta-rs"

    def __init__(self, storage_options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._storage_options = dict(storage_options or {})

    def _read(self, path: str, version: int | None, timestamp: datetime | None) -> pa.Table:
        from deltalake import DeltaTable, QueryBuilder

        table = DeltaTable(path, version=version, storage_options=self._storage_options)
        if timestamp is not None:
            table.load_as_version(timestamp)
        found = QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
        return pa.table(found)


class DuckDb(Reader):
    """DuckDB's delta extension."""

    name = "DuckDB"

    def __init__(self) -> None:
        super().__init__()
        package = distribution("duckdb_extension_delta").locate_file("duckdb_extension_delta")
        self._extension = next(Path(str(package)).rglob("delta.duckdb_extension"))
        self._connection = self._connect()

    def _connect(self) -> DuckDBPyConnection:
        import duckdb

        made = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        self._held.enter_context(made)
        made.execute(f"LOAD '{self._extension}'")
        made.execute("SET TimeZone = 'UTC'")
        return made

    def _read(self, path: str, version: int | None, timestamp: datetime | None) -> pa.Table:
        import duckdb

        if timestamp is not None:
            raise Refused("delta_scan knows versions only")
        options = "" if version is None else f", version => {version}"
        try:
            found = self._connection.execute(f"SELECT * FROM delta_scan(?{options})", [path])
            return found.to_arrow_table()
        except (duckdb.InternalException, duckdb.FatalException):
            # After one of these a database answers nothing any more.
            self._connection = self._connect()
            raise


class Polars(Reader):
    """polars, by its own scan."""

    name = "polars"

    def _read(self, path: str, version: int | None, timestamp: datetime | None) -> pa.Table:
        import polars as pl

        at = version if timestamp is None else timestamp
        return pl.scan_delta(path, version=at).collect().to_arrow()


class SparkWorker(Reader):
    """A session of Spark, or of what looks like it, in a process of its own."""

    def __init__(
        self, python: str, settings: Mapping[str, Any], environ: Mapping[str, str], folder: Path
    ) -> None:
        super().__init__()
        self._folder = folder
        self._numbers = count(1)
        self._asked: dict[int, Future[pa.Table]] = {}
        self._writing = threading.Lock()
        self._said = self._held.enter_context((folder / f"{self.name}.log").open("w+"))
        # No site packages of the user, and none of the project: the engine is what is tested.
        self._process = subprocess.Popen(
            [python, "-I", "-W", "ignore", str(_WORKER), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=folder,
            env={**os.environ, **environ},
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._held.callback(self._stop)
        line = _opened(self._process.stdout).readline()
        said = json.loads(line) if line else {"error": self._last_words()}
        if "error" in said:
            self.close()
            raise Unavailable(self.name, f"it does not start: {said['error']}")
        self._listener.start()

    def _last_words(self) -> str:
        code = self._process.wait()
        self._said.seek(0)
        return f"it ended with {code}: {self._said.read()[-2000:]}"

    def _listen(self) -> None:
        for line in _opened(self._process.stdout):
            said: dict[str, Any] = json.loads(line)
            asked = self._asked.pop(said["number"])
            if "error" in said:
                asked.set_exception(Refused(said["error"]))
            else:
                asked.set_result(_take(self._answer(said["number"])))
        while self._asked:
            _, asked = self._asked.popitem()
            asked.set_exception(Refused(self._last_words()))

    def _answer(self, number: int) -> Path:
        return self._folder / f"{self.name}-{number}.arrow"

    def ask(self, request: Mapping[str, Any]) -> Future[pa.Table]:
        """The rows that a request of `spark_worker` will give."""
        number = next(self._numbers)
        asked: Future[pa.Table] = Future()
        self._asked[number] = asked
        line = json.dumps({**request, "number": number, "into": str(self._answer(number))})
        requests = _opened(self._process.stdin)
        with self._writing:  # lines of several threads must not mix
            requests.write(f"{line}\n")
            requests.flush()
        return asked

    def ask_read(
        self, path: Path, *, version: int | None = None, timestamp: datetime | None = None
    ) -> Future[pa.Table]:
        """What `read` will give, later: the engine works on several tables at once."""
        options = {}
        if version is not None:
            options["versionAsOf"] = str(version)
        if timestamp is not None:
            options["timestampAsOf"] = f"{timestamp.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        return self.ask({"read": str(path), "options": options})

    def sql(self, statement: str) -> pa.Table:
        """Run a statement; its rows. `Refused` with what the engine said."""
        return self.ask({"sql": statement}).result()

    def write(
        self, query: str, path: Path, *, mode: str, alias: str | None = None, **options: str
    ) -> None:
        """Write the rows of a query to a table; `Refused` with what the engine said."""
        given = {"write": query, "alias": alias, "mode": mode, "options": options, "to": str(path)}
        self.ask(given).result()

    def run(self, statement: str) -> None:
        """Run a statement whose answer does not matter (PySpark cannot show that of OPTIMIZE)."""
        self.ask({"run": statement}).result()

    def _read(self, path: str, version: int | None, timestamp: datetime | None) -> pa.Table:
        return self.ask_read(Path(path), version=version, timestamp=timestamp).result()

    def kill(self) -> None:
        """End the session at once, with the Java that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def _stop(self) -> None:
        with suppress(BrokenPipeError):
            _opened(self._process.stdin).close()
        if self._asked:
            # Nobody waits for these answers any more.
            self._process.kill()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._listener.is_alive():
            self._listener.join()
        _opened(self._process.stdout).close()


class Sail(SparkWorker):
    """Sail: not built on delta-kernel, so its vote is independent of the others'."""

    name = "Sail"

    def __init__(self, folder: Path) -> None:
        python = peer(self.name, "sail") / "bin" / "python"
        super().__init__(str(python), {"sail": True}, {"RUST_LOG": "error"}, folder)


class DeltaSpark(SparkWorker):
    """Delta on Spark: the reference."""

    name = "Delta on Spark"
    slow = True

    def __init__(self, folder: Path) -> None:
        jars = ",".join(str(jar) for jar in sorted(peer(self.name, "delta-spark").glob("*.jar")))
        try:
            java = java_home()
        except DeltaLakeDbError as error:
            raise Unavailable(self.name, str(error)) from error
        options = {**SPARK_SETTINGS, "spark.jars": jars, "spark.local.dir": str(folder)}
        environ = {"JAVA_HOME": str(java), "SPARK_LOCAL_IP": "127.0.0.1"}
        super().__init__(sys.executable, {"options": options}, environ, folder)


@dataclass(frozen=True, slots=True)
class Peers:
    """The readers that are there, and why others are not."""

    there: dict[str, Reader]
    missing: dict[str, str]

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Start every reader that can be had; what they need to write goes to `folder`."""
        found = cls({}, {})
        makers = (DeltaRs, DuckDb, Polars, lambda: Sail(folder), lambda: DeltaSpark(folder))
        with ThreadPoolExecutor() as pool:
            for making in [pool.submit(make) for make in makers]:
                try:
                    reader: Reader = making.result()
                    found.there[reader.name] = reader
                except Unavailable as error:
                    found.missing[error.reader] = str(error)
        return found

    def close(self) -> None:
        """End all of them."""
        for reader in self:
            reader.close()

    def __iter__(self) -> Iterator[Reader]:
        return iter(self.there.values())


def peer(reader: str, name: str) -> Path:
    """Where an engine lies that `make peers` brings."""
    folder, reason = PEERS / name, PEERS / f"{name}.missing"
    if (folder / ".ready").exists():
        return folder
    why = reason.read_text() if reason.exists() else "it was not asked for yet"
    raise Unavailable(reader, f"no {name} in build/peers, where `make peers` brings it: {why}")


def _take(answer: Path) -> pa.Table:
    with pa.OSFile(str(answer)) as source:
        found = pa.ipc.open_file(source).read_all()
    answer.unlink()
    return found


def _opened(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
