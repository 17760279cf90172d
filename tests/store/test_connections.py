"""Reaching a catalog, waiting for it, losing it: the same promises on every engine."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from deltalakedb.actions import Txn
from deltalakedb.errors import (
    CatalogBusyError,
    CatalogConstraintError,
    CatalogError,
    CatalogPermissionError,
    CatalogUnreachableError,
    CorruptCatalogError,
    SchemaTooNewError,
)
from deltalakedb.store import Store
from deltalakedb.store.url import Engine

from support.store import Catalogs, OpenStore, commit, new_table
from support.unprivileged import not_as_root

SHORT = 0.3


def with_options(url: str, **options: object) -> str:
    joint = "&" if "?" in url else "?"
    return url + joint + "&".join(f"{name}={value}" for name, value in options.items())


def ask(store: Store, question: str = "SELECT 1") -> list[tuple[Any, ...]]:
    with store.read() as session:
        return session.execute(question, {})


class Background:
    """Work in a thread, whose result or error is there after `finish`."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            self.result = work()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error
        self.done.set()

    def finish(self) -> object:
        assert self.done.wait(30)
        if self.error is not None:
            raise self.error
        return self.result


@contextmanager
def time_limit(*, at_least: float, below: float = 15.0) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert at_least <= time.monotonic() - start < below


# --- every engine -------------------------------------------------------------------------


def test_a_closed_catalog_says_so(store: Store) -> None:
    ask(store)
    store.close()
    store.close()
    with pytest.raises(CatalogError, match="closed"):
        ask(store)


def test_opening_creates_the_schema_once(empty_catalog_url: str, open_store: OpenStore) -> None:
    first = open_store(empty_catalog_url)
    first.migrator.ensure()
    table_id = new_table(first)
    second = open_store(empty_catalog_url)
    second.migrator.ensure()
    with second.read() as session:
        assert second.head(session, table_id) == 0


def test_a_schema_from_the_future_is_refused(store: Store) -> None:
    with store.write() as session:
        session.changed("record_migration", version=900, name="later", checksum="", applied_at=0)
    with pytest.raises(SchemaTooNewError, match="900") as caught:
        store.migrator.ensure()
    assert "Upgrade" in str(caught.value)


def test_when_all_connections_are_in_use_the_next_one_waits(
    catalog_url: str, open_store: OpenStore
) -> None:
    store = open_store(with_options(catalog_url, pool_size=1, timeout=20))
    with store.read():
        waiting = Background(lambda: ask(store))
        assert not waiting.done.wait(SHORT)
    assert waiting.finish() == [(1,)]


def test_when_all_connections_stay_in_use_the_next_one_is_told(
    catalog_url: str, open_store: OpenStore
) -> None:
    store = open_store(with_options(catalog_url, pool_size=2, timeout=SHORT))
    with (
        store.read(),
        store.read(),
        time_limit(at_least=SHORT),
        pytest.raises(CatalogBusyError, match="pool_size"),
    ):
        ask(store)
    assert ask(store) == [(1,)]


def move_head(store: Store, table_id: str) -> bool:
    with store.write() as session:
        return store.advance_head(session, table_id, expected=0)


def test_a_writer_waits_for_the_one_before_it(catalog_url: str, open_store: OpenStore) -> None:
    first, second = open_store(catalog_url), open_store(catalog_url)
    table_id = new_table(first)
    with first.write() as session:
        assert first.advance_head(session, table_id, expected=0)
        waiting = Background(lambda: move_head(second, table_id))
        assert not waiting.done.wait(SHORT)
    assert waiting.finish() is False
    assert commit(second, table_id, [Txn("a", 1)]) == 2


def test_a_writer_waits_no_longer_than_its_time_limit(
    catalog_url: str, open_store: OpenStore
) -> None:
    first = open_store(catalog_url)
    second = open_store(with_options(catalog_url, timeout=SHORT))
    table_id = new_table(first)
    with first.write() as session:
        assert first.advance_head(session, table_id, expected=0)
        with time_limit(at_least=SHORT), pytest.raises(CatalogBusyError, match="timeout"):
            move_head(second, table_id)
    assert move_head(second, table_id) is False


def test_no_time_limit_at_all_means_not_to_wait(catalog_url: str, open_store: OpenStore) -> None:
    first, second = open_store(catalog_url), open_store(with_options(catalog_url, timeout=0))
    table_id = new_table(first)
    with first.write() as session:
        assert first.advance_head(session, table_id, expected=0)
        with time_limit(at_least=0), pytest.raises(CatalogBusyError):
            move_head(second, table_id)


def test_threads_share_one_store(store: Store) -> None:
    tables = [new_table(store) for _ in range(4)]

    def work(table_id: str) -> list[int]:
        return [commit(store, table_id, [Txn("a", i)]) for i in range(5)]

    workers = [Background(lambda t=table: work(t)) for table in tables]  # type: ignore[misc]
    assert [worker.finish() for worker in workers] == [[1, 2, 3, 4, 5]] * 4


def test_an_error_is_ours_where_it_happens_already(store: Store) -> None:
    new_table(store, "t")

    def register_again() -> None:
        with store.write() as session:
            record = store.table_by_name(session, "t")
            assert record is not None
            with pytest.raises(CatalogConstraintError):
                store.register(session, record)
            raise ZeroDivisionError  # the transaction is of no use any more

    with pytest.raises(ZeroDivisionError):
        register_again()
    with pytest.raises(CatalogError), store.read() as session:
        session.execute("SELECT * FROM nothing", {})


FORKING = """
import os, sys
from deltalakedb.errors import ForkedProcessError
from deltalakedb.store import Store

def who(store):
    with store.write() as session:
        if session.engine == "postgres":
            return session.execute("SELECT pg_backend_pid()", {})[0][0]
        return session.execute("SELECT count(*) FROM dl_tables", {})[0][0]

store = Store.open(sys.argv[1])
before = who(store)
child = os.fork()
if child == 0:
    try:
        print("child", who(store), flush=True)
    except ForkedProcessError as error:
        print("child refused:", error, flush=True)
    store.close()
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert who(store) == before
print("parent", before, flush=True)
store.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_makes_its_own_connections(engine: Engine, catalog_url: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", FORKING, catalog_url], capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    child, parent = answer.stdout.splitlines()
    if engine == "duckdb":
        assert child.startswith("child refused:")
        assert "forked" in child
    elif engine == "postgres":
        assert child.split()[1] != parent.split()[1]
    else:
        assert child == "child 0"


# --- drivers ------------------------------------------------------------------------------

COMMITTING = """
import sys
import pyarrow as pa
import deltalakedb
with deltalakedb.connect(sys.argv[1], mirror="worker") as lake:
    schema = pa.schema([("id", pa.int64())])
    table = lake.create_table("a.t", location=sys.argv[2], schema=schema)
    add = {"size": 1, "modificationTime": 1, "dataChange": True, "partitionValues": {}}
    table.commit([{"add": {"path": f"{i}.parquet", **add}} for i in range(300)])
    assert table.snapshot().files().num_rows == 300
assert not any("deltalakedb" in repr(finder) for finder in sys.meta_path), sys.meta_path
import pandas as pd
print(pa.array(pd.Series([1.0, None, float("nan")])).null_count)
"""


def test_pandas_and_pyarrow_work_together_after_a_large_commit(
    catalog_url: str, tmp_path: Path
) -> None:
    arguments = [sys.executable, "-c", COMMITTING, catalog_url, str(tmp_path / "t")]
    answer = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr, answer.stdout) == (0, "", "2\n")


WITHOUT_DRIVER = """
import sys
sys.modules[sys.argv[1]] = None
from deltalakedb.errors import MissingDriverError
from deltalakedb.store import Store
try:
    Store.open(sys.argv[2])
except MissingDriverError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [
        ("psycopg", "postgresql://me:Zebra-42@h/db", "deltalakedb[postgres]"),
        ("duckdb", "duckdb:///lake.duckdb", "deltalakedb[duckdb]"),
    ],
)
def test_a_missing_driver_is_named_with_the_extra_that_has_it(
    module: str, url: str, extra: str
) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT_DRIVER, module, url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert extra in answer.stdout
    assert "Zebra" not in answer.stdout


# --- files --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_a_folder_that_is_not_there_is_named(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(CatalogUnreachableError, match="nowhere does not exist"):
        ask(Store.open(f"{engine}:///{tmp_path}/nowhere/lake.db"))


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_a_folder_is_no_catalog(engine: Engine, tmp_path: Path, open_store: OpenStore) -> None:
    (tmp_path / "lake.db").mkdir()
    with pytest.raises(CatalogUnreachableError, match=r"lake\.db"):
        ask(open_store(f"{engine}:///{tmp_path}/lake.db"))


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_a_file_of_another_kind_is_no_catalog(
    engine: Engine, tmp_path: Path, open_store: OpenStore
) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear reader, this is no database. " * 200)
    before = letter.read_bytes()
    with pytest.raises((CorruptCatalogError, CatalogUnreachableError), match=r"letter\.txt"):
        ask(open_store(f"{engine}:///{letter}"))
    assert letter.read_bytes() == before


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_a_file_that_may_not_be_written_is_a_clear_error(engine: Engine, open_folder: Path) -> None:
    url = f"{engine}:///{open_folder}/lake.db"
    with closing(Store.open(url)) as store:
        store.migrator.ensure()
    file = open_folder / "lake.db"
    file.chmod(0o444)
    open_folder.chmod(0o555)
    try:
        with (
            not_as_root(),
            pytest.raises(
                (CatalogPermissionError, CatalogUnreachableError), match=r"lake\.db"
            ) as caught,
            closing(Store.open(url)) as store,
        ):
            new_table(store)
    finally:
        open_folder.chmod(0o755)
    assert "Check" in caught.value.fix


def test_a_full_disk_loses_nothing_of_a_sqlite_catalog(
    catalogs: Catalogs, open_store: OpenStore
) -> None:
    with catalogs.fresh("sqlite") as url:
        store = open_store(with_options(url, pool_size=1))
        table_id = new_table(store)
        ask(store, "PRAGMA max_page_count = 1")  # SQLite makes it what the file has now
        with pytest.raises(CatalogError, match="full"):
            commit(store, table_id, [Txn("x" * 1_000_000, 1)])
        ask(store, "PRAGMA max_page_count = 100000")
        assert commit(store, table_id, [Txn("a", 1)]) == 1


# --- DuckDB: one process ------------------------------------------------------------------

HOLDER = """
import sys
from deltalakedb.store import Store
store = Store.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
store.close()
print("closed", flush=True)
"""


@contextmanager
def another_process(url: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has the catalog open until it is told to close it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        if process.stdin and not process.stdin.closed:
            process.stdin.close()


def test_a_duckdb_file_that_is_open_elsewhere_is_waited_for(
    catalogs: Catalogs, open_store: OpenStore
) -> None:
    with catalogs.fresh("duckdb") as url, another_process(url) as holder:
        with (
            time_limit(at_least=SHORT),
            pytest.raises(CatalogBusyError, match=r"one process only.* or use postgresql://"),
        ):
            open_store(with_options(url, timeout=SHORT))
        waiting = Background(lambda: ask(open_store(with_options(url, timeout=20))))
        assert not waiting.done.wait(SHORT)
        assert holder.stdin is not None
        holder.stdin.close()
        assert waiting.finish() == [(1,)]


def test_waiting_for_one_duckdb_file_holds_up_no_other(
    catalogs: Catalogs, open_store: OpenStore
) -> None:
    with (
        catalogs.fresh("duckdb") as held,
        catalogs.fresh("duckdb") as free,
        another_process(held) as holder,
    ):
        waiting = Background(lambda: open_store(with_options(held, timeout=20)))
        assert ask(open_store(free)) == [(1,)]
        assert not waiting.done.is_set()
        assert holder.stdin is not None
        holder.stdin.close()
        waiting.finish()


def test_stores_of_one_process_share_a_duckdb_file_until_the_last_closes(
    catalogs: Catalogs,
) -> None:
    with catalogs.fresh("duckdb") as url:
        first, second = Store.open(url), Store.open(url)
        table_id = new_table(first)
        first.close()
        assert commit(second, table_id, [Txn("a", 1)]) == 1
        second.close()
        with another_process(url):
            pass
