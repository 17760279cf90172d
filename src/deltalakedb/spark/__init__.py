"""Spark reads and writes the tables of a lake: everything that needs PySpark, or the Java below it.

The public names are loaded when they are used: other parts of the room work without PySpark.
Importing them changes nothing of PySpark; `enable` does, for programs that call it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalakedb.spark.api.sql import register
    from deltalakedb.spark.api.table import DeltaTable
    from deltalakedb.spark.delta.configure import attach, configure
    from deltalakedb.spark.source.native_format import disable, enable

__all__ = ["DeltaTable", "attach", "configure", "disable", "enable", "register"]


def __getattr__(name: str) -> Any:
    if name == "DeltaTable":
        from deltalakedb.spark.api.table import DeltaTable

        return DeltaTable
    if name == "register":
        from deltalakedb.spark.api.sql import register

        return register
    if name in ("attach", "configure"):
        from deltalakedb.spark.delta import configure as module

        return getattr(module, name)
    if name in ("disable", "enable"):
        from deltalakedb.spark.source import native_format

        return getattr(native_format, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
