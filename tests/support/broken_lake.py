"""A small lake with everything that can be wrong in it, and what its whole state is.

It is made once for all wrong usages: none of them may change anything, so they can share it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg
import pyarrow as pa
from psycopg import sql

import deltalakedb
from deltalakedb.store.roles import roles_down_script, roles_script

from support.postgres_server import PostgresServer

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string())])
ROWS = pa.table({"id": [1, 2], "day": ["mon", "tue"]}, schema=SCHEMA)
# It keeps a DuckDB file open until its input ends.
_HOLDER = """
import sys, deltalakedb
with deltalakedb.connect(sys.argv[1]) as lake:
    print("open", flush=True)
    sys.stdin.read()
"""
_VOLATILE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"20[2-9]\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d+(Z|\+00:00)?"), "TIME"),
    (re.compile(r"release knows up to \d+"), "release knows up to 7"),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "http://127.0.0.1:9000"),
    (re.compile(r"\bin \d+(\.\d+)?(m|µ)?s\b"), "in 1s"),
)
_LEASE = {("dl_mirror_tables", "generation"), ("dl_mirror_tables", "updated_at")}
_numbers = count(1)


@dataclass
class BrokenLake:
    """Where everything is, and what must never be printed."""

    root: Path
    database: str
    postgres: str = field(repr=False)
    port: int
    taken: int
    closed: int
    unmounted: str
    """Why there are no small disks; nothing where there are."""
    databases: tuple[str, ...] = ("lake.db", "newer.db", "locked.db")
    _last: dict[str, str] = field(repr=False, default_factory=dict)

    @property
    def catalog(self) -> str:
        return f"sqlite:///{self.root}/lake.db"

    def fill_in(self, text: str) -> str:
        """The text of a case with this lake's ports and names."""
        return (
            text.replace("PGPORT", str(self.port))
            .replace("TAKEN", str(self.taken))
            .replace("CLOSED", str(self.closed))
            .replace("PGDB", self.database)
        )

    def normalise(self, text: str) -> str:
        """What was printed, as it would be anywhere."""
        text = text.replace(str(self.root), "/w")
        for number, name in (
            (self.port, "5432"),
            (self.taken, "8765"),
            (self.closed, "5433"),
        ):
            text = text.replace(str(number), name)
        text = text.replace(self.database, "lake").replace(sys.prefix, "/venv")
        for pattern, name in _VOLATILE:
            text = pattern.sub(name, text)
        return text

    def state(self, *, fresh: bool = False) -> dict[str, str]:
        """Digests of every row of the catalogs and of every file and folder below the root.

        That of the last call, unless `fresh`: nobody else works here. The mirror's lease is left
        out: whoever looks whether it can publish takes it, and gives it back.
        """
        if fresh or not self._last:
            self._last = {**self._files(), **self._sqlite_rows(), **self._postgres_rows()}
        return self._last

    def _files(self) -> dict[str, str]:
        found = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if path.is_dir():
                found[name] = "folder"
            elif name.endswith("-shm") or (name.endswith("-wal") and not path.stat().st_size):
                continue  # SQLite's, and there is nothing in them
            elif name.removesuffix("-wal") not in self.databases:
                found[name] = _digest(path.read_bytes())
        return found

    def _sqlite_rows(self) -> dict[str, str]:
        found = {}
        for name in self.databases:
            with closing(sqlite3.connect(f"file:{self.root / name}?mode=ro", uri=True)) as file:
                tables = file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                for (table,) in tables.fetchall():
                    columns = file.execute(f"SELECT name FROM pragma_table_info('{table}')")
                    names = ", ".join(c for (c,) in columns if (table, c) not in _LEASE)
                    rows = sorted(map(repr, file.execute(f"SELECT {names} FROM {table}")))
                    found[f"rows of {name}: {table}"] = _digest("\n".join(rows).encode())
        return found

    def _postgres_rows(self) -> dict[str, str]:
        with psycopg.connect(self.postgres) as connection:
            names = connection.execute(
                "SELECT schemaname, tablename FROM pg_tables "
                "WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2"
            ).fetchall()
            one = sql.SQL(
                "SELECT {name}, string_agg(r, ' ' ORDER BY r) FROM (SELECT "
                "(to_jsonb(t) - 'generation' - 'updated_at')::text r FROM {table} t) AS rows"
            )
            parts = [one.format(name=".".join(n), table=sql.Identifier(*n)) for n in names]
            found = connection.execute(sql.SQL(" UNION ALL ").join(parts)).fetchall()
        return {f"rows of {name}": _digest(str(rows).encode()) for name, rows in found}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def new_broken_lake(root: Path, server: PostgresServer) -> Iterator[BrokenLake]:
    """Make it; its mounts and processes are gone afterwards."""
    database = server.create_database(f"wrong{next(_numbers)}_{secrets.token_hex(3)}")
    with ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            closed = probe.getsockname()[1]
        broken_lake = BrokenLake(
            root=root,
            database=database,
            postgres=server.url(database),
            port=server.port,
            taken=taken.getsockname()[1],
            closed=closed,
            unmounted=_mount(stack, root),
        )
        _tables(broken_lake)
        _logs(broken_lake)
        _catalogs(stack, broken_lake)
        _roles(stack, broken_lake)
        if not broken_lake.unmounted:
            (root / "full" / "rest").write_bytes(b"")
            _fill(root / "full" / "rest")
            _call("mount", "-o", "remount,ro", str(root / "readonly"))
        yield broken_lake


def _mount(stack: ExitStack, root: Path) -> str:
    """Two small disks, one that gets full, one that gets read-only; or why there are none."""
    folders = [root / "full", root / "readonly"]
    for folder in folders:
        folder.mkdir()
    if os.geteuid() != 0:
        return "only root can mount a small disk"
    if not shutil.which("mount"):
        return "there is no mount command"
    for folder in folders:
        said = _call("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder))
        if said is not None:
            return f"no small disk can be mounted here: {said}"
        stack.callback(_call, "umount", str(folder))
    return ""


def _call(*command: str) -> str | None:
    """What a command says that fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else None


def _fill(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            return


def _tables(broken_lake: BrokenLake) -> None:
    """Tables that are well, and some whose files are not."""
    root = broken_lake.root
    with deltalakedb.connect(broken_lake.catalog, committer="ann") as lake:
        for name in ("orders", "lost", "cut", "drifted"):
            table = lake.create_table(
                f"sales.{name}",
                location=str(root / name),
                schema=SCHEMA,
                partition_by=["day"],
                properties={"delta.constraints.positive": "id > 0"} if name == "orders" else {},
            )
            table.append(ROWS)
            table.append(ROWS)
        lake.create_table(
            "sales.log",
            location=str(root / "log"),
            schema=SCHEMA,
            properties={"delta.appendOnly": "true"},
        ).append(ROWS)
        (root / "drifted" / "_delta_log" / f"{3:020d}.json").write_text("garbage\n")
        lake.table("sales.drifted").append(ROWS)
        for disk in ("full", "readonly"):
            table = lake.create_table(
                f"sales.{disk}", location=str(root / disk / "t"), schema=SCHEMA
            )
            table.append(ROWS)
            table.append(ROWS)
    for disk in ("full", "readonly"):
        shutil.copyfile(root / "lake.db", root / disk / "small.db")
    for path in (root / "lost").glob("day=mon/*.parquet"):
        path.unlink()
    for path in (root / "cut").glob("day=mon/*.parquet"):
        path.write_bytes(path.read_bytes()[:100])


def _logs(broken_lake: BrokenLake) -> None:
    """Delta tables that nobody has imported, sound and damaged."""
    root = broken_lake.root
    first, second = (f"_delta_log/{number:020d}.json" for number in (0, 1))
    for name in ("foreign", "corrupt", "gap", "future"):
        shutil.copytree(root / "orders", root / name)
    shutil.copytree(root / "orders", root / "parquet", ignore=lambda *_: ["_delta_log"])
    (root / "corrupt" / second).write_text('{"add": {"path": "a.parquet", \n')
    (root / "gap" / second).unlink()
    text = (root / "future" / first).read_text()
    (root / "future" / first).write_text(
        re.sub(r'"minReaderVersion":\d+', '"minReaderVersion":9', text)
    )
    (root / "notes").mkdir()
    (root / "notes" / "readme.txt").write_text("nothing to see here")


def _catalogs(stack: ExitStack, broken_lake: BrokenLake) -> None:
    """Catalogs that cannot be used: no database, a newer one, a locked one, one held by another."""
    root = broken_lake.root
    (root / "text.db").write_text("This is no database, however long one looks at it. " * 20)
    for name in ("newer", "locked"):
        deltalakedb.migrate(f"sqlite:///{root}/{name}.db")
    with closing(sqlite3.connect(root / "newer.db")) as file:
        file.execute("INSERT INTO dl_schema_migrations VALUES (900, 'later', '', 0)")
        file.commit()
    locked = stack.enter_context(closing(sqlite3.connect(root / "locked.db")))
    locked.execute("BEGIN IMMEDIATE")
    holder = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", _HOLDER, f"duckdb:///{root}/held.duckdb"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    stack.callback(holder.stdin.close)
    assert holder.stdout.readline() == "open\n"


def _roles(stack: ExitStack, broken_lake: BrokenLake) -> None:
    """On Postgres: a role that may read, and one that may nothing; roles outlive databases."""
    people = [
        sql.Identifier(f"{broken_lake.database}_{suffix}") for suffix in ("reader", "stranger")
    ]
    with deltalakedb.connect(broken_lake.postgres) as lake:
        lake.create_table("sales.orders", location=str(broken_lake.root / "pg"), schema=SCHEMA)
    with psycopg.connect(broken_lake.postgres, autocommit=True) as connection:
        connection.execute(roles_script().encode())
        for role in people:
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'right-password'").format(role)
            )
        connection.execute(sql.SQL("GRANT deltalakedb_reader TO {}").format(people[0]))
    stack.callback(_forget_roles, broken_lake.postgres, people)


def _forget_roles(url: str, people: list[sql.Identifier]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(roles_down_script().encode())
        for role in people:
            connection.execute(sql.SQL("DROP ROLE {}").format(role))
