"""The chapters of the demo. Each statement that it prints was just checked."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltalakedb.demo.report import Report
from deltalakedb.demo.worker import LEASE_SECONDS, running_worker
from deltalakedb.errors import CommitConflictError, MirrorError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.java import java_home

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.mirror.mirror import TableStatus

ORDERS, DAILY = "sales.orders", "sales.daily"
_ROWS: Final = 100_000
_SMALL_COMMITS: Final = 120
_PATIENCE_SECONDS: Final = 60.0


def run_demo(
    report: Report, place: Path, *, keep: bool = False, session: SparkSession | None = None
) -> None:
    """Run all chapters, with tables and catalog in `place`; in a new Spark session by default."""
    url = f"sqlite:///{place / 'lake.db'}"
    report.title("deltalakedb: Delta tables whose transaction log lives in a SQL database")
    own = Path(tempfile.mkdtemp(prefix="deltalakedb-demo-spark-"))
    try:
        with (
            Lake.connect(url) as lake,
            nullcontext(session) if session else _spark_session(own, place / "spark.log") as spark,
        ):
            story = _Story(report, lake, spark, place, url)
            story.two_tables()
            story.one_transaction()
            story.two_writers()
            story.time_travel()
            story.killed_worker()
            story.other_readers()
        with Lake.connect(url) as lake:
            end = partial(_end, report, place, url, keep=keep)
            _operations_page(report, lake, end, keep=keep)
            if not keep:
                end()
    finally:
        shutil.rmtree(own, ignore_errors=True)


class _Story:
    """The chapters on the two tables."""

    def __init__(
        self, report: Report, lake: Lake, spark: SparkSession, place: Path, url: str
    ) -> None:
        self._report, self._lake, self._spark = report, lake, spark
        self._place, self._url = place, url

    def two_tables(self) -> None:
        self._report.chapter("Spark writes two tables; their log is rows of one SQLite file")
        self._report.say(f"catalog: {self._url}")
        orders = self._orders(0, _ROWS, days=3)
        for name, frame in ((ORDERS, orders), (DAILY, _totals(orders))):
            location = str(self._place / name.partition(".")[2])
            table = self._lake.create_table(
                name, location=location, schema=frame.schema, partition_by=["day"]
            )
            version = table.append(frame)
            snapshot = table.snapshot()
            rows = self._count(name)
            self._report.check(
                f"{name}: version {version}, {snapshot.num_files} Parquet files, {rows:,} rows",
                ok=rows == frame.count(),
            )

    def one_transaction(self) -> None:
        self._report.chapter("One transaction changes both tables, or none")
        news = self._orders(_ROWS, 10_000, days=1, first=4)
        before = self._totals_agree()
        with self._lake.transaction() as tx:
            tx.table(ORDERS).append(news)
            tx.table(DAILY).overwrite(_totals(news), where="day = '2026-11-04'")
            seen = self._totals_agree()
        for name, version in tx.results.items():
            self._report.say(f"{name} is at version {version}")
        self._report.check(
            "readers of both before, during and after it saw totals that fit the orders",
            ok=before and seen and self._totals_agree(),
        )

    def two_writers(self) -> None:
        self._report.chapter(
            "Two writers at once: a harmless one is rebased, a conflicting refused"
        )
        # Another writer with a connection of its own; this one's transaction began earlier.
        with Lake.connect(self._url) as other:
            theirs = DeltaTable.forName(self._spark, ORDERS, catalog=other)
            began = self._lake.table(ORDERS).version
            with self._lake.transaction() as tx:
                tx.table(ORDERS).append(self._orders(200_000, 1_000, days=1, first=5))
                theirs.delete("day = '2026-11-01' AND id % 10 = 0")
            self._report.check(
                f"both began at version {began}; Spark's DELETE became {began + 1}, and the "
                f"append, which has read nothing, was put on top of it as {tx.results[ORDERS]}",
                ok=tx.results[ORDERS] == began + 2,
            )
            try:
                with self._lake.transaction() as tx:
                    tx.table(ORDERS).overwrite(
                        self._orders(0, 3, days=1), where="day = '2026-11-01'"
                    )
                    theirs.delete("day = '2026-11-01' AND id % 7 = 0")
            except CommitConflictError as refusal:
                self._report.say("The next two want the same day. The second one is refused:")
                self._report.say(f"{type(refusal).__name__}: {refusal}", style="yellow")
                current = self._lake.table(ORDERS).version
                self._report.check(
                    f"nothing of it was written: version {current} is the other writer's",
                    ok=current == refusal.winner_version,
                )
            else:
                self._report.check("the conflicting writer was refused", ok=False)

    def time_travel(self) -> None:
        self._report.chapter("Time travel: every version, straight from SQL, read by Spark")
        table = self._lake.table(ORDERS)
        spark_table = DeltaTable.forName(self._spark, ORDERS, catalog=self._lake)
        counts: list[int] = []
        rows: list[tuple[object, ...]] = []
        for entry in reversed(table.history()):
            snapshot = table.snapshot(version=entry.version)
            counts.append(spark_table.toDF(version=entry.version).count())
            rows.append(
                (
                    entry.version,
                    entry.commit_info.operation if entry.commit_info else "",
                    snapshot.num_files,
                    f"{counts[-1]:,}",
                )
            )
        self._report.table(("version", "operation", "files", "rows"), rows)
        first = table.history()[-2]
        moment = datetime.fromtimestamp(first.committed_at / 1000, UTC)
        at = table.snapshot(timestamp=moment)
        self._report.check(
            f"as it was at {moment:%H:%M:%S.%f} UTC: version {at.version}",
            ok=at.version == first.version,
        )
        self._report.check(
            "Spark counts what was written", ok=counts[:3] == [0, _ROWS, _ROWS + 10_000]
        )

    def killed_worker(self) -> None:
        self._report.chapter(
            "A mirror worker is killed while there is work; another one catches up"
        )
        with Lake.connect(self._url, mirror="worker") as queued:
            orders = queued.table(ORDERS)
            small = orders.snapshot().to_arrow(where="day = '2026-11-05'").slice(0, 1)
            begun_writing, killed = threading.Event(), threading.Event()

            def write() -> None:
                for number in range(_SMALL_COMMITS):
                    if number == _SMALL_COMMITS // 3:
                        begun_writing.set()
                    if number == 2 * _SMALL_COMMITS // 3:
                        # The last third comes after the kill.
                        killed.wait()
                    orders.append(small)

            writer = threading.Thread(target=write)
            begun = _status(queued).published_version or 0
            with running_worker(self._url) as worker:
                writer.start()
                try:
                    begun_writing.wait(_PATIENCE_SECONDS)
                    _wait(queued, lambda now: (now.published_version or 0) > begun, "publishes")
                    worker.kill()  # SIGKILL: it cannot clean up
                    worker.wait()
                finally:
                    killed.set()
            writer.join()
            left = _status(queued)
            self._report.check(
                f"{_SMALL_COMMITS} commits; process {worker.pid} got SIGKILL after "
                f"{(left.published_version or 0) - begun} of them were published; commits went on",
                ok=worker.returncode == -9 and left.head - begun == _SMALL_COMMITS,
            )
            self._report.check(
                f"in the catalog: version {left.head}; in _delta_log: {left.published_version}; "
                f"waiting: {left.backlog}",
                ok=left.backlog > 0,
            )
            started = time.monotonic()
            with running_worker(self._url) as worker:
                now = _wait(queued, lambda now: now.state == "published", "catches up")
            self._report.check(
                f"process {worker.pid} took over when the lease of {LEASE_SECONDS:.0f} s was over "
                f"(30 s unless set), and published the rest up to version {now.published_version}: "
                f"{time.monotonic() - started:.1f} s",
                ok=now.published_version == left.head,
            )

    def other_readers(self) -> None:
        self._report.chapter("delta-rs reads the mirrored tables, and agrees")
        import deltalake

        for name in (ORDERS, DAILY):
            snapshot = self._lake.table(name).snapshot()
            theirs = deltalake.DeltaTable(str(self._place / name.partition(".")[2]))
            ours, read = _sorted(snapshot.to_arrow()), _sorted(theirs.to_pyarrow_table())
            self._report.check(
                f"{name}: delta-rs {deltalake.__version__} reads version {theirs.version()} and "
                f"{read.num_rows:,} rows, the same as the catalog has",
                ok=theirs.version() == snapshot.version and ours.equals(read),
            )
            report = self._lake.verify(name)
            self._report.check(
                f"{name}: verify finds {len(report.findings)} differences between SQL and "
                "_delta_log",
                ok=report.ok,
            )

    def _orders(self, begin: int, rows: int, *, days: int, first: int = 1) -> DataFrame:
        return self._spark.range(begin, begin + rows, numPartitions=2).selectExpr(
            "id",
            f"date_add(date'2026-11-01', CAST({first - 1} + id % {days} AS INT)) AS day",
            "CAST(id % 500 AS DOUBLE) AS price",
        )

    def _count(self, name: str) -> int:
        return DeltaTable.forName(self._spark, name, catalog=self._lake).toDF().count()

    def _totals_agree(self) -> bool:
        """Whether both tables agree at one instant, read by another connection."""
        with Lake.connect(self._url) as reader, reader.snapshot([ORDERS, DAILY]) as at:
            orders = at[ORDERS].to_arrow().group_by("day").aggregate([("price", "sum")])
            daily = at[DAILY].to_arrow().select(["day", "total"])
            return bool(_sorted(orders.rename_columns(["day", "total"])).equals(_sorted(daily)))


def _totals(orders: DataFrame) -> DataFrame:
    return orders.groupBy("day").agg({"price": "sum"}).toDF("day", "total")


def _sorted(table: pa.Table) -> pa.Table:
    """Rows in an order that both readers agree on, with the plain types of Arrow."""
    import pyarrow as pa

    names = sorted(table.column_names)
    plain = table.select(names).sort_by([(name, "ascending") for name in names])
    fields = [pa.field(field.name, field.type) for field in plain.schema]
    return plain.cast(pa.schema(fields)).combine_chunks()


def _status(lake: Lake) -> TableStatus:
    return next(one for one in lake.mirror.status() if one.table == ORDERS)


def _wait(lake: Lake, done: Callable[[TableStatus], bool], what: str) -> TableStatus:
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        now = _status(lake)
        if done(now):
            return now
        time.sleep(0.02)
    raise MirrorError(
        f"No worker {what} within {_PATIENCE_SECONDS:.0f} seconds",
        why=f"The table is {_status(lake).state}",
        fix="See `deltalakedb mirror status`; on a very slow machine try again",
    )


def _operations_page(report: Report, lake: Lake, end: Callable[[], None], *, keep: bool) -> None:
    from deltalakedb.service import OperationsPage

    report.chapter("The operations page")
    with OperationsPage(lake) as page:
        listed = f"{page.address}/tables"
        with urllib.request.urlopen(listed, timeout=30) as answer:  # noqa: S310 - ours
            text = answer.read().decode()
        report.check(
            f"{listed} answers with {len(text):,} characters, and names both tables",
            ok=ORDERS in text and DAILY in text,
        )
        if keep:
            end()
            report.title(f"\nThe operations page is at {page.address} until you press Ctrl-C.")
            _until_interrupted()


def _until_interrupted() -> None:
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def _end(report: Report, place: Path, url: str, *, keep: bool) -> None:
    result = "every check passed" if not report.failed else "see the failed checks"
    left = "" if keep else " Nothing is left running."
    report.title(f"\nDone in {report.seconds:.0f} s; {result}.{left}")
    report.say(f"The tables, their catalog and Spark's log are in {place}. Look at them:")
    ours = [sys.executable, "-m", "deltalakedb"]
    orders = json.dumps(str(place / "orders"))  # double quotes: the shell gets the single ones
    code = f"import deltalake; print(deltalake.DeltaTable({orders}).to_pandas())"
    commands = [
        [*ours, "tables", "--catalog", url],
        [*ours, "history", "--catalog", url, ORDERS, "--limit", "5"],
        [sys.executable, "-c", code],
    ]
    if not keep:
        commands.append([*ours, "serve", "--catalog", url])
    for command in commands:
        report.command(shlex.join(command))
    if not keep:
        report.say(
            "The last one serves the operations page. The demo itself keeps it open until Ctrl-C "
            "with --keep: make demo ARGS=--keep"
        )


# --- Spark --------------------------------------------------------------------------------


@contextmanager
def _spark_session(folder: Path, log: Path) -> Iterator[SparkSession]:
    """A session for the block; its Java is the one that JAVA_HOME, PATH or `make setup` has.

    Two cores, quiet, and no file outside of `folder`. Its standard error goes to `log`.
    """
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(java_home())
    # Executors run this Python, not the first one on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("deltalakedb-demo")
        .config("spark.log.level", "WARN")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
    )
    with _stderr_to(log):  # its process, and those that it starts, inherit it
        session: SparkSession = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    sys.stderr.flush()
    before = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
