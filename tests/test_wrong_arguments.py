"""Wrong arguments of every public call are refused at the call, by one kind of error.

Nothing of what Python raises by itself comes out, and nothing is written.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import deltalakedb
from deltalakedb.errors import (
    ConfigurationError,
    InvalidActionError,
    InvalidArgumentError,
    InvalidConditionError,
    InvalidSchemaError,
)
from deltalakedb.lake import Lake
from deltalakedb.mirror.mirror import Mirror
from deltalakedb.snapshot import Snapshot
from deltalakedb.store.url import Engine
from deltalakedb.table import Table
from deltalakedb.transaction.transaction import Transaction
from deltalakedb.transaction_table import TransactionTable

from support.lake import SCHEMA
from support.store import Catalogs

THING = object()
# What is wrong for an argument of each kind.
BAD: dict[str, list[Any]] = {
    "text": [None, 1, "", " ", [], ["x"], {}, b"x", THING],
    "table": [None, 1, [], ["x"], {}, b"x", THING],
    "text?": [1, [], ["x"], {}, b"x", THING],
    "words?": [1, "", [], ["x"], {}, b"x", THING],
    "bytes": [None, 1, "x", [], {}, THING],
    "flag": [None, 0, 1, "", "x", [], THING],
    "count": [None, -1, 1.5, "x", "", True, [], THING],
    "count?": [-1, 1.5, "x", "", True, [], THING],
    "positive?": [0, -1, 1.5, "x", "", True, [], THING],
    "number": [None, "x", "", True, [], float("nan"), THING],
    "number?": ["x", "", True, [], float("nan"), THING],
    "version?": [1.5, "x", "", True, [], THING],
    "time?": [1, "", "x", [], True, THING],
    "texts": [None, 1, "x", "", [1], [None], [""], {"x": 1}, THING],
    "texts?": [1, "x", "", [1], [None], [""], {"x": 1}, THING],
    "columns": [None, 1, [1], [None], [""], {"x": 1}, THING],
    "mapping?": [1, "x", [], [1], {1: "x"}, {None: "x"}, THING],
    "properties": [None, 1, "x", [], {1: "x"}, {"k": None}, {"k": []}, {"k": THING}, {"": "x"}],
    "properties?": [1, "x", [], {1: "x"}, {"k": None}, {"k": []}, {"k": THING}, {"": "x"}],
    "schema": [None, 1, "", "x", [], ["x"], {}, THING],
    "schema?": [1, "", "x", ["x"], THING],
    "rows": [None, 1, "", "x", [1], {}, THING],
    "condition?": [1, "", [1], {}, THING],
    "actions": [None, 1, "x", {}, [1], [None], [{}], [{"add": 1}], THING],
    "app_txn?": [1, "", "x", [], ("", 1), (1, "x"), ("x", True), ("x", 1.5), THING],
    "function?": [1, "x", [], THING],
    "object?": [1, "x", [], THING],
}


ROWS = pa.table({"id": [1], "day": ["x"]})
WRITE = {
    "merge_schema": "flag",
    "app_txn": "app_txn?",
    "user_metadata": "text?",
    "target_bytes": "positive?",
}
OVERWRITE = {
    **WRITE,
    "where": "condition?",
    "overwrite_schema": "flag",
    "partition_by": "texts?",
    "dynamic": "flag",
}
LOOK = {"operation": "text?", "committer": "text?", "since": "time?", "until": "time?"}
COMMIT = {
    "operation": "text",
    "operation_parameters": "mapping?",
    "operation_metrics": "mapping?",
    "app_txn": "app_txn?",
    "read": "object?",
    "enforced": "texts",
}
NEW = {
    "partition_by": "texts",
    "cluster_by": "columns",
    "properties": "properties?",
}
# Of each public call: arguments that are right, and the kinds of all its arguments.
CALLS: dict[str, dict[str, tuple[dict[str, Any], dict[str, str]]]] = {
    "deltalakedb": {
        "connect": (
            {"url": "{url}"},
            {
                "url": "text",
                "committer": "words?",
                "retry": "object?",
                "clock": "object?",
                "storage_options": "mapping?",
                "mirror": "text",
                "create": "flag",
                "warehouse": "words?",
            },
        ),
        "migrate": ({"url": "{url}"}, {"url": "text"}),
    },
    "lake": {
        "ratify": (
            {"location": "{folder}/t", "version": 9, "commit": b"x"},
            {"location": "text", "version": "count", "commit": "bytes", "committer": "words?"},
        ),
        "create_table": (
            {"name": "n", "location": "{folder}/n", "schema": SCHEMA},
            {
                "name": "text",
                "location": "words?",
                "schema": "schema",
                **NEW,
                "description": "text?",
                "if_not_exists": "flag",
            },
        ),
        "create_table_as": (
            {"name": "n", "data": ROWS, "location": "{folder}/n"},
            {
                "name": "text",
                "data": "rows",
                "location": "words?",
                "schema": "schema?",
                **NEW,
                "where": "condition?",
                "app_txn": "app_txn?",
                "user_metadata": "text?",
                "target_bytes": "positive?",
            },
        ),
        "clone_table": (
            {"source": "t", "location": "{folder}/n"},
            {
                "source": "table",
                "location": "words?",
                "name": "words?",
                "version": "version?",
                "timestamp": "time?",
                "replace": "flag",
                "properties": "properties?",
            },
        ),
        "convert_table": (
            {"location": "{folder}/plain"},
            {
                "location": "text",
                "name": "words?",
                "partition_schema": "schema?",
                "properties": "properties?",
                "description": "text?",
                "zone": "object?",
                "progress": "function?",
            },
        ),
        "import_table": (
            {"location": "{folder}/other"},
            {
                "location": "text",
                "name": "words?",
                "progress": "function?",
                "stage_from": "count?",
                "allowed_roots": "columns",
                "trust_commits": "flag",
                "spark": "object?",
            },
        ),
        "discard_import": ({"location": "{folder}/other"}, {"location": "text"}),
        "open_storage": ({"location": "{folder}/t"}, {"location": "text"}),
        "table": ({"name": "t"}, {"name": "table"}),
        "set_warehouse": ({"location": "{folder}/lake"}, {"location": "words?"}),
        "drop_table": ({"name": "t"}, {"name": "table", "force": "flag"}),
        "export": (
            {"name": "t"},
            {"name": "table", "drop_features": "flag", "verify": "flag", "progress": "function?"},
        ),
        "verify": ({"name": "t"}, {"name": "table", "spark": "object?", "progress": "function?"}),
        "repair": ({"name": "t"}, {"name": "table", "dry_run": "flag", "progress": "function?"}),
        "adopt": ({"name": "t"}, {"name": "table"}),
        "expire": (
            {"name": "t", "archive": "{folder}/a"},
            {
                "name": "table",
                "older_than": "time?",
                "archive": "words?",
                "dry_run": "flag",
                "spark": "object?",
            },
        ),
        "restore_expired": (
            {"name": "t", "archive": "{folder}/a"},
            {"name": "table", "archive": "text"},
        ),
        "sql": ({"spark": None, "query": "SELECT 1"}, {"spark": "object?", "query": "text"}),
        "serve_metrics": ({"port": 0}, {"port": "count", "host": "text"}),
        "snapshot": ({"names": ["t"]}, {"names": "columns"}),
    },
    "mirror": {
        "run_once": ({}, {"concurrency": "positive?"}),
        "worker": ({}, {"concurrency": "positive?", "lease_seconds": "number"}),
        "retry": ({}, {"table": "words?"}),
    },
    "table": {
        "allow_roots": ({"roots": []}, {"roots": "columns"}),
        "actions": ({"version": 0}, {"version": "count"}),
        "snapshot": ({}, {"version": "version?", "timestamp": "time?"}),
        "history": ({}, {"limit": "count?", **LOOK}),
        "iter_history": ({}, LOOK),
        "commit": (
            {"actions": []},
            {
                "actions": "actions",
                **COMMIT,
                "expected_version": "version?",
                "replaces_all": "flag",
                "base": "object?",
            },
        ),
        "append": ({"data": ROWS}, {"data": "rows", **WRITE}),
        "overwrite": ({"data": ROWS}, {"data": "rows", **OVERWRITE}),
        "set_properties": ({"properties": {"k": "v"}}, {"properties": "properties"}),
        "unset_properties": ({"names": ["k"]}, {"names": "texts", "if_exists": "flag"}),
        "add_columns": ({"columns": SCHEMA}, {"columns": "schema"}),
        "cluster_by": ({"columns": ["id"]}, {"columns": "columns"}),
        "drop_feature": ({"name": "appendOnly"}, {"name": "text"}),
        "replace": (
            {"schema": SCHEMA},
            {"schema": "schema", **NEW, "description": "text?", "operation": "text"},
        ),
        "rename": ({"name": "n"}, {"name": "text"}),
        "optimize": (
            {},
            {
                "where": "condition?",
                "target_bytes": "positive?",
                "run": "function?",
                "progress": "function?",
            },
        ),
        "restore": ({}, {"version": "version?", "timestamp": "time?"}),
        "vacuum": (
            {},
            {
                "retention_hours": "number?",
                "dry_run": "flag",
                "allow_short_retention": "flag",
                "progress": "function?",
            },
        ),
        "export": (
            {},
            {"drop_features": "flag", "verify": "flag", "progress": "function?"},
        ),
        "verify": ({}, {"spark": "object?", "progress": "function?"}),
        "repair": ({}, {"dry_run": "flag", "progress": "function?"}),
        "expire": (
            {"archive": "{folder}/a"},
            {"older_than": "time?", "archive": "words?", "dry_run": "flag", "spark": "object?"},
        ),
        "restore_expired": ({"archive": "{folder}/a"}, {"archive": "text"}),
    },
    "snapshot": {
        "has_file": ({"path": "x"}, {"path": "text", "dv_id": "text?"}),
        "files": (
            {},
            {
                "where": "condition?",
                "columns": "texts?",
                "limit": "count?",
                "offset": "count",
            },
        ),
        "iter_files": (
            {},
            {"batch_size": "positive?", "where": "condition?", "columns": "texts?"},
        ),
        "to_arrow_dataset": ({}, {"where": "condition?"}),
        "to_arrow": ({}, {"where": "condition?", "columns": "texts?"}),
        "to_polars": ({}, {"where": "condition?", "columns": "texts?"}),
        "to_duckdb": (
            {},
            {"where": "condition?", "connection": "object?", "columns": "texts?"},
        ),
    },
    "transaction": {"table": ({"name": "t"}, {"name": "table"})},
    "transaction table": {
        "add_actions": ({"actions": []}, {"actions": "actions", **COMMIT}),
        "append": ({"data": ROWS}, {"data": "rows", **WRITE}),
        "overwrite": ({"data": ROWS}, {"data": "rows", **OVERWRITE}),
    },
}


@dataclass
class World:
    """A lake with a table, and what the calls are made on."""

    url: str
    folder: Path
    lake: Lake
    table: Table

    def filled(self, right: dict[str, Any]) -> dict[str, Any]:
        def one(value: Any) -> Any:
            if isinstance(value, str):
                return value.replace("{url}", self.url).replace("{folder}", str(self.folder))
            return value

        return {name: one(value) for name, value in right.items()}

    def call(self, target: str, call: str, arguments: dict[str, Any]) -> None:
        if target.startswith("transaction"):
            with self.lake.transaction() as tx:
                on: Any = tx if target == "transaction" else tx.table("t")
                getattr(on, call)(**arguments)
            return
        whole = {
            "deltalakedb": deltalakedb,
            "lake": self.lake,
            "mirror": self.lake.mirror,
            "table": self.table,
            "snapshot": self.table.snapshot(),
        }
        getattr(whole[target], call)(**arguments)

    def state(self) -> object:
        """What a call that is refused leaves as it is."""
        files = sorted(str(path) for path in self.folder.rglob("*"))
        tables = [(t.name, t.refresh()) for t in self.lake.tables()]
        return tables, self.lake.warehouse, files


# Methods of these classes that users do not call, or that take nothing.
CLASSES = {
    "lake": Lake,
    "mirror": Mirror,
    "table": Table,
    "snapshot": Snapshot,
    "transaction": Transaction,
    "transaction table": TransactionTable,
}
INSIDE = {
    "lake.connect",  # deltalakedb.connect
    "lake.proposals",
    "lake.until_closed",
    "mirror.check_log",
    "mirror.publish",
    "mirror.publish_all",
    "mirror.after_commit",
    "mirror.committing",
    "mirror.run",  # its arguments are those of run_once
    "table.submit",
    "table.upgrade_protocol",  # its only argument is *features: see below
}
# What is wrong inside of a schema, a condition or an action has a class of its own.
OF_CONTENT = (InvalidActionError, InvalidConditionError, InvalidSchemaError)


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


@pytest.mark.parametrize("target", CLASSES)
def test_every_argument_of_every_public_method_is_tried(target: str) -> None:
    for name, method in inspect.getmembers(CLASSES[target], callable):
        if name.startswith("_") or f"{target}.{name}" in INSIDE or not parameters(method):
            continue
        _, kinds = CALLS[target][name]
        assert set(kinds) == parameters(method), f"{target}.{name}"


@pytest.fixture(scope="module")
def world(
    engine: Engine, catalogs: Catalogs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "plain").mkdir()
    pq.write_table(ROWS, folder / "plain" / "a.parquet")
    with catalogs.fresh(engine) as url, deltalakedb.connect(url) as lake:
        table = lake.create_table("t", location=str(folder / "t"), schema=SCHEMA)
        table.append(ROWS)
        # Checksums are written in the background.
        lake.mirror.drain()
        yield World(url, folder, lake, table)


@pytest.mark.parametrize(
    ("target", "call"), [(target, call) for target, calls in CALLS.items() for call in calls]
)
def test_wrong_arguments_are_refused_and_nothing_is_written(
    world: World, target: str, call: str
) -> None:
    right, kinds = CALLS[target][call]
    before = world.state()
    complaints = []
    for name, kind in kinds.items():
        for value in BAD[kind]:
            try:
                world.call(target, call, {**world.filled(right), name: value})
                complaints.append(f"{name}={value!r} was accepted")
            except OF_CONTENT:
                pass
            except Exception as error:  # noqa: BLE001 - that is what is tested
                if not isinstance(error, InvalidArgumentError):
                    complaints.append(f"{name}={value!r}: {type(error).__name__}: {error}")
    assert not complaints
    assert world.state() == before


@pytest.mark.parametrize("value", BAD["text"])
def test_a_feature_that_is_no_text_is_refused(world: World, value: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        world.table.upgrade_protocol("appendOnly", value)


def test_a_wrong_argument_is_a_type_error_and_a_value_error_after_pickling_too() -> None:
    error = InvalidArgumentError("what", why="why", fix="fix")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert isinstance(again, TypeError)
    assert isinstance(again, ValueError)
    assert isinstance(again, ConfigurationError)
    assert str(again) == str(error) == "what. Why. Fix."
