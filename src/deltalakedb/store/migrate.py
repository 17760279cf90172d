"""Migrations: plain SQL, numbered, with up and down, recorded with a checksum in the database.

`sql/<engine>/migrations/NNNN_name.up.sql` and `.down.sql` are applied in order, each in one
transaction together with its record. `sql/<engine>/optional/9NNN_name.*.sql` are applied only when
asked for by name. A recorded migration whose file has changed or is missing is refused. Two
migrators at once are safe: the second waits, then finds the work done.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from deltalakedb.errors import (
    CatalogNotFoundError,
    ConfigurationError,
    MigrationError,
    SchemaOutdatedError,
    SchemaTooNewError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.clock import Clock
    from deltalakedb.store.dialect import Dialect, Session
    from deltalakedb.store.url import Engine

_FILE = re.compile(r"^(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.(?P<way>up|down)\.sql$")
_FIRST_OPTIONAL = 9000


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step. Its checksum covers both ways."""

    version: int
    name: str
    up: str
    down: str

    @property
    def checksum(self) -> str:
        """SHA-256 of both scripts, the same for every newline convention."""
        text = f"{self.up}\0{self.down}".replace("\r\n", "\n")
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Applied:
    """A migration as the database recorded it."""

    version: int
    name: str
    checksum: str
    applied_at: int


def load_migrations(engine: Engine) -> Sequence[Migration]:
    """The migrations of `engine`, in order."""
    migrations = _load(files("deltalakedb.store") / "sql" / engine / "migrations")
    expected = list(range(1, len(migrations) + 1))
    if [migration.version for migration in migrations] != expected:
        raise MigrationError(
            f"The {engine} migrations of this installation are not numbered 1 to {len(migrations)}",
            fix="Reinstall deltalakedb",
        )
    return migrations


def load_optional(engine: Engine) -> Mapping[str, Migration]:
    """The optional migrations of `engine`, by name."""
    folder = files("deltalakedb.store") / "sql" / engine / "optional"
    return {m.name: m for m in _load(folder)} if folder.is_dir() else {}


def _load(folder: Traversable) -> list[Migration]:
    scripts: dict[tuple[int, str], dict[str, str]] = {}
    for entry in folder.iterdir():
        match = _FILE.match(entry.name)
        if match:
            key = (int(match["version"]), match["name"])
            scripts.setdefault(key, {})[match["way"]] = entry.read_text("utf-8")
    for (version, name), ways in scripts.items():
        if set(ways) != {"up", "down"}:
            raise MigrationError(
                f"Migration {version:04d}_{name} lacks its up or its down script",
                fix="Reinstall deltalakedb",
            )
    return [
        Migration(version, name, ways["up"], ways["down"])
        for (version, name), ways in sorted(scripts.items())
    ]


class Migrator:
    """Brings a catalog to a schema version, or checks that it is there."""

    def __init__(
        self, dialect: Dialect, clock: Clock, *, migrations: Sequence[Migration] | None = None
    ) -> None:
        self._dialect = dialect
        self._clock = clock
        self._migrations = (
            load_migrations(dialect.engine) if migrations is None else list(migrations)
        )

    def applied(self) -> Sequence[Applied]:
        """What the database has recorded, in order; empty for an empty database."""
        with self._dialect.read() as session:
            return _recorded(session)

    def pending(self) -> Sequence[Migration]:
        """Return the pending migrations, after checking the applied ones."""
        return self._pending(self.applied())

    def ensure(self, *, create: bool = True) -> None:
        """Check the schema; where there is none, make it, or without `create` refuse.

        A SQLite file that did not exist is there afterwards with its schema, or not at all.
        """
        if not create and not self._dialect.holds_catalog():
            raise CatalogNotFoundError(
                f"There is no catalog at {self._dialect.url.display}",
                fix="Correct the URL (a relative path has three slashes, an absolute one four), or "
                "make a new catalog there: deltalakedb migrate --catalog URL",
            )
        if self._make_new(self._migrations[-1].version) is not None:
            return
        applied = self.applied()
        pending = self._pending(applied)
        if not applied:
            self.up()
        elif pending:
            newest = max((a.version for a in applied if a.version < _FIRST_OPTIONAL), default=0)
            raise SchemaOutdatedError(
                f"{self._dialect.url.display} has schema version {newest}, and "
                f"this release needs {self._migrations[-1].version}",
                fix="Back it up, then run: deltalakedb migrate --catalog URL",
            )

    def up(self, target: int | None = None) -> Sequence[Migration]:
        """Apply the pending migrations up to `target` (default: all); return them.

        A SQLite file that did not exist is there afterwards with its schema, or not at all.
        """
        goal = self._migrations[-1].version if target is None else self._known(target)
        created = self._make_new(goal)
        return self._up(goal) if created is None else created

    def _make_new(self, goal: int) -> Sequence[Migration] | None:
        """What was applied to a catalog that was not there at all; None where one is."""

        def fill(dialect: Dialect) -> Sequence[Migration]:
            migrator = Migrator(dialect, self._clock, migrations=self._migrations)
            return migrator._up(goal)

        return self._dialect.make_new(fill)

    def _up(self, goal: int) -> Sequence[Migration]:
        done: list[Migration] = []
        with self._dialect.write() as session:
            self._dialect.lock_migrations(session)
            session.run("create_schema_migrations")
            for migration in self._pending(_recorded(session)):
                if migration.version <= goal:
                    self._apply(session, migration)
                    done.append(migration)
        return done

    def down(self, target: int = 0) -> Sequence[Migration]:
        """Undo migrations above `target`, newest first. This deletes what they held."""
        done: list[Migration] = []
        self._known(target)
        with self._dialect.write() as session:
            self._dialect.lock_migrations(session)
            applied = _recorded(session)
            self._pending(applied)
            optional = {m.version: m for m in load_optional(self._dialect.engine).values()}
            migrations = {m.version: m for m in self._migrations} | optional
            for record in sorted(applied, key=lambda a: a.version, reverse=True):
                if record.version > target:
                    self._revert(session, migrations[record.version])
                    done.append(migrations[record.version])
        return done

    def apply_optional(self, name: str) -> bool:
        """Apply an optional migration; False when it was there already."""
        migration = self._optional(name)
        with self._dialect.write() as session:
            self._dialect.lock_migrations(session)
            applied = _recorded(session)
            if self._pending(applied) or not applied:
                raise MigrationError(
                    f"The optional migration {name!r} needs an up-to-date schema",
                    fix="Run: deltalakedb migrate --catalog URL",
                )
            if any(record.version == migration.version for record in applied):
                return False
            self._apply(session, migration)
            return True

    def revert_optional(self, name: str) -> bool:
        """Undo an optional migration; False when it was not applied."""
        migration = self._optional(name)
        with self._dialect.write() as session:
            self._dialect.lock_migrations(session)
            if all(record.version != migration.version for record in _recorded(session)):
                return False
            self._revert(session, migration)
            return True

    def _apply(self, session: Session, migration: Migration) -> None:
        session.script(migration.up)
        session.changed(
            "record_migration",
            version=migration.version,
            name=migration.name,
            checksum=migration.checksum,
            applied_at=self._clock.now_ms(),
        )

    def _revert(self, session: Session, migration: Migration) -> None:
        session.script(migration.down)
        session.changed("forget_migration", version=migration.version)

    def _known(self, target: int) -> int:
        if not 0 <= target <= self._migrations[-1].version:
            raise ConfigurationError(
                f"There is no schema version {target}",
                fix=f"Use 0 to {self._migrations[-1].version}",
            )
        return target

    def _optional(self, name: str) -> Migration:
        available = load_optional(self._dialect.engine)
        if name not in available:
            raise ConfigurationError(
                f"There is no optional migration {name!r} for {self._dialect.engine}",
                fix=f"Known: {', '.join(sorted(available)) or 'none'}",
            )
        return available[name]

    def _pending(self, applied: Sequence[Applied]) -> list[Migration]:
        """Check what was applied against this release, and return the rest."""
        where = self._dialect.url.display
        optional = {m.version: m for m in load_optional(self._dialect.engine).values()}
        migrations = {m.version: m for m in self._migrations} | optional
        newest = self._migrations[-1].version
        for record in applied:
            if newest < record.version < _FIRST_OPTIONAL:
                raise SchemaTooNewError(
                    f"{where} has schema version {record.version}, and this release "
                    f"knows up to {newest}",
                    why="A newer deltalakedb has migrated it",
                    fix="Upgrade deltalakedb here",
                )
            migration = migrations.get(record.version)
            if migration is None:
                raise MigrationError(
                    f"{where} records migration {record.version:04d}_{record.name}, "
                    "which this installation lacks",
                    fix="Install the release that applied it",
                )
            if (migration.name, migration.checksum) != (record.name, record.checksum):
                raise MigrationError(
                    f"Migration {record.version:04d}_{record.name} of {where} differs from "
                    "the file of this installation",
                    why="A migration must never change after it was applied",
                    fix="Install an unmodified release",
                )
        applied_versions = {record.version for record in applied}
        missing = [m for m in self._migrations if m.version not in applied_versions]
        regular = [v for v in applied_versions if v < _FIRST_OPTIONAL]
        if missing and regular and missing[0].version < max(regular):
            raise MigrationError(
                f"{where} lacks migration {missing[0].version:04d}_{missing[0].name}, "
                "though later ones were applied",
                fix="Restore a backup, or ask for help with the rows of dl_schema_migrations",
            )
        return missing


def _recorded(session: Session) -> list[Applied]:
    if not session.run("has_schema_migrations"):
        return []
    return [Applied(*row) for row in session.run("read_schema_migrations")]
