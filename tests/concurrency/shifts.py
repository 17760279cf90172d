"""Transactions over several tables that depend on what they read, and what must hold of them.

People are on duty in three shifts, a table each. Whoever comes or goes looks at all of them first:
there is always somebody on duty, and never more than `MOST`. Files of pairs are in all of their
tables or in none. Noise is added without a look at anything.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from concurrency.checker import KEY_PARAMETER
from concurrency.isolation import partition_of
from concurrency.journal import Journal, Look, Outcome, Part, Sight
from concurrency.workload import SCHEMA, acknowledge, add, remove
from deltalakedb.actions import Action
from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.lake import Lake
from deltalakedb.snapshot import Snapshot
from deltalakedb.transaction.commit import Committed
from deltalakedb.transaction_table import TransactionTable

SHIFTS = ("early", "late", "night")
MOST = 4
DUTY = "duty"
PAIR = "pair"
Results = Mapping[str, Committed]
Stop = Callable[[], bool]


def open_shifts(lake: Lake, journal: Journal, location: Path, *, level: str) -> None:
    """Create the tables; one person is on duty."""
    for name in SHIFTS:
        key = f"create {name}"
        journal.trying(key, "create", {name: Part()})
        table = lake.create_table(
            name,
            location=str(location / name),
            schema=SCHEMA,
            partition_by=["p"],
            properties={"delta.isolationLevel": level},
        )
        (record,) = table.history()
        journal.heard(
            key,
            Outcome.ACKNOWLEDGED,
            versions={name: 0},
            commit_uuids={name: record.commit_uuid},
        )
    path = f"p={DUTY}/first.parquet"
    journal.trying("first", "noise", {SHIFTS[0]: Part((path,))})
    committed = lake.table(SHIFTS[0]).commit(
        [add(path)], operation_parameters={KEY_PARAMETER: "first"}
    )
    acknowledge(journal, "first", {SHIFTS[0]: committed})


def pair_path(key: str, names: tuple[str, ...]) -> str:
    """A file that is in all of `names` or in none."""
    return f"p={PAIR}/{key}~{'~'.join(sorted(names))}.parquet"


def pair_names(path: str) -> tuple[str, ...]:
    """The tables that share a file."""
    return tuple(path.removesuffix(".parquet").split("~")[1:])


def broken_rules(look: Look) -> Iterator[str]:
    """What can never be seen of all tables at one instant."""
    on_duty = _people(look.sights)
    if not 1 <= len(on_duty) <= MOST:
        yield f"{look.key} saw {len(on_duty)} people on duty: {on_duty}"
    for name, sight in look.sights.items():
        for path in sight.paths:
            if partition_of(path) != PAIR or sight.partition is not None:
                continue
            halves = [other for other in pair_names(path) if path not in look.sights[other].paths]
            if halves:
                yield f"{look.key} saw {path} in {name} and not in {halves}"


def _people(sights: Mapping[str, Sight]) -> list[tuple[str, str]]:
    return sorted(
        (name, path)
        for name, sight in sights.items()
        for path in sight.paths
        if partition_of(path) == DUTY
    )


class Person:
    """Reads and writes all tables, with its own randomness."""

    def __init__(self, lake: Lake, journal: Journal, name: str) -> None:
        self._lake = lake
        self._journal = journal
        self._name = name
        self._random = random.Random(name)
        self._count = 0
        self._announced = False
        self._operations: dict[Callable[[str], Results | None], int] = {
            self._shift: 10,
            self._pair: 3,
            self._part: 3,
            self._noise: 2,
        }

    def write(self, stop: Stop) -> None:
        """Commit until told to stop."""
        operations, weights = zip(*self._operations.items(), strict=True)
        while not stop():
            (operation,) = self._random.choices(operations, weights)
            self._attempt(operation)
        self._journal.end()

    def watch(self, stop: Stop) -> None:
        """Look at all tables until told to stop: in transactions, and in snapshots."""
        while not stop():
            for look in (self._look_at_snapshots, self._look_in_transaction):
                look(self._next_key())
                self._journal.read()
        self._journal.end()

    def _next_key(self) -> str:
        self._count += 1
        return f"{self._name}-{self._count}"

    def _attempt(self, operation: Callable[[str], Results | None]) -> None:
        key, self._announced = self._next_key(), False
        try:
            results = operation(key)
        except DeltaLakeDbError as error:
            if not self._announced:
                self._journal.violation(f"{key} could not read: {type(error).__name__}: {error}")
                return
            self._journal.heard(key, Outcome.REFUSED, error=error)
        else:
            if results is not None:
                acknowledge(self._journal, key, results)

    def _announce(self, key: str, operation: str, parts: Mapping[str, Part]) -> None:
        self._announced = True
        self._journal.trying(key, operation, parts)

    # --- reading --------------------------------------------------------------------------

    def _sight(self, snapshot: Snapshot, partition: str | None = None) -> Sight:
        where = None if partition is None else f"p = '{partition}'"
        if self._random.random() < 0.5:
            paths = snapshot.files(where)["path"].to_pylist()
        else:
            batches = snapshot.iter_files(where=where, columns=["path"])
            paths = [path for batch in batches for path in batch["path"].to_pylist()]
        return Sight(snapshot.version, frozenset(paths), partition)

    def _seen(self, key: str, sights: Mapping[str, Sight]) -> None:
        self._journal.saw(key, sights)
        for problem in broken_rules(Look(key, sights)):
            self._journal.violation(problem)

    def _look_at_snapshots(self, key: str) -> None:
        with self._lake.snapshot(SHIFTS) as at:
            self._seen(key, {name: self._sight(at[name]) for name in SHIFTS})

    def _look_in_transaction(self, key: str) -> None:
        with self._lake.transaction() as tx:
            # What comes between the first table and the last one shows in none of them.
            order = self._random.sample(SHIFTS, len(SHIFTS))
            self._seen(key, {name: self._sight(tx.table(name).snapshot()) for name in order})

    # --- writing --------------------------------------------------------------------------

    def _change(self, table: TransactionTable, key: str, part: Part) -> None:
        actions: list[Action] = [*map(remove, part.removes), *map(add, part.adds)]
        table.add_actions(actions, operation_parameters={KEY_PARAMETER: key})

    def _shift(self, key: str) -> Results | None:
        """Come on duty or go, if what is seen of all shifts allows it."""
        partition = self._random.choice([DUTY, DUTY, None])
        with self._lake.transaction() as tx:
            order = self._random.sample(SHIFTS, len(SHIFTS))
            sights = {name: self._sight(tx.table(name).snapshot(), partition) for name in order}
            self._seen(key, sights)
            people = _people(sights)
            coming = len(people) == 1 or (len(people) < MOST and self._random.random() < 0.5)
            if coming:
                name, part = self._random.choice(SHIFTS), Part((f"p={DUTY}/{key}.parquet",))
            else:
                name, path = self._random.choice(people)
                part = Part((), (path,))
            self._change(tx.table(name), key, part)
            self._announce(key, "shift", {name: part})
        return tx.results

    def _pair(self, key: str) -> Results | None:
        names = tuple(self._random.sample(SHIFTS, self._random.randint(2, 3)))
        part = Part((pair_path(key, names),))
        with self._lake.transaction() as tx:
            for name in names:
                self._change(tx.table(name), key, part)
            self._announce(key, "pair", dict.fromkeys(names, part))
        return tx.results

    def _part(self, key: str) -> Results | None:
        """Take a pair back, after a look at one of its tables."""
        name = self._random.choice(SHIFTS)
        with self._lake.transaction() as tx:
            sight = self._sight(tx.table(name).snapshot(), PAIR)
            self._journal.saw(key, {name: sight})
            if not sight.paths:
                return None
            path = self._random.choice(sorted(sight.paths))
            part, names = Part((), (path,)), pair_names(path)
            for other in names:
                self._change(tx.table(other), key, part)
            self._announce(key, "part", dict.fromkeys(names, part))
        return tx.results

    def _noise(self, key: str) -> Results | None:
        name, path = self._random.choice(SHIFTS), f"p=noise/{key}.parquet"
        table = self._lake.table(name)
        assert table.version >= 0
        self._announce(key, "noise", {name: Part((path,))})
        return {name: table.commit([add(path)], operation_parameters={KEY_PARAMETER: key})}
