"""The registry by which lower rooms call an optional higher one: Spark, and the service.

A lower room never imports a higher one. The package registers a loader for each extension, and the
extension is imported by the first call that needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_loaders: dict[str, Callable[[], Any]] = {}


def register_extension(package: str, load: Callable[[], Any]) -> None:
    """Register the loader of an extension: for the objects of a package, or the service."""
    _loaders[package] = load


def extension(package: str) -> Any | None:
    """The extension of a name; None where there is none."""
    load = _loaders.get(package)
    return None if load is None else load()
