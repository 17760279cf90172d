"""Spark moves the data: this room holds what needs PySpark, and the Java below it.

`DeltaTable` and `register` are loaded when they are asked for: other parts of the room work
without PySpark. From then on `format("deltalakedb")` is served by the driver
(`source/session_format.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalakedb.spark.api.sql import register
    from deltalakedb.spark.api.table import DeltaTable

__all__ = ["DeltaTable", "register"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from deltalakedb.spark.source.session_format import install

        install()
    if name == "DeltaTable":
        from deltalakedb.spark.api.table import DeltaTable

        return DeltaTable
    if name == "register":
        from deltalakedb.spark.api.sql import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
