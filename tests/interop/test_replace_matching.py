"""Delta on Spark replaces the same rows by `replaceUsing` and `replaceOn`, and refuses the same."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from interop.readers import DeltaSpark, Peers, Refused
from spark.matching_cases import CASES, COLUMNS, REFUSED, THREE, Case, Row

NAMES = [column.split()[0] for column in COLUMNS.split(", ")]


@pytest.fixture
def delta(peers: Peers) -> DeltaSpark:
    found = peers.there.get(DeltaSpark.name)
    if not isinstance(found, DeltaSpark):
        pytest.skip(f"{DeltaSpark.name}: {peers.missing[DeltaSpark.name]}")
    return found


def query(rows: list[Row]) -> str:
    """These rows, in SQL; a first one that is left out says what their types are."""

    def shown(value: int | str | None) -> str:
        return "NULL" if value is None else repr(value)

    values = ", ".join(f"({', '.join(map(shown, row))}, 1)" for row in rows)
    all_rows = f"(0, '', '', 0){', ' if values else ''}{values}"
    chosen = "CAST(id AS LONG) AS id, part, word"
    return f"SELECT {chosen} FROM VALUES {all_rows} AS v(id, part, word, kept) WHERE kept = 1"


def ordered(found: pa.Table) -> list[Any]:
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=str)


# The others have their turn in the long form.
SHORT = ("null equals nothing", "a condition on both", "replaceWhere with the alias")
ALL = [
    pytest.param(case, id=case.name, marks=[] if case.name in SHORT else pytest.mark.soak)
    for case in CASES
]


@pytest.mark.parametrize("case", ALL)
def test_delta_has_the_same_rows(delta: DeltaSpark, tmp_path: Path, case: Case) -> None:
    path = tmp_path / "t"
    delta.write(query(case.before), path, mode="error", **{"delta.enableChangeDataFeed": "true"})
    delta.write(query(case.new), path, mode="overwrite", alias="s", **case.options)
    assert ordered(delta.read(path).select(NAMES)) == sorted(case.after, key=str)
    if not case.new:
        # Where nothing changes Delta commits nothing.
        assert not (path / "_delta_log" / f"{1:020}.json").exists()
        return
    commit = (path / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    (info,) = (json.loads(line)["commitInfo"] for line in commit if "commitInfo" in line)
    assert info["operation"] == "WRITE"
    given = {name.lower(): value for name, value in case.options.items()}
    if "replaceon" in given:
        assert info["operationParameters"]["replaceOnCond"] == given["replaceon"]
    elif "replaceusing" in given:
        assert info["operationParameters"]["replaceUsingCols"] == f"({given['replaceusing']})"
    assert info["operationMetrics"].get("numDeletedRows", "0") == str(len(case.deleted))
    told = delta.sql(
        f"SELECT _change_type, {', '.join(NAMES)} FROM table_changes_by_path('{path}', 1, 1)"
    )
    gone = [("delete", *row) for row in case.deleted]
    expected = [*gone, *(("insert", *row) for row in case.new)]
    assert ordered(told) == sorted(expected, key=str)


def test_delta_refuses_the_same(delta: DeltaSpark, tmp_path: Path) -> None:
    path = tmp_path / "t"
    delta.write(query(THREE), path, mode="error")
    new = f"SELECT id, part FROM ({query(THREE[:1])})"
    for options, _ in REFUSED:
        with pytest.raises(Refused):
            delta.write(new, path, mode="overwrite", alias="s", **options)
    assert ordered(delta.read(path).select(NAMES)) == THREE
