"""Real logs of other engines survive a trip through the values."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deltalakedb.actions import Metadata, parse_line, serialise, serialise_commit, to_dict
from deltalakedb.actions.codec import parse_commit
from deltalakedb.actions.schema import schema_from_json, schema_to_json

_ROOT = Path(__file__).resolve().parents[3]
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
