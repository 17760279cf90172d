"""SIGKILL of an import, wherever it is: nobody sees a part of it, and it goes on where it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path

import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.errors import (
    CatalogBusyError,
    InvalidLogError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from deltalakedb.importing import import_table, parsing
from deltalakedb.importing.stages import find_stages
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine

from support.delta_log import write_commit
from support.fork_server import ForkServer
from support.lake import Json, OpenLake, add, row_counts
from support.large_log import content, write_history

COMMITS = 6
SHORT = 4
SOAK = environ.get("DELTALAKEDB_SOAK") == "1"
FEWEST = 15
"""How many points an import has at least; fewer would mean that the counting is broken."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    write_history(folder, COMMITS)
    return folder


@pytest.fixture(autouse=True)
def small_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "_BATCH_COMMITS", 1)
    monkeypatch.setattr(import_table, "_STAGE_BATCHES", 2)


@contextmanager
def opened(url: str) -> Iterator[Lake]:
    # A DuckDB file belongs to one process: it is open here only while no child has it.
    with Lake.connect(url, mirror="worker", clock=ManualClock()) as lake:
        yield lake


def stages(lake: Lake, log: Path) -> int:
    with lake.store.read() as session:
        return len(find_stages(session, f"file://{log}"))


def is_hidden(lake: Lake, log: Path) -> bool:
    """Whether nothing that lists, opens or publishes tables knows of it."""
    with pytest.raises(TableNotFoundError):
        lake.table("t")
    with pytest.raises(TableNotFoundError):
        lake.table(str(log))
    with lake.store.read() as session:
        heads = session.execute(lake.store.dialect.sql("SELECT * FROM dl_table_heads"), {})
    return lake.tables() == [] and list(heads) == [] and lake.mirror.status() == []


@pytest.mark.timeout(1800)
def test_death_at_every_point_of_an_import(
    crew: ForkServer, catalog_url: str, tmp_path: Path, engine: Engine
) -> None:
    """At every sixth of them on two engines, unless there is time: they take the same steps."""
    stride = 1 if SOAK or engine == "sqlite" else 6
    log = tmp_path / "short"
    write_history(log, SHORT)
    labels = tmp_path / "labels"
    with opened(catalog_url) as lake:
        expected = content(lake, lake.import_table(str(log), name="t", stage_from=1000))
        empty = drop(lake)
    seen = set()
    at = 0
    while True:
        at += stride
        job = {"run": "import", "url": catalog_url, "log": str(log), "at": at}
        status = crew.run({**job, "labels": str(labels)})
        with opened(catalog_url) as lake:
            if status == 0:
                assert content(lake, lake.table("t")) == expected
                break
            assert status == -9, crew.log.read_text()
            if lake.tables():
                # It died after the last transaction, before its pages were made.
                assert stages(lake, log) == 0
                table = lake.table("t")
            else:
                assert is_hidden(lake, log)
                seen.add(stages(lake, log))
                table = lake.import_table(str(log), name="t", stage_from=1000)
                found = content(lake, table)
                assert found == expected, labels.read_text().splitlines()[-1]
            assert len(table.history(100)) == SHORT
            with lake.store.read() as session:
                assert lake.store.check_active_files(session, table.table_id) == []
            assert drop(lake) == empty
    assert at > FEWEST
    # It has died before, between and after all of its stages.
    assert seen == set(range(SHORT // 2 + 1)) or stride > 1


def drop(lake: Lake) -> dict[str, int]:
    lake.drop_table("t")
    return row_counts(lake)


def test_what_is_not_wanted_any_more_is_discarded(open_lake: OpenLake, log: Path) -> None:
    lake = open_lake()
    before = row_counts(lake)
    interrupt(lake, log)
    assert stages(lake, log) == 2
    assert is_hidden(lake, log)
    assert lake.discard_import(str(log))
    assert row_counts(lake) == before
    assert not lake.discard_import(str(log))


class Stopped(BaseException):
    """Somebody has pulled the plug."""


def interrupt(lake: Lake, log: Path) -> None:
    """Import two stages."""

    def stop(done: int, _: int) -> None:
        if done >= 4:
            raise Stopped

    with pytest.raises(Stopped):
        lake.import_table(str(log), name="t", stage_from=1, progress=stop)


def test_a_log_that_changed_meanwhile_is_begun_again(open_lake: OpenLake, log: Path) -> None:
    lake = open_lake()
    interrupt(lake, log)
    write_commit(log, 1, [add("another", size=5)], at_ms=1_600_000_009_000)
    table = lake.import_table(str(log), name="t")
    assert "another" in table.snapshot().files()["path"].to_pylist()
    assert stages(lake, log) == 0


def test_a_log_that_has_grown_is_gone_on_with(open_lake: OpenLake, log: Path) -> None:
    lake = open_lake()
    interrupt(lake, log)
    read: list[int] = []
    write_commit(log, COMMITS, [add("more")])
    table = lake.import_table(str(log), name="other", progress=lambda done, _: read.append(done))
    assert (table.name, table.version) == ("other", COMMITS)
    assert read[0] == 4
    assert stages(lake, log) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"add": {"path": "x"}},
        {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}},
    ],
)
def test_a_log_that_is_refused_leaves_nothing(open_lake: OpenLake, log: Path, wrong: Json) -> None:
    lake = open_lake()
    before = row_counts(lake)
    write_commit(log, COMMITS - 1, [wrong])
    with pytest.raises((InvalidLogError, UnsupportedFeatureError), match=r"line 1|99"):
        lake.import_table(str(log), name="t", stage_from=1)
    assert row_counts(lake) == before


def test_of_two_imports_at_once_one_gives_up(open_lake: OpenLake, log: Path) -> None:
    lake = open_lake()
    begun = False

    def overtake(done: int, _: int) -> None:
        nonlocal begun
        if not begun and done == 2:
            begun = True
            with pytest.raises(Stopped):
                lake.import_table(str(log), name="t", stage_from=1, progress=stop)

    def stop(done: int, _: int) -> None:
        if done == 4:
            raise Stopped

    with pytest.raises(CatalogBusyError, match="Another import"):
        lake.import_table(str(log), name="t", stage_from=1, progress=overtake)
    assert lake.import_table(str(log), name="t").version == COMMITS - 1


def test_a_finished_import_wins_over_one_that_is_late(open_lake: OpenLake, log: Path) -> None:
    lake = open_lake()
    begun = False

    def overtake(done: int, _: int) -> None:
        nonlocal begun
        if not begun and done == 2:
            begun = True
            lake.import_table(str(log), name="first", stage_from=1)

    with pytest.raises(TableExistsError, match="registered already"):
        lake.import_table(str(log), name="second", stage_from=1, progress=overtake)
    assert [table.name for table in lake.tables()] == ["first"]
    assert stages(lake, log) == 0
