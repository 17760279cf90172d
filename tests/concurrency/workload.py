"""The tables that writers fight over, and what every reader may rely on at any instant."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from concurrency.checker import KEY_PARAMETER
from concurrency.journal import Journal, Outcome, Part
from deltalakedb.actions import AddFile, RemoveFile
from deltalakedb.lake import Lake
from deltalakedb.transaction.commit import Committed

TABLES = ("a", "b", "c")
QUIET_TABLES = ("a", "b")
"""Nobody changes the metadata of these: blind appends to them can never be refused."""
TOKENS = 12
_TIME = 1_700_000_000_000

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("id", "long"), ("p", "string"))
        ],
    }
)


def add(path: str, *, data_change: bool = True) -> AddFile:
    """A file whose size and partition follow from its path."""
    folder = path.split("/", maxsplit=1)[0]
    value = folder.removeprefix("p=") if folder.startswith("p=") else None
    return AddFile(path, {"p": value}, size_of(path), _TIME, data_change)


def remove(path: str, *, data_change: bool = True) -> RemoveFile:
    """The end of `add(path)`."""
    return RemoveFile(path, data_change, deletion_timestamp=_TIME, size=size_of(path))


def size_of(path: str) -> int:
    """Any number, as long as it is always the same."""
    return 1 + sum(path.encode()) % 1000


def transfer_path(key: str, tables: tuple[str, ...]) -> str:
    """A file that is in all of `tables` or in none."""
    return f"transfer/{key}~{'~'.join(sorted(tables))}.parquet"


def transfer_tables(path: str) -> tuple[str, ...]:
    """The tables that share a transfer."""
    return tuple(path.removesuffix(".parquet").split("~")[1:])


def is_free(path: str) -> bool:
    """Whether one table alone may remove the file."""
    return path.startswith("p=")


def create_tables(lake: Lake, journal: Journal, location: Path) -> None:
    """Version 0 of every table, and the tokens in the first one."""
    for name in TABLES:
        properties = {"delta.isolationLevel": "WriteSerializable"} if name == "b" else {}
        key = f"create {name}"
        journal.trying(key, "create", {name: Part()})
        table = lake.create_table(
            name,
            location=str(location / name),
            schema=SCHEMA,
            partition_by=["p"],
            properties=properties,
        )
        (record,) = table.history()
        journal.heard(
            key,
            Outcome.ACKNOWLEDGED,
            versions={name: record.version},
            commit_uuids={name: record.commit_uuid},
        )
    tokens = tuple(f"token/{number}.parquet" for number in range(TOKENS))
    journal.trying("tokens", "append", {TABLES[0]: Part(tokens)})
    committed = lake.table(TABLES[0]).commit(
        [add(token) for token in tokens], operation_parameters={KEY_PARAMETER: "tokens"}
    )
    acknowledge(journal, "tokens", {TABLES[0]: committed})


def acknowledge(
    journal: Journal, key: str, results: Mapping[str, Committed], *, resolved: bool = False
) -> None:
    """Journal that a commit succeeded."""
    already = any(committed.already_committed for committed in results.values())
    journal.heard(
        key,
        Outcome.ALREADY if already else Outcome.ACKNOWLEDGED,
        versions={name: int(committed) for name, committed in results.items()},
        commit_uuids={name: committed.commit_uuid for name, committed in results.items()},
        resolved=resolved and not already,
    )


class Onlooker:
    """Looks at all tables at one instant, again and again."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._newest = dict.fromkeys(TABLES, -1)

    def look(self) -> Iterator[str]:
        """What is wrong with what can be seen now."""
        with self._lake.snapshot(TABLES) as at:
            files = {name: set(at[name].files()["path"].to_pylist()) for name in TABLES}
            for name, snapshot in at.items():
                if snapshot.version < self._newest[name]:
                    yield f"{name} went back from {self._newest[name]} to {snapshot.version}"
                self._newest[name] = snapshot.version
                if snapshot.num_files != len(files[name]):
                    yield (
                        f"{name} has {len(files[name])} files at version {snapshot.version}, "
                        f"and says {snapshot.num_files}"
                    )
                again = self._lake.table(name).snapshot(version=snapshot.version)
                for other in (snapshot, again):
                    if set(other.files()["path"].to_pylist()) != files[name]:
                        yield f"{name} at version {snapshot.version} does not repeat itself"
        yield from broken_promises(files)


def broken_promises(files: Mapping[str, set[str]]) -> Iterator[str]:
    """Where commits over many tables show in some of them only."""
    tokens: Counter[str] = Counter()
    for name, paths in files.items():
        for path in paths:
            if path.startswith("token/"):
                tokens[path] += 1
            elif path.startswith("transfer/"):
                for other in transfer_tables(path):
                    if path not in files[other]:
                        yield f"{path} is in {name} and not in {other}"
    if len(tokens) != TOKENS or set(tokens.values()) != {1}:
        yield f"the tokens are not in one place each: {tokens}"
