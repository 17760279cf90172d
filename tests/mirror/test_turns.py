"""One publisher of a table at a time: the others wait for its result, and outlive its death."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.mirror.publish import Publisher
from deltalakedb.mirror.upkeep import Upkeep
from deltalakedb.store.url import Engine

from support.lake import add
from support.mirror_lakes import NewTable
from support.mirror_logs import check_published

HOLDING = """
import sys, time
import deltalakedb

lake = deltalakedb.connect(sys.argv[1])
with lake.store.dialect.turn(sys.argv[2], "publish") as turn:
    print("holding" if turn is not None else "refused", flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(url: str, table_id: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has the turn to publish a table, and does not publish."""
    arguments = [sys.executable, "-c", HOLDING, url, table_id]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "holding\n"
            yield process
        finally:
            process.kill()


def commit_in_thread(lake: Lake, name: str, path: str) -> threading.Thread:
    thread = threading.Thread(target=lambda: lake.table(name).commit([add(path)]))
    thread.start()
    return thread


def test_one_has_the_turn_and_others_get_it_afterwards(inline: Lake, new_table: NewTable) -> None:
    table = new_table(inline)
    inline.mirror.drain()
    dialect = inline.store.dialect
    with dialect.turn(table.table_id, "publish") as first:
        assert first is not None
        with dialect.turn(table.table_id, "publish") as second:
            assert second is None
        with dialect.turn(table.table_id, "upkeep") as other:
            assert other is not None
    with dialect.turn(table.table_id, "publish") as again:
        assert again is not None


def test_closing_writes_the_checkpoint_that_is_due_beside_another_upkeep(
    inline: Lake, new_table: NewTable
) -> None:
    """Nobody may come later to write it, and two that write it do no harm."""
    table = new_table(inline)
    inline.mirror.drain()
    with inline.store.dialect.turn(table.table_id, "upkeep") as turn:
        assert turn is not None
        for number in range(10):
            table.commit([add(f"f{number}")])
        inline.mirror.close()
    log = Path(table.location.removeprefix("file://")) / "_delta_log"
    assert (log / f"{10:020d}.checkpoint.parquet").exists()


def test_a_publisher_that_is_killed_blocks_nobody(
    engine: Engine, catalog_url: str, inline: Lake, new_table: NewTable
) -> None:
    if engine == "duckdb":
        pytest.skip("a DuckDB catalog has one process")
    table = new_table(inline)
    with holder(catalog_url, table.table_id) as process:
        waiting = commit_in_thread(inline, table.name, "waits.parquet")
        waiting.join(0.3)
        assert waiting.is_alive()
        began = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        waiting.join()
        assert time.monotonic() - began < 2
    check_published(inline, table)


def test_a_publisher_that_hangs_is_not_waited_for_without_end(
    engine: Engine, catalog_url: str, inline: Lake, new_table: NewTable
) -> None:
    if engine == "duckdb":
        pytest.skip("a DuckDB catalog has one process")
    table = new_table(inline)
    with holder(catalog_url, table.table_id):
        table.commit([add("beside.parquet")])
        check_published(inline, table)


def test_a_commit_that_another_published_is_in_the_log_and_runs_no_upkeep(
    inline: Lake, new_table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(inline)
    inline.mirror.drain()
    upkeep: list[int] = []
    run = Upkeep.run

    def counted(self: Upkeep, record: object, version: int) -> object:
        upkeep.append(version)
        return run(self, record, version)  # type: ignore[arg-type]

    monkeypatch.setattr(Upkeep, "run", counted)
    with inline.store.dialect.turn(table.table_id, "publish") as turn:
        assert turn is not None
        waiting = [commit_in_thread(inline, table.name, f"{n}.parquet") for n in range(3)]
        deadline = time.monotonic() + 30
        while inline.table(table.name).snapshot().version != 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        storages = inline.mirror._inline._publisher._storages  # type: ignore[union-attr]
        publisher = Publisher(inline.store, storages)
        published = publisher.publish(table._record, until=3, session=turn.session)
        assert published.last_version == 3
    for thread in waiting:
        thread.join()
    inline.mirror.drain()
    assert upkeep == []
    check_published(inline, table)


def test_each_of_many_processes_finds_its_commit_in_the_log(
    engine: Engine, catalog_url: str, tmp_path: Path
) -> None:
    """When a commit returns it is published, whichever process has published it."""
    if engine == "duckdb":
        pytest.skip("a DuckDB catalog has one process")
    with deltalakedb.connect(catalog_url) as lake:
        schema = '{"type":"struct","fields":[]}'
        location = tmp_path / "shared"
        table = lake.create_table("shared", location=str(location), schema=schema)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDING, catalog_url, str(location), str(number)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for process in processes:
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
    with deltalakedb.connect(catalog_url) as lake:
        table = lake.table("shared")
        assert table.snapshot().version == 4 * 5
        check_published(lake, table)


APPENDING = """
import sys
from pathlib import Path
import deltalakedb

lake = deltalakedb.connect(sys.argv[1])
table = lake.table("shared")
log = Path(sys.argv[2]) / "_delta_log"
for number in range(5):
    file = {"path": f"{sys.argv[3]}-{number}.parquet", "partitionValues": {}, "size": 1,
            "modificationTime": 1, "dataChange": True}
    version = int(table.commit([{"add": file}]))
    assert (log / f"{version:020d}.json").exists()
"""
