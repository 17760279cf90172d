"""A bare loop: the statements of a commit of ours, straight through the driver.

The rows are prepared beforehand; what is measured is what the database and its driver cost alone.
Small inserts share a round trip on Postgres; many rows go by COPY, by executemany on SQLite, as an
Arrow table on DuckDB.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import sqlite3
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalakedb.actions import AddFile, CommitInfo, serialise_commit
from deltalakedb.store import Counts, VersionRecord
from deltalakedb.store.queries import load_queries
from deltalakedb.store.relations import (
    ADD_FILES,
    MIRROR_STATUS,
    UNPLANNED_FILES,
    VERSIONS,
    Relation,
)
from deltalakedb.store.rows import active_rows, to_rows
from deltalakedb.store.url import parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STATS = '{"numRecords":1000,"minValues":{"id":1},"maxValues":{"id":1000},"nullCount":{"id":0}}'

Rows = list[tuple[Relation, list[tuple[Any, ...]]]]


def new_add() -> AddFile:
    """A file that no commit has seen."""
    path = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    return AddFile(path, {}, 1_000_000, 1_700_000_000_000, data_change=True, stats=STATS)


def delta_rs_append(path: str) -> Callable[[], None]:
    """Commits of one existing file: delta-rs adds it to its table without writing data."""
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    table = DeltaTable(path)
    schema = table.schema()

    def append() -> None:
        add = new_add()
        action = AddAction(
            path=add.path,
            size=add.size,
            partition_values={},
            modification_time=add.modification_time,
            data_change=True,
            stats=add.stats or "",
        )
        table.create_write_transaction([action], "append", schema)
        # Its handle stays at the version it was opened at; without this each commit is slower.
        table.update_incremental()

    return append


def prepare(table_id: str, version: int, adds: Sequence[AddFile]) -> Rows:
    """The rows that a commit of `adds` writes."""
    now = time.time_ns() // 1_000_000
    info = CommitInfo(
        {
            "engineInfo": "deltalakedb/0.1.0",
            "inCommitTimestamp": now,
            "isBlindAppend": True,
            "isolationLevel": "Serializable",
            "operation": "WRITE",
            "operationParameters": {},
            "readVersion": version - 1,
            "timestamp": now,
            "txnId": str(uuid.uuid4()),
            "userName": "me",
        }
    )
    data = serialise_commit([info, *adds])
    record = VersionRecord(
        table_id,
        version,
        now,
        now,
        "me",
        commit_info=info,
        commit_uuid=str(uuid.uuid4()),
        counts=Counts(len(adds) + 1, len(adds), 0, 1, 0, version, 1),
    )
    add_rows = to_rows(table_id, version, adds)[ADD_FILES]
    digest = hashlib.sha256(data).hexdigest()
    queue = (table_id, version, "PENDING", 0, None, digest, data, len(data), 0, now, now, None)
    return [
        (ADD_FILES, add_rows),
        (VERSIONS, [record.to_row()]),
        (MIRROR_STATUS, [queue]),
        (UNPLANNED_FILES, active_rows(add_rows)),
    ]


def _at(rows: Rows, version: int) -> Rows:
    """The same rows at another version."""
    return [
        (
            relation,
            [
                tuple(
                    version if column in {"version", "added_version"} else value
                    for column, value in zip(relation.columns, row, strict=True)
                )
                for row in relation_rows
            ],
        )
        for relation, relation_rows in rows
    ]


class BareLoop:
    """One connection of the driver, and the table it writes to."""

    def __init__(self, url: str, table_id: str) -> None:
        parsed = parse_url(url)
        self.url = url
        self.engine = parsed.engine
        self.table_id = table_id
        self.version = 0
        self.queries = load_queries(self.engine)
        self.connection: Any
        if self.engine == "sqlite":
            self.connection = sqlite3.connect(parsed.target, isolation_level=None)
            self.connection.execute("PRAGMA synchronous = FULL")
        elif self.engine == "duckdb":
            import duckdb

            self.connection = duckdb.connect(parsed.target)
        else:
            import psycopg

            self.connection = psycopg.connect(parsed.target, autocommit=True)

    def next_version(self) -> int:
        """Count on."""
        self.version += 1
        return self.version

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def send(self, rows: Rows) -> None:
        """One small commit in one transaction."""
        head, live = self._params(rows)
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE" if self.engine == "sqlite" else "BEGIN")
        connection.execute(self.queries["advance_head"], head)
        connection.execute(self.queries["live_among"], live).fetchall()
        if self.engine == "postgres":
            with connection.pipeline():
                self._insert(rows)
        else:
            self._insert(rows)
        connection.execute("COMMIT")

    def send_in_turn(self, adds: Sequence[AddFile]) -> None:
        """One small commit on top of whatever others have committed, first come first served.

        Those that wait are woken in their order: on Postgres by an advisory lock, on SQLite by a
        lock on a file, as SQLite itself has no queue.
        """
        rows = prepare(self.table_id, 0, adds)
        head, live = self._params(rows)
        connection, queries = self.connection, self.queries
        if self.engine == "postgres":
            with connection.pipeline():
                connection.execute("BEGIN")
                connection.execute(queries["queue_for_head"], {"lock": 1, **head})
                taken = connection.execute(queries["take_sound_head"], head)
                files = connection.execute(queries["live_among"], live)
            files.fetchall()
            with connection.pipeline():
                self._insert(_at(rows, taken.fetchone()[0]))
                connection.execute("COMMIT")
            return
        with Path(f"{parse_url(self.url).target}-bare").open("a") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            connection.execute("BEGIN IMMEDIATE")
            taken = connection.execute(queries["take_sound_head"], head).fetchall()
            connection.execute(queries["live_among"], live).fetchall()
            self._insert(_at(rows, taken[0][0]))
            connection.execute("COMMIT")

    def _params(self, rows: Rows) -> tuple[dict[str, Any], dict[str, Any]]:
        """The parameters of advance_head and live_among."""
        version = rows[1][1][0][1]
        paths = [row[2] for row in rows[0][1]]
        return (
            {"table_id": self.table_id, "expected": version - 1, "version": version},
            {
                "table_id": self.table_id,
                "paths": paths if self.engine == "postgres" else json.dumps(paths),
            },
        )

    def send_pipelined(self, rows: Rows) -> None:
        """As `send`, on Postgres, in two round trips."""
        head, live = self._params(rows)
        connection = self.connection
        with connection.pipeline():
            connection.execute("BEGIN")
            connection.execute(self.queries["advance_head"], head)
            files = connection.execute(self.queries["live_among"], live)
        files.fetchall()
        with connection.pipeline():
            self._insert(rows)
            connection.execute("COMMIT")

    def _insert(self, rows: Rows) -> None:
        mark = "%s" if self.engine == "postgres" else "?"
        for relation, relation_rows in rows:
            marks = ", ".join([mark] * len(relation.columns))
            sql = f"INSERT INTO {relation.name} ({', '.join(relation.columns)}) VALUES ({marks})"
            for row in relation_rows:
                self.connection.execute(sql, row)

    def prepare_bulk(self, rows: Rows) -> list[tuple[Relation, Any]]:
        """The rows as the bulk load of the engine takes them."""
        if self.engine != "duckdb":
            return rows
        from deltalakedb.store.duckdb import _as_arrow

        return [(relation, _as_arrow(relation, found)) for relation, found in rows]

    def send_bulk(self, rows: list[tuple[Relation, Any]]) -> None:
        """A bulk load of the same rows in one transaction."""
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE" if self.engine == "sqlite" else "BEGIN")
        for relation, found in rows:
            columns = ", ".join(relation.columns)
            if self.engine == "postgres":
                with (
                    connection.cursor() as cursor,
                    cursor.copy(f"COPY {relation.name} ({columns}) FROM STDIN") as copy,
                ):
                    for row in found:
                        copy.write_row(row)
            elif self.engine == "sqlite":
                marks = ", ".join("?" * len(relation.columns))
                connection.executemany(
                    f"INSERT INTO {relation.name} ({columns}) VALUES ({marks})", found
                )
            else:
                connection.register("bulk", found)
                connection.execute(
                    f"INSERT INTO {relation.name} ({columns}) SELECT {columns} FROM bulk"
                )
                connection.unregister("bulk")
        connection.execute("COMMIT")
