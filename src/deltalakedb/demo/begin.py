"""The start of the demo: its packages are checked, and its folder is created."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from deltalakedb.errors import ConfigurationError, MissingDriverError


def main(*, folder: Path | None = None, keep: bool = False) -> int:
    """Run the demo on SQLite and local files; returns 1 where a check failed.

    Its data stay in `folder` (a temporary one, unless named). With `keep` the operations page is
    served until Ctrl-C.
    """
    _require_packages()
    place = _place(folder)
    from deltalakedb.demo.report import Report
    from deltalakedb.demo.story import run_demo

    report = Report()
    run_demo(report, place, keep=keep)
    return int(report.failed > 0)


def _require_packages() -> None:
    """Raise at the start where a package is missing."""
    needed = ("deltalake", "pyspark", "rich", "starlette", "uvicorn")
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    if missing:
        raise MissingDriverError(
            f"The demo needs {' and '.join(missing)}",
            why="Spark writes its tables, and delta-rs reads the published log",
            fix="Run: pip install 'deltalakedb[cli,spark,web]' deltalake",
        )


def _place(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="deltalakedb-demo-"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(
            f"{folder} is not an empty folder",
            why="The demo begins with a new catalog, and deletes nothing",
            fix="Name a folder that does not exist yet, or leave --folder out",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"The folder {folder} cannot be created",
            why=str(error),
            fix="Name one that you may write to, or leave --folder out",
        ) from error
    return folder.resolve()
