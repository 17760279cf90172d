"""What a child process can be asked to do: export a table, and die on the way."""

from pathlib import Path

# Imported before any fork, so that no child pays for it.
import pyarrow.parquet  # noqa: F401

import deltalakedb
import deltalakedb.mirror.verify
import deltalakedb.operations.export
import deltalakedb.store.duckdb
import deltalakedb.store.postgres
import deltalakedb.store.sqlite

from support.fork_server import Job
from support.kill_points import KillPoints
from support.lake import SCHEMA, add, remove

COMMITS = 3


def run(job: Job) -> None:
    """Make a table, and export it up to the point `at`."""
    points = KillPoints(job["at"], Path(job["labels"]))
    with deltalakedb.connect(job["url"], mirror="worker") as lake:
        table = lake.create_table(job["name"], location=job["location"], schema=SCHEMA)
        for number in range(COMMITS):
            gone = [remove(f"f{number - 1}")] if number else []
            table.commit([add(f"f{number}"), add(f"g{number}"), *gone])
        points.watch_statements(lake.store.dialect.engine, writes_only=True)
        points.watch_storage(writes_only=True)
        points.arm()
        lake.export(job["name"])
        points.disarm()
