"""A writer: random commits of every kind over a few tables, journalled before and after."""

import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from concurrency.checker import KEY_PARAMETER, KEY_PROPERTY
from concurrency.journal import Journal, Outcome, Part, Sight
from concurrency.workload import (
    QUIET_TABLES,
    TABLES,
    Onlooker,
    acknowledge,
    add,
    is_free,
    remove,
    transfer_path,
    transfer_tables,
)
from deltalakedb.actions import Action
from deltalakedb.errors import (
    CatalogConnectionLostError,
    CatalogUnreachableError,
    CommitOutcomeUnknownError,
    DeltaLakeDbError,
)
from deltalakedb.lake import Lake
from deltalakedb.table import Table
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.commit import Committed
from deltalakedb.transaction.transaction import Transaction
from deltalakedb.transaction_table import TransactionTable

Results = Mapping[str, Committed]
Stop = Callable[[], bool]

_REMOVED = {"ConcurrentDeleteReadError", "ConcurrentDeleteDeleteError"}
REFUSALS: Mapping[str, set[str]] = {
    "append": set(),
    "big append": set(),
    "late append": set(),
    "own app": set(),
    "transfer": set(),
    "transfer by app": set(),
    "delete": _REMOVED,
    "optimise": _REMOVED,
    "rewrite": _REMOVED,
    "rewrite after read": {*_REMOVED, "ConcurrentAppendError"},
    "move": {*_REMOVED, "ConcurrentAppendError"},
    "take back": {*_REMOVED, "ConcurrentAppendError"},
    "shared app": {"ConcurrentTransactionError"},
    "expected": {"UnexpectedVersionError"},
    "properties": set(),
    "shift": {*_REMOVED, "ConcurrentAppendError"},
    "part": {*_REMOVED, "ConcurrentAppendError"},
    "pair": set(),
    "noise": set(),
}
"""The conflicts that each operation may meet, beside a change of metadata where there are any."""


def legitimate(operation: str, error: str, tables: set[str]) -> bool:
    """Whether Delta's rules allow an operation on `tables`, read or written, to be refused so."""
    if error == "MetadataChangedError":
        return not tables <= set(QUIET_TABLES)
    return error in REFUSALS.get(operation, set())


class Writer:
    """One writer with its own randomness."""

    def __init__(
        self, lake: Lake, journal: Journal, name: str, *, blind: bool, outages: bool = False
    ) -> None:
        self._lake = lake
        self._journal = journal
        self._name = name
        self._outages = outages
        self._last_step = ""
        if outages:
            lake._committer._step = self._passed
        self._random = random.Random(name)
        self._tables = {table: lake.table(table) for table in TABLES}
        self._count = 0
        self._app_version = 0
        mixed: list[tuple[Callable[[str], Results | None], int]] = [
            (self._append, 20),
            (self._big_append, 1),
            (self._late_append, 1),
            (self._own_app, 6),
            (self._shared_app, 5),
            (self._delete, 10),
            (self._rewrite, 6),
            (self._rewrite_after_read, 4),
            (self._optimise, 5),
            (self._expected, 5),
            (self._properties, 2),
            (self._transfer, 12),
            (self._transfer_by_app, 5),
            (self._take_back, 6),
            (self._move, 10),
        ]
        only_blind: list[tuple[Callable[[str], Results | None], int]] = [
            (self._append, 10),
            (self._big_append, 1),
            (self._own_app, 3),
            (self._transfer, 5),
        ]
        operations = only_blind if blind else mixed
        self._names = QUIET_TABLES if blind else TABLES
        self._operations = [operation for operation, _ in operations]
        self._weights = [weight for _, weight in operations]
        self._announced: str | None = None

    def run(self, stop: Stop) -> None:
        """Commit until told to stop."""
        while not stop():
            (operation,) = self._random.choices(self._operations, self._weights)
            self.attempt(operation)

    def attempt(self, operation: Callable[[str], Results | None]) -> None:
        """Make one commit and journal what it became."""
        self._count += 1
        key = f"{self._name}-{self._count}"
        self._announced = None
        try:
            results = operation(key)
        except DeltaLakeDbError as error:
            self._failed(key, error)
        else:
            if results is not None:
                # Without the last step of a commit, an earlier try was found in the ledger.
                resolved = self._outages and self._last_step != "committed"
                acknowledge(self._journal, key, results, resolved=resolved)
                self._check_own(results)

    def _passed(self, step: str) -> None:
        self._last_step = step

    def _failed(self, key: str, error: DeltaLakeDbError) -> None:
        if self._announced is None:
            # A read: while the server is away it may fail, and nothing was asked of it.
            if self._outages and isinstance(
                error, (CatalogConnectionLostError, CatalogUnreachableError)
            ):
                time.sleep(0.02)
                return
            self._journal.violation(f"{key} could not read: {type(error).__name__}: {error}")
            return
        unknown = isinstance(error, CommitOutcomeUnknownError)
        self._journal.heard(key, Outcome.UNKNOWN if unknown else Outcome.REFUSED, error=error)
        # Whoever lost looks at the tables again.
        self._tables = {name: self._reopened(name) for name in TABLES}

    def _reopened(self, name: str) -> Table:
        lake = self._lake
        return Table(lake.store, lake._committer, lake.mirror, self._tables[name]._record)

    def _check_own(self, results: Results) -> None:
        if self._random.random() > 0.05 or self._outages:
            return
        for name, committed in results.items():
            version = self._lake.table(name).snapshot().version
            if version < committed:
                self._journal.violation(f"{name} is at {version} after version {committed}")

    def _announce(
        self,
        key: str,
        operation: str,
        parts: Mapping[str, Part],
        app_txn: tuple[str, int] | None = None,
    ) -> None:
        self._announced = key
        self._journal.trying(key, operation, parts, app_txn)

    def _pick(self) -> str:
        return self._random.choice(self._names)

    def _new_paths(self, key: str, count: int) -> tuple[str, ...]:
        return tuple(f"p={self._random.randrange(3)}/{key}-{n}.parquet" for n in range(count))

    def _free_files(self, name: str, count: int) -> tuple[str, ...]:
        """Some files of the newest snapshot, which the next commit starts from."""
        files = self._tables[name].snapshot().files()["path"].to_pylist()
        free = [path for path in files if is_free(path)]
        return tuple(self._random.sample(free, min(count, len(free))))

    # --- one table ------------------------------------------------------------------------

    def _commit(
        self,
        key: str,
        operation: str,
        name: str,
        part: Part,
        *,
        data_change: bool = True,
        app_txn: tuple[str, int] | None = None,
        expected_version: int | None = None,
        read: ReadSet | None = None,
    ) -> Results:
        # The handle looks at the table before the commit is announced.
        assert self._tables[name].version >= 0
        self._announce(key, operation, {name: part}, app_txn)
        actions: list[Action] = [
            *(remove(path, data_change=data_change) for path in part.removes),
            *(add(path, data_change=data_change) for path in part.adds),
        ]
        committed = self._tables[name].commit(
            actions,
            operation_parameters={KEY_PARAMETER: key},
            app_txn=app_txn,
            expected_version=expected_version,
            read=read,
        )
        return {name: committed}

    def _append(self, key: str) -> Results | None:
        paths = self._new_paths(key, self._random.randint(1, 3))
        return self._commit(key, "append", self._pick(), Part(paths))

    def _big_append(self, key: str) -> Results | None:
        # More rows than go in one by one.
        return self._commit(key, "big append", self._pick(), Part(self._new_paths(key, 80)))

    def _late_append(self, key: str) -> Results | None:
        """A commit that others have overtaken by more than is looked at while holding the head."""
        name = self._random.choice(QUIET_TABLES)
        table = self._tables[name]
        base = table.version
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            if self._lake.table(name).version > base + 70:
                break
            time.sleep(0.05)
        return self._commit(key, "late append", name, Part(self._new_paths(key, 1)))

    def _own_app(self, key: str) -> Results | None:
        # Half of the time the version before is sent again, as after a crash.
        self._app_version += self._random.randint(0, 1)
        app_txn = (self._name, self._app_version)
        part = Part(self._new_paths(key, 1))
        return self._commit(key, "own app", QUIET_TABLES[0], part, app_txn=app_txn)

    def _shared_app(self, key: str) -> Results | None:
        name = QUIET_TABLES[1]
        with self._lake.store.read() as session:
            newest = self._lake.store.newest_app_txn(session, self._tables[name].table_id, "shared")
        version = (newest[0] if newest else 0) + self._random.randint(0, 2)
        part = Part(self._new_paths(key, 1))
        return self._commit(key, "shared app", name, part, app_txn=("shared", version))

    def _delete(self, key: str) -> Results | None:
        name = self._pick()
        paths = self._free_files(name, self._random.randint(1, 4))
        return self._commit(key, "delete", name, Part((), paths)) if paths else None

    def _rewrite(self, key: str) -> Results | None:
        name = self._pick()
        paths = self._free_files(name, 2)
        part = Part(self._new_paths(key, 1), paths)
        return self._commit(key, "rewrite", name, part) if paths else None

    def _rewrite_after_read(self, key: str) -> Results | None:
        name = self._pick()
        paths = self._free_files(name, 1)
        read = ReadSet(whole_table=True)
        if self._random.random() < 0.7:
            read = ReadSet(partitions=lambda values: values["p"] == "1")
        part = Part(self._new_paths(key, 1), paths)
        return self._commit(key, "rewrite after read", name, part, read=read) if paths else None

    def _optimise(self, key: str) -> Results | None:
        name = self._pick()
        paths = self._free_files(name, 3)
        part = Part(self._new_paths(key, 1), paths)
        return self._commit(key, "optimise", name, part, data_change=False) if paths else None

    def _expected(self, key: str) -> Results | None:
        name = QUIET_TABLES[0]
        expected = self._tables[name].refresh()
        part = Part(self._new_paths(key, 1))
        return self._commit(key, "expected", name, part, expected_version=expected)

    def _properties(self, key: str) -> Results | None:
        name = TABLES[-1]
        self._tables[name].refresh()
        self._announce(key, "properties", {name: Part()})
        return {name: self._tables[name].set_properties({KEY_PROPERTY: key})}

    # --- many tables ----------------------------------------------------------------------

    def _transfer(self, key: str) -> Results | None:
        return self._transferred(key, "transfer", None)

    def _transfer_by_app(self, key: str) -> Results | None:
        self._app_version += self._random.randint(0, 1)
        return self._transferred(key, "transfer by app", (f"{self._name}.many", self._app_version))

    def _transferred(
        self, key: str, operation: str, app_txn: tuple[str, int] | None
    ) -> Results | None:
        chosen = self._random.sample(self._names, self._random.randint(2, len(self._names)))
        if app_txn is not None:
            # Sent again, it must go to the same tables.
            chosen = list(QUIET_TABLES)
        path = transfer_path(key, tuple(chosen))
        with self._lake.transaction() as tx:
            for name in chosen:
                tx.table(name).add_actions(
                    [add(path)], operation_parameters={KEY_PARAMETER: key}, app_txn=app_txn
                )
            self._announce(key, operation, {name: Part((path,)) for name in chosen}, app_txn)
        return tx.results

    def _take_back(self, key: str) -> Results | None:
        with self._lake.transaction() as tx:
            home = self._pick()
            paths = self._looked(tx, key, home)
            transfers = [path for path in paths if path.startswith("transfer/")]
            if not transfers:
                return None
            path = self._random.choice(transfers)
            names = transfer_tables(path)
            for name in names:
                if path not in self._looked(tx, key, name):
                    self._journal.violation(f"{key} saw {path} in {home} and not in {name}")
                tx.table(name).add_actions(
                    [remove(path)], operation_parameters={KEY_PARAMETER: key}
                )
            self._announce(key, "take back", {name: Part((), (path,)) for name in names})
        return tx.results

    def _looked(self, tx: Transaction[TransactionTable], key: str, name: str) -> list[str]:
        """The files of a table as a transaction sees it; journalled, since it depends on them."""
        snapshot = tx.table(name).snapshot()
        paths: list[str] = snapshot.files()["path"].to_pylist()
        self._journal.saw(key, {name: Sight(snapshot.version, frozenset(paths))})
        return paths

    def _move(self, key: str) -> Results | None:
        """Move a token from wherever it is to another table, perhaps after a look at a third."""
        source, target, other = self._random.sample(self._names, 3)
        with self._lake.transaction() as tx:
            if self._random.random() < 0.3:
                self._looked(tx, key, other)
            paths = self._looked(tx, key, source)
            tokens = [path for path in paths if path.startswith("token/")]
            if not tokens:
                return None
            token = self._random.choice(tokens)
            changes: Mapping[str, Action] = {source: remove(token), target: add(token)}
            for name, action in changes.items():
                tx.table(name).add_actions([action], operation_parameters={KEY_PARAMETER: key})
            parts = {source: Part((), (token,)), target: Part((token,))}
            self._announce(key, "move", parts)
        return tx.results


def write(lake: Lake, path: Path, *, blind: bool, outages: bool, stop: Stop) -> None:
    """One life of a writer; the name of its journal is its name."""
    journal = Journal(path)
    Writer(lake, journal, path.stem, blind=blind, outages=outages).run(stop)
    journal.end()


def read(lake: Lake, path: Path, *, outages: bool, stop: Stop) -> None:
    """One life of a reader."""
    journal = Journal(path)
    onlooker = Onlooker(lake)
    while not stop():
        try:
            problems = list(onlooker.look())
        except (CatalogConnectionLostError, CatalogUnreachableError) as error:
            if not outages:
                journal.violation(f"could not read: {type(error).__name__}: {error}")
            time.sleep(0.02)
            continue
        for problem in problems:
            journal.violation(problem)
        journal.read()
    journal.end()
