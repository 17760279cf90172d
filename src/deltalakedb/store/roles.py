"""Database roles of a Postgres catalog: the rights to read, commit and publish.

SQLite and DuckDB catalogs are files, with the permissions of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

READER, WRITER, MIRROR = "deltalakedb_reader", "deltalakedb_writer", "deltalakedb_mirror"
MAKE_ROLES = 'deltalakedb roles | psql "$OWNER_URL"'
"""The command that creates the roles; the owner of the schema runs it."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What the role of a connection may do with the catalog that it sees."""

    user: str
    reads: bool
    commits: bool
    publishes: bool
    owns: bool
    has_roles: bool
    """Whether the roles of `roles_script` exist on this server."""
    owner: str | None
    """The owner of the catalog; None if the role cannot see it."""

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Rights:
        """The row of the query `rights`."""
        user, *may, has_roles, owner = row
        reads, commits, publishes, owns = map(bool, may)
        return cls(user, reads, commits, publishes, owns, bool(has_roles), owner)

    @property
    def roles(self) -> tuple[str, ...]:
        """Which of the roles it has, or as good as."""
        has = ((READER, self.reads), (WRITER, self.commits), (MIRROR, self.publishes))
        return tuple(name for name, granted in has if granted)

    def grant(self, *roles: str) -> str:
        """What the owner has to do so that this role gets others."""
        owner = f" as {_quoted(self.owner)}, the owner of the catalog" if self.owner else ""
        first = "" if self.has_roles else f"make the roles with `{MAKE_ROLES}`, then "
        return f"{first}run GRANT {', '.join(roles)} TO {_quoted(self.user)}{owner}"

    def advice(self) -> str:
        """Return the fix for a refused statement: the missing right, and its grantor."""
        if self.owner is None:
            return (
                f"{_quoted(self.user)} sees no catalog here. If there is one, its owner has to "
                f"run `{MAKE_ROLES}` and GRANT {WRITER}, {MIRROR} TO {_quoted(self.user)}; if not, "
                "connect as a role that may create tables"
            )
        whole = (
            "Dropping, exporting, expiring, setting the warehouse and migrating take its owner, "
            f"{self.owner}"
        )
        if not self.reads:
            return (
                f"To read, {self.grant(READER)}. To commit and publish too, grant "
                f"{WRITER} and {MIRROR}"
            )
        lacks = [name for name in (WRITER, MIRROR) if name not in self.roles]
        if not lacks:
            return whole
        verb = " and ".join({WRITER: "commit", MIRROR: "publish"}[name] for name in lacks)
        return f"To {verb}, {self.grant(*lacks)}. {whole}"


def roles_script() -> str:
    """SQL that makes the roles and grants them what they need in the current schema.

    It is idempotent. Run it as the owner of the catalog's schema, e.g. with psql; the first time
    that role needs CREATEROLE.
    """
    return _read("roles.sql")


def roles_down_script() -> str:
    """SQL that takes all of it back."""
    return _read("roles_down.sql")


def _read(name: str) -> str:
    return (files("deltalakedb.store") / "sql" / "postgres" / name).read_text("utf-8")


def _quoted(name: str) -> str:
    """A name as SQL has it; quoted only where it has to be."""
    plain = name.isidentifier() and name.isascii() and name.islower()
    return name if plain else '"' + name.replace('"', '""') + '"'
