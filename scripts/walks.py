"""Trace the walks of docs/architecture.md: modules that each visits, and calls between modules.

Usage: python scripts/walks.py [append] [files] [import] [worker] [--list]
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pyarrow as pa

import deltalakedb

_PACKAGE: Final = "deltalakedb"


class Walk:
    """The modules of the package that were called, and the number of calls between modules."""

    def __init__(self) -> None:
        self.modules: list[str] = []
        self.crossings = 0

    def profile(self, frame: FrameType, kind: str, _: Any) -> None:
        """Count a call; what `sys.setprofile` takes."""
        if kind != "call":
            return
        here = _module(frame)
        if here is None:
            return
        if here not in self.modules:
            self.modules.append(here)
        caller = frame.f_back
        while caller is not None and _module(caller) is None:
            caller = caller.f_back
        if caller is not None and _module(caller) != here:
            self.crossings += 1


def _module(frame: FrameType) -> str | None:
    name = frame.f_globals.get("__name__", "")
    inside = name == _PACKAGE or name.startswith(f"{_PACKAGE}.")
    # The body of a module runs when it is imported: that is no call.
    return name if inside and frame.f_code.co_name != "<module>" else None


@contextmanager
def traced() -> Iterator[Walk]:
    """Trace this thread and those that it starts."""
    walk = Walk()
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _lake(folder: Path, mirror: str = "inline") -> deltalakedb.Lake:
    return deltalakedb.connect(f"sqlite:///{folder / 'lake.db'}", mirror=mirror)


def _table(lake: deltalakedb.Lake, folder: Path) -> deltalakedb.Table:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = lake.create_table(
        "orders", location=str(folder / "orders"), schema=schema, partition_by=["day"]
    )
    for number in range(3):
        table.append(_rows(number))
    lake.mirror.drain()
    return table


def _rows(number: int) -> pa.Table:
    return pa.table({"id": [number], "day": ["2026-11-01"]})


def append(folder: Path) -> Walk:
    """`table.append(rows)`, published inline."""
    with _lake(folder) as lake:
        table = _table(lake, folder)
        with traced() as walk:
            table.append(_rows(7))
        return walk


def files(folder: Path) -> Walk:
    """`table.snapshot().files(where=…)`."""
    with _lake(folder) as lake:
        table = _table(lake, folder)
        table.snapshot().files(where="id > 1")
        with traced() as walk:
            table.snapshot().files(where="day = '2026-11-01' AND id > 1")
        return walk


def import_table(folder: Path) -> Walk:
    """`lake.import_table(location)` of a log with four commits."""
    with _lake(folder) as lake:
        _table(lake, folder)
        lake.drop_table("orders")
        # The first import of a process imports modules too, and defines their classes.
        lake.import_table(str(folder / "orders"), name="orders")
        lake.drop_table("orders")
        with traced() as walk:
            lake.import_table(str(folder / "orders"), name="orders")
        return walk


def worker(folder: Path) -> Walk:
    """`lake.mirror.run_once()` of one version that waits."""
    with _lake(folder, mirror="worker") as lake:
        table = _table(lake, folder)
        lake.mirror.run_once()
        table.append(_rows(7))
        with traced() as walk:
            lake.mirror.run_once()
        return walk


WALKS: Final[dict[str, Callable[[Path], Walk]]] = {
    "append": append,
    "files": files,
    "import": import_table,
    "worker": worker,
}


def main(arguments: list[str]) -> None:
    """Print a line for each walk; with --list its modules too, in the order of their first call."""
    names = [name for name in arguments if name != "--list"] or list(WALKS)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            walk = WALKS[name](Path(folder))
        print(f"{name}: {len(walk.modules)} modules, {walk.crossings} calls between them")
        if "--list" in arguments:
            print("".join(f"  {module}\n" for module in walk.modules), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
