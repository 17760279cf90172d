"""A catalog file that did not exist is there as a whole afterwards, or not at all."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

import deltalakedb
from deltalakedb.clock import SystemClock
from deltalakedb.errors import CatalogError, CatalogNotFoundError, DeltaLakeDbError
from deltalakedb.store import Store
from deltalakedb.store import duckdb as duckdb_store
from deltalakedb.store.dialect import Dialect
from deltalakedb.store.migrate import Migration, Migrator, load_migrations
from deltalakedb.store.sqlite import SqliteDialect
from deltalakedb.store.url import parse_url

# A disk that takes no more than so many bytes of a file, for one process.
_SMALL = """
import resource, signal, sys, deltalakedb
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    getattr(deltalakedb, sys.argv[3])(sys.argv[1])
except deltalakedb.errors.DeltaLakeDbError as error:
    print(error)
"""


@pytest.mark.parametrize("call", ["migrate", "connect"])
@pytest.mark.parametrize(
    ("engine", "room"),
    [
        *(("sqlite", room) for room in (0, 4_096, 60_000, 150_000)),
        *(("duckdb", room) for room in (0, 4_096, 12_288)),
    ],
)
def test_a_full_disk_leaves_no_file(tmp_path: Path, engine: str, room: int, call: str) -> None:
    url = f"{engine}:///{tmp_path}/lake.db"
    told = subprocess.run(
        [sys.executable, "-c", _SMALL, url, str(room), call],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{engine}:///{tmp_path}/lake.db" in told.stdout
    assert list(tmp_path.iterdir()) == []
    deltalakedb.migrate(url)
    with deltalakedb.connect(url) as lake:
        assert lake.tables() == []


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_a_file_that_was_there_stays(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{engine}:///{tmp_path}/lake.db"
    with closing(Store.open(url)) as store:
        assert store.migrator.applied() == []
    before = sorted(path.name for path in tmp_path.iterdir())
    assert before == ["lake.db"]
    monkeypatch.setattr(
        "deltalakedb.store.migrate.load_migrations", lambda _: [Migration(1, "x", "no SQL;", "")]
    )
    for call in (deltalakedb.migrate, deltalakedb.connect):
        with pytest.raises(DeltaLakeDbError):
            call(url)
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_catalog_that_has_something_in_it_is_never_discarded(tmp_path: Path) -> None:
    store = Store.open(f"duckdb:///{tmp_path}/lake.duckdb")
    store.migrator.up(3)
    store.abandon()
    assert (tmp_path / "lake.duckdb").exists()
    two = [Store.open(f"duckdb:///{tmp_path}/new.duckdb") for _ in range(2)]
    two[0].abandon()
    assert (tmp_path / "new.duckdb").exists(), "somebody else in this process uses it"
    two[1].close()


def test_a_catalog_that_is_to_be_there_is_not_made(empty_catalog_url: str, engine: str) -> None:
    catalog_url = empty_catalog_url
    with pytest.raises(CatalogNotFoundError, match="There is no catalog at") as refused:
        deltalakedb.connect(catalog_url, create=False)
    assert "deltalakedb migrate" in refused.value.fix
    if engine != "postgres":
        assert not Path(parse_url(catalog_url).target).exists()
    deltalakedb.connect(catalog_url).close()
    with deltalakedb.connect(catalog_url, create=False) as lake:
        assert lake.tables() == []


def test_of_many_who_make_it_all_find_the_same(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/lake.db"
    start, applied = threading.Barrier(6), []

    def make() -> None:
        start.wait()
        applied.append(deltalakedb.migrate(url))

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, applied))[:-1] == [0] * 5, "one of them has made it"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert deltalakedb.migrate(url) == []


def test_whoever_is_faster_wins(tmp_path: Path) -> None:
    url = parse_url(f"sqlite:///{tmp_path}/lake.db")
    with closing(SqliteDialect(url)) as dialect:

        def overtaken(other: Dialect) -> str:
            Migrator(other, SystemClock()).up(1)
            with closing(Store.open(f"sqlite:///{tmp_path}/lake.db")) as faster:
                faster.migrator.ensure()
            return "made"

        assert dialect.make_new(overtaken) is None
        assert len(Migrator(dialect, SystemClock()).applied()) == len(load_migrations("sqlite"))
    assert [path.name for path in tmp_path.iterdir()] == ["lake.db"]


def test_without_hard_links_it_is_made_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("deltalakedb.store.sqlite.os.link", no_links)
    url = f"sqlite:///{tmp_path}/lake.db"
    assert deltalakedb.migrate(url)[0] == "0001_ledger"
    assert [path.name for path in tmp_path.iterdir()] == ["lake.db"]


def test_a_new_catalog_is_whole_without_its_wal(tmp_path: Path) -> None:
    url = parse_url(f"sqlite:///{tmp_path}/lake.db")
    with closing(SqliteDialect(url)) as dialect:
        Migrator(dialect, SystemClock()).up()
        assert [path.name for path in tmp_path.iterdir()] == ["lake.db"]
        shutil.copy(tmp_path / "lake.db", tmp_path / "copy.db")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        (mode,) = copy.execute("PRAGMA journal_mode").fetchone()
        (count,) = copy.execute("SELECT count(*) FROM dl_schema_migrations").fetchone()
    assert (mode, count) == ("wal", len(load_migrations("sqlite")))


def test_duckdb_tells_a_full_disk_from_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = parse_url(f"duckdb:///{tmp_path}/lake.duckdb")
    failure = duckdb.TransactionException("Failed to commit")
    assert "met another one" in str(duckdb_store._translate(failure, url))
    monkeypatch.setattr(duckdb_store, "_is_full", lambda _: True)
    told = duckdb_store._translate(failure, url)
    assert type(told) is CatalogError
    assert "the disk is full" in str(told)
