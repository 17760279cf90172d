"""Who commits, as the history of a table will say."""

from __future__ import annotations

import getpass
from importlib.metadata import PackageNotFoundError, version


def user_name() -> str | None:
    """The user of this process, if it has a name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # A container user may have no name; that is no reason to refuse a commit.
        return None


def release() -> str:
    """The software that commits."""
    try:
        return f"deltalakedb/{version('deltalakedb')}"
    except PackageNotFoundError:
        return "deltalakedb/unreleased"
