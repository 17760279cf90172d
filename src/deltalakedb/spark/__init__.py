"""Spark moves the data: this room holds what needs PySpark, and the Java below it.

`DeltaTable` is loaded when it is asked for: other parts of the room work without PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalakedb.spark.table import DeltaTable

__all__ = ["DeltaTable"]


def __getattr__(name: str) -> Any:
    if name == "DeltaTable":
        from deltalakedb.spark.table import DeltaTable

        return DeltaTable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
