"""Files of a table in a real database, and which of them a condition keeps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.conditions.predicate import Predicate
from deltalakedb.conditions.pruning import may_match
from deltalakedb.store.queries import rewrite
from deltalakedb.store.url import Engine

from support.postgres_server import PostgresServer

File = tuple[str | None, Mapping[str, str | None]]
"""The statistics of a file and its partition values."""

Run = Callable[[str, Mapping[str, object]], Sequence[tuple[Any, ...]]]


class PruningDatabase:
    """One relation with the columns that planning reads, as the store writes them."""

    def __init__(
        self,
        engine: Engine,
        run: Run,
        encode: Callable[[str], str],
        encode_map: Callable[[str], str],
    ) -> None:
        self.engine: Engine = engine
        self._run = run
        self._encode = encode
        self._encode_map = encode_map

    def load(self, loaded: Sequence[File]) -> None:
        """Replace all files by these, numbered from 0."""
        self._run("DELETE FROM files", {})
        sql = rewrite("INSERT INTO files VALUES (:n, :stats, :partition_values)", self.engine)
        for n, (stats, partition_values) in enumerate(loaded):
            row = {
                "n": n,
                "stats": None if stats is None else self._encode(stats),
                "partition_values": self._encode_map(dumps(partition_values)),
            }
            self._run(sql, row)

    def kept(self, predicate: Predicate) -> set[int]:
        """The numbers of the files that the condition keeps."""
        condition = may_match(predicate, self.engine)
        params = {
            name: self._encode(value) if isinstance(value, str) else value
            for name, value in condition.params.items()
        }
        sql = rewrite(f"SELECT n FROM files WHERE {condition.text}", self.engine)
        return {row[0] for row in self._run(sql, params)}

    def keeps(self, file: File, predicate: Predicate) -> bool:
        """Whether the condition keeps this one file."""
        self.load([file])
        return self.kept(predicate) == {0}


@contextmanager
def open_pruning_database(
    engine: Engine, postgres: Callable[[], PostgresServer]
) -> Iterator[PruningDatabase]:
    """An empty relation of files; Postgres has the functions of planning."""
    if engine == "postgres":
        import psycopg

        from deltalakedb.store.postgres import _encode, _encode_map

        server = postgres()
        with psycopg.connect(server.url(server.create_database()), autocommit=True) as connection:
            folder = files("deltalakedb.store") / "sql/postgres/migrations"
            migration = (folder / "0002_planned_columns.up.sql").read_text("utf-8")
            connection.execute(migration[migration.index("-- What planning cannot say") :])
            connection.execute("CREATE TABLE files (n INT, stats TEXT, partition_values JSON)")

            def run_postgres(sql: str, params: Mapping[str, object]) -> list[tuple[Any, ...]]:
                cursor = connection.execute(sql, params)
                return cursor.fetchall() if cursor.description else []

            yield PruningDatabase(engine, run_postgres, _encode, _encode_map)
        return
    if engine == "sqlite":
        import sqlite3

        lite = sqlite3.connect(":memory:")
        lite.execute("CREATE TABLE files (n INTEGER, stats TEXT, partition_values TEXT) STRICT")
        yield PruningDatabase(
            engine, lambda sql, params: lite.execute(sql, params).fetchall(), str, str
        )
        lite.close()
        return
    import duckdb

    duck = duckdb.connect()
    duck.execute("CREATE TABLE files (n INTEGER, stats VARCHAR, partition_values JSON)")
    yield PruningDatabase(
        engine, lambda sql, params: duck.execute(sql, dict(params)).fetchall(), str, str
    )
    duck.close()
