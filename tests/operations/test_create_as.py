"""`create_table_as`: a table and its first rows are one commit, or nothing."""

from pathlib import Path

import pyarrow as pa
import pytest

from deltalakedb.errors import (
    CommitRejectedError,
    ConstraintViolatedError,
    DeltaLakeDbError,
    TableExistsError,
    TableNotFoundError,
)
from deltalakedb.lake import Lake

ROWS = pa.table({"id": [1, 2, 3], "day": ["a", "b", "b"]})


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "_delta_log" not in path.parts]


def test_the_first_version_has_the_rows(shared_lake: Lake, tmp_path: Path) -> None:
    table = shared_lake.create_table_as(
        "made.whole",
        ROWS,
        location=str(tmp_path),
        partition_by=["day"],
        properties={"owner": "me", "delta.columnMapping.mode": "name"},
        app_txn=("job", 1),
        user_metadata="a note",
    )
    assert table.version == 0
    assert table.snapshot().to_arrow().sort_by("id").to_pylist() == ROWS.to_pylist()
    assert table.snapshot().partition_columns == ("day",)
    info = table.history()[0].commit_info
    assert info is not None
    assert (info.operation, info.fields["userMetadata"]) == ("CREATE TABLE AS SELECT", "a note")
    # Whoever tries again adds nothing.
    assert shared_lake.table("made.whole").append(ROWS, app_txn=("job", 1)).already_committed


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"partition_by": ["nothing"]}, CommitRejectedError),
        ({"properties": {"delta.constraints.few": "id < 3"}}, ConstraintViolatedError),
        ({"where": "id < 3"}, ConstraintViolatedError),
    ],
)
def test_what_is_refused_leaves_nothing(
    shared_lake: Lake, tmp_path: Path, options: dict[str, object], kind: type[DeltaLakeDbError]
) -> None:
    with pytest.raises(kind):
        shared_lake.create_table_as("made.not", ROWS, location=str(tmp_path), **options)  # type: ignore[arg-type]
    with pytest.raises(TableNotFoundError):
        shared_lake.table("made.not")
    assert not files(tmp_path)


def test_a_table_that_is_there_is_left_as_it_is(shared_lake: Lake, tmp_path: Path) -> None:
    shared_lake.create_table("made.before", location=str(tmp_path / "a"), schema=ROWS.schema)
    with pytest.raises(TableExistsError):
        shared_lake.create_table_as("made.before", ROWS, location=str(tmp_path / "b"))
    assert not files(tmp_path)
    assert shared_lake.table("made.before").snapshot().num_files == 0
