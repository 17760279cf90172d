"""Database roles for a Postgres catalog: who may read, commit and publish.

SQLite and DuckDB catalogs are files; the permissions of the file are theirs.
"""

from __future__ import annotations

from importlib.resources import files


def roles_script() -> str:
    """SQL that makes the roles and grants them what they need in the current schema.

    It is idempotent. Run it as the owner of the catalog's schema, e.g. with psql.
    """
    return _read("roles.sql")


def roles_down_script() -> str:
    """SQL that takes all of it back."""
    return _read("roles_down.sql")


def _read(name: str) -> str:
    return (files("deltalakedb.store") / "sql" / "postgres" / name).read_text("utf-8")
