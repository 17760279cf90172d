"""The checks of `deltalakedb doctor`, each with its result and what to do about it.

Nothing is changed. A database file that does not exist is not created. At a location one object
with a name of its own is created and deleted again; if that fails, its name is reported.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from time import time
from typing import Any, Final, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deltalakedb.cli.output import as_commands
from deltalakedb.errors import DeltaLakeDbError, StorageError
from deltalakedb.formatting import format_time
from deltalakedb.spark.delta.jar import DELTA
from deltalakedb.spark.java import PROBE, java_home
from deltalakedb.storage import Storage, local_path, normalise_location, open_storage
from deltalakedb.store import Store
from deltalakedb.store.roles import MIRROR, Rights
from deltalakedb.store.url import CatalogUrl, parse_url

OLDEST_PYTHON = (3, 11)
# Much for a clock that a time service sets. Commits and leases go by the database's in any case.
SKEW_MS = 2_000
# Extras in the order of the report, and how each of their packages is imported.
_MODULES: Mapping[str, Mapping[str, str]] = {
    "": {"obstore": "obstore", "orjson": "orjson", "pyarrow": "pyarrow", "sqlglot": "sqlglot"},
    "postgres": {
        "psycopg": "psycopg",
        "adbc-driver-manager": "adbc_driver_manager",
        "adbc-driver-postgresql": "adbc_driver_postgresql",
    },
    "duckdb": {"duckdb": "duckdb"},
    "spark": {"pyspark": "pyspark", "pandas": "pandas"},
    "otel": {"opentelemetry-api": "opentelemetry.trace"},
    "web": {
        "jinja2": "jinja2",
        "prometheus-client": "prometheus_client",
        "starlette": "starlette",
        "uvicorn": "uvicorn",
    },
}
_ONE_WORKER = (
    "let one worker only publish there: connect writers with mirror='worker', and run a single "
    "`deltalakedb mirror run`"
)
_COMMAND: Final = (sys.executable, "-m", PROBE)
# A machine that is busy, or fetches the packages that Spark is configured with.
_PATIENCE_SECONDS: Final = 300.0
_S3: Final = ("s3:", "s3a:", "s3n:")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked."""

    name: str
    state: Literal["ok", "warning", "wrong", "skipped"]
    found: str
    """What was observed; the name is part of `doctor --json`."""
    fix: str = ""


def all_checks(
    catalog: str | None, locations: Sequence[str], options: Mapping[str, str], *, spark: bool
) -> Iterator[Check]:
    """Everything, from the ground up. With `spark`, Spark has to be there, and is started."""
    yield check_python()
    engine, bad_url = _engine(catalog)
    ready = True
    for extra in _MODULES:
        wanted = extra in ("", engine) or (extra == "spark" and spark)
        packages = check_packages(extra, wanted=wanted)
        ready = ready and (extra != "spark" or packages.state == "ok")
        yield packages
    java = check_java(wanted=spark)
    yield java
    if spark:
        yield from check_spark(locations, ready=ready and java.state == "ok")
    else:
        yield Check("spark", "skipped", "It was not started", "Pass --spark to try it")
    if bad_url is not None:
        yield bad_url
    elif catalog is None:
        yield Check("database", "skipped", "No catalog was named", "Pass --catalog URL")
    else:
        yield from check_database(parse_url(catalog), catalog)
    if not locations:
        yield Check(
            "object store",
            "skipped",
            "No location was named",
            "Pass --location with the place where tables are or will be",
        )
    for location in locations:
        yield from check_location(location, options)


def _engine(catalog: str | None) -> tuple[str, Check | None]:
    if catalog is None:
        return "", None
    try:
        return parse_url(catalog).engine, None
    except DeltaLakeDbError as error:
        return "", _wrong("database", error)


def _wrong(name: str, error: DeltaLakeDbError, more: str = "") -> Check:
    why = f": {error.why}" if error.why else ""
    fix = ". ".join(part for part in (as_commands(error.fix), more) if part)
    return Check(name, "wrong", as_commands(f"{error.what}{why}"), fix)


# --- this machine -------------------------------------------------------------------------


def check_python(running: tuple[int, int, int] = sys.version_info[:3]) -> Check:
    """Python itself."""
    version = f"Python {'.'.join(map(str, running))} at {sys.executable}, {platform.system()}"
    if running[:2] < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        return Check("python", "wrong", version, f"Install Python {wanted} or newer")
    return Check("python", "ok", version)


def check_packages(extra: str, *, wanted: bool) -> Check:
    """The packages of an extra ('' for the core), imported and new enough."""
    name = f"extra {extra}" if extra else "packages"
    installed, problems = [], []
    for package, module in _MODULES[extra].items():
        try:
            number = metadata.version(package)
            import_module(module)
        except metadata.PackageNotFoundError:
            problems.append(f"{package} is not installed")
            continue
        except Exception as error:  # noqa: BLE001 - a broken package may raise whatever it likes
            problems.append(f"{package} cannot be imported ({type(error).__name__}: {error})")
            continue
        installed.append(f"{package} {number}")
        problems += _out_of_bounds(package, number)
    if not problems:
        return Check(name, "ok", ", ".join(installed))
    target = f"deltalakedb[{extra}]" if extra else "deltalakedb"
    fix = f"Run: pip install --upgrade '{target}'"
    if not wanted and not installed:
        return Check(name, "skipped", "; ".join(problems), f"If you need it: {fix[5:]}")
    return Check(name, "wrong" if wanted else "warning", "; ".join(problems), fix)


def _out_of_bounds(package: str, number: str) -> list[str]:
    """The bounds of our own metadata that this version of a package does not satisfy."""
    try:
        lines = metadata.requires("deltalakedb") or ()
    except metadata.PackageNotFoundError:
        return []
    requirements = (Requirement(line) for line in lines)
    requirement = next(
        (one for one in requirements if canonicalize_name(one.name) == package), None
    )
    return [
        f"{package} {number} is not {bound}"
        for bound in (requirement.specifier if requirement else ())
        if not bound.contains(number, prereleases=True)
    ]


def check_java(*, wanted: bool) -> Check:
    """A Java that Spark can run on."""
    try:
        return Check("java", "ok", f"Java for Spark at {java_home()}")
    except DeltaLakeDbError as error:
        check = _wrong("java", error)
        if wanted:
            return check
        return Check("java", "skipped", check.found, f"If you need Spark: {check.fix}")


# --- the database -------------------------------------------------------------------------


def check_database(url: CatalogUrl, catalog: str) -> Iterator[Check]:
    """Whether it can be reached, what we may do there, its schema, and its clock."""
    if url.engine != "postgres" and not Path(url.target).exists():
        yield _no_file(url)
        return
    try:
        with closing(Store.open(catalog)) as store:
            if url.engine == "sqlite" and not store.dialect.holds_catalog():
                # Our connections would switch the file of another program to write-ahead logging.
                yield _no_catalog("database", url)
                return
            with store.read() as session:
                before = time() * 1000
                ((number, now),) = session.run("server")
                after = time() * 1000
            yield Check("database", "ok", f"{url.display} answers: {url.engine} {number}")
            yield _rights(store, url)
            schema = _schema(store)
            yield schema
            yield _clock(int(now), before, after)
            if schema.state == "ok":
                yield from _future(store, int(now))
    except DeltaLakeDbError as error:
        yield _wrong("database", error)


def _no_file(url: CatalogUrl) -> Check:
    if not Path(url.target).parent.is_dir():
        return Check(
            "database",
            "wrong",
            f"{url.display} cannot be created: its folder does not exist",
            "Create the folder, or correct the path (a relative path has three slashes)",
        )
    return Check(
        "database",
        "warning",
        f"{url.display} does not exist yet",
        "Run: deltalakedb migrate; or correct the path (a relative path has three slashes)",
    )


def _no_catalog(name: str, url: CatalogUrl) -> Check:
    return Check(
        name,
        "warning",
        f"{url.display} holds no catalog yet",
        "Run: deltalakedb migrate; or correct the URL",
    )


def _rights(store: Store, url: CatalogUrl) -> Check:
    """What this process may do with the catalog: by its role, or by the permissions of the file."""
    if url.engine != "postgres":
        path = Path(url.target)
        # The rights of this process, not of the user that started it.
        effective = os.access in os.supports_effective_ids
        places = (path, path.parent)
        if all(os.access(place, os.W_OK, effective_ids=effective) for place in places):
            return Check("rights", "ok", "The catalog may be read and written")
        return Check(
            "rights",
            "wrong",
            f"{path} or its folder must not be written to by this user",
            "Give the user of this process write permission on the file and its folder",
        )
    row = store.dialect.ask(lambda session: session.one("rights"))
    if row is None:
        return Check("rights", "skipped", "The server does not report it")
    return judge_rights(Rights.from_row(row))


def judge_rights(rights: Rights) -> Check:
    """Reader, writer, mirror or owner; and how a role gets what it lacks."""
    user = rights.user
    if rights.owner is None:
        return Check("rights", "skipped", f"The role {user} sees no catalog here yet", "")
    if rights.owns:
        return Check("rights", "ok", f"The role {user} owns the catalog, and may do everything")
    has = ", ".join(rights.roles)
    if not rights.reads:
        return Check("rights", "wrong", f"The role {user} may not even read", rights.advice())
    if rights.commits and not rights.publishes:
        return Check(
            "rights",
            "warning",
            f"The role {user} may commit but not publish ({has})",
            f"To publish right after each commit, as connect() does by default, "
            f"{rights.grant(MIRROR)}. Or leave it to `deltalakedb mirror run` by a role that may",
        )
    may = {
        (True, True): "read, commit and publish",
        (False, True): "read and publish, as `deltalakedb mirror run` does",
        (False, False): "only read",
    }[rights.commits, rights.publishes]
    return Check("rights", "ok", f"The role {user} may {may} ({has})", rights.advice())


def _schema(store: Store) -> Check:
    try:
        applied, pending = store.migrator.applied(), store.migrator.pending()
    except DeltaLakeDbError as error:
        return _wrong("schema", error)
    newest = f"{applied[-1].version:04d}_{applied[-1].name}" if applied else "none"
    if not pending:
        return Check("schema", "ok", f"Up to date: {len(applied)} migrations, last {newest}")
    missing = ", ".join(f"{one.version:04d}_{one.name}" for one in pending)
    if not applied:
        return _no_catalog("schema", store.dialect.url)
    return Check(
        "schema",
        "wrong",
        f"It is at {newest}; this release needs {missing} too",
        "Back the catalog up, then run: deltalakedb migrate",
    )


def _clock(theirs: int, before: float, after: float) -> Check:
    """The difference of the two clocks, as exactly as the duration of the query allows."""
    skew = max(before - theirs, theirs - after, 0)
    if skew <= SKEW_MS:
        return Check("clock", "ok", f"The database's clock and ours agree within {SKEW_MS} ms")
    way = "behind" if theirs < before else "ahead of"
    return Check(
        "clock",
        "wrong",
        f"The database's clock is {skew / 1000:.1f} s {way} ours",
        "Let a time service (chrony, systemd-timesyncd) set the clocks of all machines",
    )


def _future(store: Store, now: int) -> Iterator[Check]:
    """Whether a commit has a time that is still to come."""
    row = store.dialect.ask(lambda session: session.one("newest_time"))
    newest = now if row is None else int(row[0])
    if newest - now > SKEW_MS:
        yield Check(
            "commit times",
            "warning",
            f"The newest commit is of {format_time(newest)}, and it is {format_time(now)} now",
            "A clock was ahead, or this one is behind. Set it; commits of that table go on a "
            "millisecond at a time until then",
        )


# --- the object store ---------------------------------------------------------------------


def check_location(location: str, options: Mapping[str, str]) -> Iterator[Check]:
    """Whether objects can be created, once only, read, listed and deleted at a location."""
    name = f"object store {location}"
    key = f"_deltalakedb_doctor_{uuid.uuid4().hex}"
    left = f"Make sure that {key} is not left there"
    try:
        storage = open_storage(_existing(normalise_location(location)), options, patient=False)
    except DeltaLakeDbError as error:
        yield _wrong(name, error)
        return
    try:
        check = _try_out(storage, key, name)
    except StorageError as error:
        # What went wrong first is what matters; the object may be there or not.
        try:
            storage.delete(key)
        except StorageError:
            yield _wrong(name, error, more=left)
        else:
            yield _wrong(name, error)
        return
    try:
        storage.delete(key)
    except StorageError as error:
        if check.state != "ok":
            yield check
        check = _wrong(name, error, more=left)
    yield check


def _existing(location: str) -> str:
    """The location, or on this machine the nearest folder above it that is there already."""
    folder = local_path(location)
    if folder is None:
        return location
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.as_uri()


def _try_out(storage: Storage, key: str, name: str) -> Check:
    first, second = b"deltalakedb doctor: first", b"deltalakedb doctor: second"
    created = storage.put_if_absent(key, first)
    refused = not storage.put_if_absent(key, second)
    content = storage.get(key)
    if not created or not refused or content != first:
        return Check(
            name,
            "wrong",
            "An object was created twice: the store ignores conditional writes",
            "Use a store, or a newer release of it, that supports If-None-Match: *. Until then, "
            f"{_ONE_WORKER}",
        )
    # A listing begins right before the object: there may be millions of others.
    if not storage.is_local and next(storage.list(start_after=key[:-1]), None) is None:
        return Check(
            name,
            "wrong",
            "An object that was created is not listed",
            "Allow listing of this prefix (on S3: s3:ListBucket)",
        )
    if not storage.is_conditional:
        return Check(
            name,
            "warning",
            "The store has no conditional writes: two processes that publish at the same moment "
            "could overwrite each other",
            f"{_ONE_WORKER[0].upper()}{_ONE_WORKER[1:]}",
        )
    return Check(name, "ok", "Objects can be created (once only), read, listed and deleted")


# --- Spark --------------------------------------------------------------------------------


def check_spark(locations: Sequence[str], *, ready: bool) -> Iterator[Check]:
    """Start Spark in a process of its own, count a row and stop it; nothing of it stays."""
    if not ready:
        yield Check("spark", "skipped", "It cannot be started", "Fix its packages and Java first")
        return
    probe = _probe(_COMMAND)
    if isinstance(probe, str):
        yield Check(
            "spark",
            "wrong",
            f"Spark cannot be used: {probe}",
            f"Run: python -m {PROBE}, which shows all that Spark prints",
        )
        return
    yield Check(
        "spark", "ok", f"Spark {probe['spark']} (Hadoop {probe['hadoop']}) counts {probe['rows']}"
    )
    yield _internals(probe)
    yield _delta(probe["delta"])
    if any(location.lower().startswith(_S3) for location in locations):
        yield _s3(probe)


def _internals(probe: dict[str, Any]) -> Check:
    broken: dict[str, str] = probe["broken"]
    if not broken:
        return Check("spark internals", "ok", "Everything used beyond Spark's public API works")
    errors = "; ".join(f"{name} ({error})" for name, error in broken.items())
    return Check(
        "spark internals",
        "wrong",
        f"Spark {probe['spark']} lacks internals that deltalakedb uses: {errors}",
        "Use a version of PySpark that deltalakedb is tested with, or a newer deltalakedb",
    )


def _delta(result: dict[str, Any]) -> Check:
    if "missing" in result:
        return Check("delta on spark", "skipped", result["missing"], result["fix"])
    errors = "; ".join(f"{name} ({error})" for name, error in result["broken"].items())
    if not errors:
        return Check("delta on spark", "ok", "Delta's statements work on tables of a lake")
    return Check(
        "delta on spark",
        "wrong",
        f"Delta on Spark cannot use a lake: {errors}",
        f"Use the version of Delta that deltalakedb is tested with: {DELTA}",
    )


def _s3(probe: dict[str, Any]) -> Check:
    if probe["s3a"]:
        return Check("spark on s3", "ok", "Hadoop's S3A is on Spark's class path")
    package = f"org.apache.hadoop:hadoop-aws:{probe['hadoop']}"
    return Check(
        "spark on s3",
        "warning",
        "Hadoop's S3A is not on Spark's class path, so Spark cannot read tables on S3",
        f"Set spark.jars.packages={package} in spark-defaults.conf, or where your sessions begin",
    )


def _probe(command: Sequence[str]) -> dict[str, Any] | str:
    """The result, or one sentence that names the error."""
    with (
        tempfile.TemporaryDirectory(prefix="deltalakedb-doctor-") as folder,
        subprocess.Popen(  # noqa: S603 - this Python and a module of ours
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            out, err = process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return f"it did not answer for {_PATIENCE_SECONDS:g} seconds"
        finally:
            # Its Java, too, whatever happened.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    if process.returncode == 0 and lines:
        with suppress(json.JSONDecodeError):
            answer: dict[str, Any] = json.loads(lines[-1])
            return answer
    errors = [line.strip() for line in err.splitlines() if line.strip()]
    return errors[-1] if errors else f"it ended with {process.returncode}, without a message"
