"""The main job on the embedded default: `make demo` runs this and prints what it shows."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import deltalakedb
from deltalakedb.errors import ConcurrentDeleteDeleteError

_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "day", "type": "date", "nullable": True, "metadata": {}},
        ],
    }
)


def _add(path: str, day: str, rows: int) -> dict[str, object]:
    return {
        "add": {
            "path": path,
            "partitionValues": {"day": day},
            "size": 1000 * rows,
            "modificationTime": 1_700_000_000_000,
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows}),
        }
    }


def _remove(path: str) -> dict[str, object]:
    return {"remove": {"path": path, "deletionTimestamp": 1_700_000_000_000, "dataChange": True}}


def main() -> None:
    """Tell the story on a catalog in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder, 'lake.db')}"
        with deltalakedb.connect(url) as lake:
            print(f"1. A new catalog, one SQLite file: {lake!r}")
            orders = lake.create_table(
                "sales.orders",
                location=str(Path(folder, "orders")),
                schema=_SCHEMA,
                partition_by=["day"],
            )
            lake.create_table(
                "sales.daily",
                location=str(Path(folder, "daily")),
                schema=_SCHEMA,
                partition_by=["day"],
            )
            print(f"   tables: {[table.name for table in lake.tables()]}")

            version = orders.commit(
                [_add("day=2026-11-01/a.parquet", "2026-11-01", 10)], operation="WRITE"
            )
            print(f"2. One commit: sales.orders is now at version {version}")

            with lake.transaction() as tx:
                tx.table("sales.orders").add_actions(
                    [_add("day=2026-11-02/b.parquet", "2026-11-02", 20)]
                )
                tx.table("sales.daily").add_actions(
                    [_add("day=2026-11-02/total.parquet", "2026-11-02", 1)]
                )
            print(f"3. One transaction, two tables: {tx.results}")

            first, second = lake.table("sales.orders"), lake.table("sales.orders")
            print(f"4. Two writers start from version {first.version} and {second.version}")
            first.commit([_remove("day=2026-11-01/a.parquet")], operation="DELETE")
            harmless = second.commit([_add("day=2026-11-03/c.parquet", "2026-11-03", 30)])
            print(f"   the harmless one was rebased to version {harmless}")
            late = lake.table("sales.orders")
            late.refresh()
            lake.table("sales.orders").commit(
                [_remove("day=2026-11-02/b.parquet")], operation="DELETE"
            )
            try:
                late.commit([_remove("day=2026-11-02/b.parquet")], operation="DELETE")
            except ConcurrentDeleteDeleteError as refusal:
                print(f"   the conflicting one was refused: {refusal}")

            print("5. Time travel, straight from SQL:")
            for entry in reversed(orders.history()):
                at = orders.snapshot(version=entry.version)
                operation = entry.commit_info.operation if entry.commit_info else None
                print(
                    f"   version {at.version} {operation:<12} {at.num_files} files, "
                    f"{at.size_bytes} bytes: {at.files()['path'].to_pylist()}"
                )


if __name__ == "__main__":
    main()
