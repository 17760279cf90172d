"""Importing large logs: in pieces, by helper processes, over the disk; always the same rows."""

import json
from pathlib import Path

import pytest

from deltalakedb.errors import DeltaLakeDbError, InvalidLogError
from deltalakedb.lake import Lake
from deltalakedb.storage import open_storage
from deltalakedb.store.relations import RELATIONS
from deltalakedb.table import Table
from deltalakedb.transaction import parsing
from deltalakedb.transaction.log_rows import CommitFile

from fix_delta_log import PROTOCOL, metadata, write_commit
from fix_lake import Json, add, remove, row_counts

VECTOR: Json = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 6,
}
COMMITS = 30


def write_history(folder: Path) -> None:
    """A log with whatever an action can have."""
    planned = {"deltalakedb.planningColumns": "id"}
    for version in range(COMMITS):
        actions: list[Json] = [{"commitInfo": {"operation": "WRITE", "n": version + 0.5}}]
        if version == 0:
            actions += [PROTOCOL, metadata(planned, partitionColumns=["day"])]
        if version == 20:
            # The planned columns are others from here on.
            actions.append(metadata({"x": "y"}, partitionColumns=["day"]))
        stats = {"numRecords": 1, "minValues": {"id": version}, "maxValues": {"id": version}}
        plain = add(f"plain-{version}")
        plain["add"] |= {"stats": json.dumps(stats), "partitionValues": {"day": f"ä{version}"}}
        odd = add(f"odd/a%20b{version}\u2028é")
        odd["add"] |= {"tags": {"t": None}, "deletionVector": VECTOR, "newField": [1.50, None]}
        lines = add(f"line\n\\.\n\ue000{version}")
        lines["add"] |= {"partitionValues": {"day": "a\u0000b"}, "stats": "no\njson\r"}
        actions += [plain, odd, lines, {"txn": {"appId": f"a{version % 3}", "version": version}}]
        if version:
            actions += [
                remove(f"plain-{version - 1}"),
                # The same file, spelled differently.
                remove(f"line%0A\\.\n\ue000{version - 1}"),
                # Said twice: the last one counts.
                add(f"plain-{version}", size=7),
                {
                    "cdc": {
                        "path": f"c{version}",
                        "partitionValues": {},
                        "size": 1,
                        "dataChange": False,
                    }
                },
                {"unheard": {"of": version}},
            ]
        write_commit(folder, version, actions)


def content(lake: Lake, table: Table) -> dict[str, list[str]]:
    """Every row of a table in the catalog, without ids and times of the import."""
    found: dict[str, list[str]] = {}
    own = {"table_id", "name", "recorded_at", "created_at", "updated_at", "files", "removed"}
    with lake.store.read() as session:
        for relation in RELATIONS:
            columns = [name for name in relation.columns if name not in own]
            rows = session.execute(
                lake.store.dialect.sql(
                    f"SELECT {', '.join(columns)} FROM {relation.name} WHERE table_id = :table_id"
                ),
                {"table_id": table.table_id},
            )
            found[relation.name] = sorted(map(repr, rows))
    return found


def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit is a piece, and every piece goes over the disk."""
    monkeypatch.setattr(parsing, "_PIECE_COMMITS", 3)
    monkeypatch.setattr("deltalakedb.store.bulk._IN_MEMORY", 1)
    monkeypatch.setattr("deltalakedb.store.bulk._SORTED_ROWS", 10)


def import_again(lake: Lake, folder: Path, name: str) -> Table:
    lake.drop_table(name)
    return lake.import_table(str(folder), name="large")


def test_pieces_on_disk_by_helpers_give_the_same_rows(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    write_history(folder)
    expected = content(lake, lake.import_table(str(folder), name="small"))
    assert len(expected["dl_add_files"]) == 3 * COMMITS
    split(monkeypatch)
    monkeypatch.setattr(parsing, "HELPERS_FROM", 1)
    table = import_again(lake, folder, "small")
    assert content(lake, table) == expected
    with lake.store.read() as session:
        assert lake.store.check_active_files(session, table.table_id) == []


def test_helpers_find_the_damage_with_its_file_and_line(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split(monkeypatch)
    monkeypatch.setattr(parsing, "HELPERS_FROM", 1)
    write_history(tmp_path)
    log = tmp_path / "_delta_log"
    (log / f"{17:020d}.json").write_text('{"add":{"path":"x"}}\n')
    file = log / f"{13:020d}.json"
    file.write_text(file.read_text("utf-8").replace('{"txn"', '{"txn'), "utf-8")
    before = row_counts(lake)
    with pytest.raises(InvalidLogError, match=r"0013\.json, line 5, is damaged"):
        lake.import_table(str(tmp_path), name="t")
    assert row_counts(lake) == before


def test_a_helper_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split(monkeypatch)
    write_history(tmp_path)
    monkeypatch.setattr(parsing, "_PROGRAM", "import sys; sys.stdin.buffer.read(8); sys.exit(7)")
    storage = open_storage(str(tmp_path))
    files = tuple(CommitFile(f"_delta_log/{version:020d}.json", version, 0) for version in range(9))
    tasks = [parsing.Task((file,), ()) for file in files]
    with (
        parsing.parser_for(storage, {}, len(files), helpers=2) as parse,
        pytest.raises(DeltaLakeDbError, match="helper process"),
    ):
        list(parse(tasks))


def test_the_program_that_imports_is_not_run_again(tmp_path: Path) -> None:
    """Without a guard for `__main__`, helpers of multiprocessing would run the script anew."""
    import subprocess
    import sys

    write_history(tmp_path / "log")
    script = tmp_path / "script.py"
    script.write_text(
        "import deltalakedb\n"
        "from deltalakedb.transaction import parsing\n"
        "parsing.HELPERS_FROM = parsing._PIECE_COMMITS = 1\n"
        "print('begun')\n"
        f"lake = deltalakedb.connect('sqlite:///{tmp_path}/lake.db')\n"
        f"print(lake.import_table('{tmp_path}/log').version)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["begun", str(COMMITS - 1)]
