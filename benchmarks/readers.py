"""Who opens a table in the read benchmarks: we on three engines, delta-rs and DuckLake."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import deltalakedb
from benchmarks.ducklake import DuckLake
from benchmarks.harness import Report
from benchmarks.lakes import (
    ENGINES,
    Shape,
    catalog_url,
    import_log,
    settle,
    with_checkpoint,
    write_log,
)
from deltalakedb.snapshot import Snapshot

from support.postgres_server import PostgresServer

NAME = "bench"


class OurReader:
    """A catalog with one table. The connection is kept, the handle is new for every open."""

    def __init__(self, engine: str, url: str) -> None:
        self.engine = engine
        self.url = url
        self.lake = deltalakedb.connect(url)

    @classmethod
    def filled(
        cls, engine: str, server: PostgresServer, folder: Path, log: Path, shape: Shape
    ) -> Self:
        """A new catalog that has imported `log`."""
        reader = cls(engine, catalog_url(engine, server, folder))
        import_log(reader.lake, log, shape, name=NAME)
        settle(reader.url)
        return reader

    def open(self, version: int | None = None) -> Snapshot:
        """Find the table by its name and open it."""
        return self.lake.table(NAME).snapshot(version=version)

    def list_files(self, version: int | None = None) -> Any:
        """Open and list to Arrow."""
        return self.open(version).files()

    def plan(self, where: str, columns: Sequence[str] | None = None) -> Any:
        """Open and list the files that a condition needs."""
        return self.open().files(where=where, columns=columns)

    def close(self) -> None:
        """Release the catalog."""
        self.lake.close()


def delta_rs_list(table: Path, version: int | None = None, *, statistics: bool = True) -> Any:
    """Open and list to Arrow with delta-rs."""
    import pyarrow as pa
    from deltalake import DeltaTable

    opened = DeltaTable(str(table), version=version, skip_stats=not statistics)
    return pa.table(opened.get_add_actions())


def delta_rs_uris(table: Path, where: str) -> Any:
    """Open and prune with delta-rs's own predicate; it gives paths only."""
    import pyarrow as pa
    from deltalake import DeltaTable

    return pa.table({"path": DeltaTable(str(table)).file_uris(file_pruning_predicate=where)})


def delta_rs_filter(table: Path, day: str, low: int, high: int) -> Any:
    """Open and list with delta-rs, and filter the Arrow table."""
    from datetime import date

    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    files = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True))
    return files.filter(
        (pc.field("partition.day") == date.fromisoformat(day))
        & (pc.field("min.id") <= high)
        & (pc.field("max.id") >= low)
    )


def delta_rs_bounds(table: Path, column: str, low: Any, high: Any) -> Any:
    """Open and list with delta-rs, and filter the Arrow table by the bounds of a column."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    files = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True))
    condition = pc.scalar(value=True)
    if low is not None:
        condition &= pc.field(f"max.{column}") >= low
    if high is not None:
        condition &= pc.field(f"min.{column}") <= high
    return files.filter(condition)


class Readers:
    """One table in every catalog: `ours` by engine, `lists` by name of the contestant.

    `log` has no checkpoint; `checked` is the same log with a fresh one. What it wrote is gone when
    the block ends. A peer that is not installed is left out, with a note.
    """

    def __init__(
        self,
        shape: Shape,
        server: PostgresServer,
        report: Report,
        *,
        engines: Sequence[str] = ENGINES,
        peers: bool = True,
    ) -> None:
        self.shape = shape
        self.ours: dict[str, OurReader] = {}
        self.ducklakes: dict[str, DuckLake] = {}
        self._stack = ExitStack()
        try:
            self._folder = Path(tempfile.mkdtemp())
            self._stack.callback(shutil.rmtree, self._folder)
            self.log = self.checked = write_log(shape, self._folder)
            for engine in engines:
                reader = OurReader.filled(engine, server, self._folder, self.log, shape)
                self._stack.callback(reader.close)
                self.ours[engine] = reader
            if peers:
                self.checked = with_checkpoint(self.log)
                self._add_ducklakes(server, report)
        except BaseException:
            self._stack.close()
            raise

    def _add_ducklakes(self, server: PostgresServer, report: Report) -> None:
        targets = {
            "DuckLake": str(self._folder / f"{uuid.uuid4().hex}.ducklake"),
            "DuckLake on postgres": f"postgres:{server.url(server.create_database())}",
        }
        for name, target in targets.items():
            try:
                lake = DuckLake(target, self._folder, self.shape)
            except ImportError as missing:
                note = f"{name} left out: {missing}"
                if note not in report.notes:
                    report.notes.append(note)
                continue
            settle(target.removeprefix("postgres:"))
            self._stack.callback(lake.close)
            self.ducklakes[name] = lake

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def our_lists(self, version: int | None = None) -> dict[str, Callable[[], Any]]:
        """Open and list, on each engine."""
        return {
            f"ours on {engine}": lambda reader=reader: reader.list_files(version)  # type: ignore[misc]
            for engine, reader in self.ours.items()
        }

    def peer_lists(self, version: int | None = None) -> dict[str, Callable[[], Any]]:
        """Open and list, by each peer; delta-rs with its fresh checkpoint."""
        lists: dict[str, Callable[[], Any]] = {
            "delta-rs": lambda: delta_rs_list(self.checked, version)
        }
        for name, lake in self.ducklakes.items():
            lists[name] = lambda lake=lake: lake.list_files(version)  # type: ignore[misc]
        return lists
