"""Real logs of other engines survive a trip through the values."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deltalakedb.actions import (
    AddFile,
    Metadata,
    Protocol,
    from_dict,
    parse_commit,
    parse_line,
    serialise,
    serialise_commit,
    to_dict,
)
from deltalakedb.actions.datatypes import physical_name, schema_from_json, schema_to_json
from deltalakedb.actions.features import check_readable
from deltalakedb.actions.partition import decode_partition_value
from deltalakedb.errors import UnsupportedFeatureError

from support.statistics import parse_stats

_ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(os.environ.get("DELTALAKEDB_GOLDEN", _ROOT / "../shared/golden"))

pytestmark = pytest.mark.skipif(
    not GOLDEN.is_dir(), reason="no golden tables: set DELTALAKEDB_GOLDEN to their folder"
)


def exact(text: str | bytes) -> Any:
    return json.loads(text, parse_float=Decimal)


def commit_files() -> list[Path]:
    return sorted(path for path in GOLDEN.glob("*/_delta_log/**/*.json") if path.stat().st_size)


def lines() -> Iterator[tuple[str, str]]:
    for path in commit_files():
        for number, line in enumerate(path.read_text("utf-8").split("\n"), start=1):
            if line.strip():
                yield f"{path.relative_to(GOLDEN)}:{number}", line


def test_there_are_golden_lines_to_test() -> None:
    assert sum(1 for _ in lines()) > 1000


def test_every_line_comes_back_as_an_equivalent_document() -> None:
    for where, line in lines():
        again: dict[str, Any] = {}
        for action in parse_line(line, where=where):
            again.update(exact(serialise(action)))
        assert again == exact(line), where


def test_every_value_equals_itself_after_its_own_canonical_form() -> None:
    for where, line in lines():
        for action in parse_line(line, where=where):
            assert parse_line(serialise(action)) == [action], where


def test_every_commit_parses_and_its_canonical_bytes_are_a_fixed_point() -> None:
    for path in commit_files():
        actions = parse_commit(path.read_bytes(), file=path.name)
        canonical = serialise_commit(actions)
        assert serialise_commit(parse_commit(canonical, file="canonical")) == canonical
        key = json.dumps
        assert sorted(key(to_dict(a), default=str) for a in actions) == sorted(
            key(to_dict(a), default=str) for a in parse_commit(canonical, file="canonical")
        )


def test_every_schema_comes_back_as_an_equivalent_document() -> None:
    count = 0
    for where, line in lines():
        for action in parse_line(line, where=where):
            if isinstance(action, Metadata) and action.schema_string is not None:
                count += 1
                again = schema_to_json(schema_from_json(action.schema_string))
                assert exact(again) == exact(action.schema_string), where
    assert count > 100


def test_a_metadata_action_without_schema_gives_the_empty_struct() -> None:
    found = [
        action
        for where, line in lines()
        for action in parse_line(line, where=where)
        if isinstance(action, Metadata) and action.schema_string is None
    ]
    assert found
    assert all(action.schema.fields == () for action in found)


def golden_protocols() -> list[tuple[dict[str, Any], Protocol]]:
    entries: list[dict[str, Any]] = json.loads((GOLDEN / "expected.json").read_text("utf-8"))
    found = []
    for entry in entries:
        if entry["protocol"] is not None:
            given = {key: value for key, value in entry["protocol"].items() if value is not None}
            protocol = from_dict({"protocol": given})
            assert isinstance(protocol, Protocol)
            found.append((entry, protocol))
    return found


def test_every_table_that_must_import_is_readable() -> None:
    for entry, protocol in golden_protocols():
        if entry["must_import"]:
            check_readable(protocol, table=entry["folder"])


def test_tables_of_another_catalog_and_of_the_future_are_refused_by_name() -> None:
    refused = {}
    for entry, protocol in golden_protocols():
        try:
            check_readable(protocol, table=entry["folder"])
        except UnsupportedFeatureError as error:
            refused[entry["folder"]] = str(error)
    assert set(refused) == {
        "delta-deltalog-invalid-protocol-version",
        "delta-kbench__basic_catalog_managed",
        "delta-rs-data_err_logs__table_d",
        "delta-rs-data_err_logs__table_f",
    }
    assert "catalogManaged" in refused["delta-kbench__basic_catalog_managed"]
    assert "99" in refused["delta-deltalog-invalid-protocol-version"]


def test_every_statistic_of_the_golden_files_parses_and_its_bounds_are_in_order() -> None:
    bounds = 0
    for path in commit_files():
        actions = parse_commit(path.read_bytes(), file=path.name)
        schemas = [a.schema for a in actions if isinstance(a, Metadata)]
        if not schemas:
            continue
        for action in actions:
            if isinstance(action, AddFile) and action.stats:
                stats = parse_stats(action.stats, schemas[-1])
                assert stats is not None
                for column in stats.min_values.keys() & stats.max_values.keys():
                    bounds += 1
                    assert stats.min_values[column] <= stats.max_values[column], path
    assert bounds > 100


def test_every_partition_value_of_the_golden_files_reads_as_its_type() -> None:
    count = 0
    for path in commit_files():
        actions = parse_commit(path.read_bytes(), file=path.name)
        schemas = [a.schema for a in actions if isinstance(a, Metadata)]
        if not schemas:
            continue
        types = {physical_name(f): f.type for f in schemas[-1].fields}
        for action in actions:
            if isinstance(action, AddFile):
                for name, text in action.partition_values.items():
                    value = decode_partition_value(text, types[name])
                    assert (value is None) == (text in (None, ""))
                    count += 1
    assert count > 50
