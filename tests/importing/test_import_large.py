"""Importing large logs: in batches, by parser processes, over the disk; always the same rows."""

from pathlib import Path

import pytest

from deltalakedb.errors import DeltaLakeDbError, InvalidLogError
from deltalakedb.importing import parsing
from deltalakedb.importing.log_rows import CommitFile
from deltalakedb.lake import Lake
from deltalakedb.storage import open_storage
from deltalakedb.table import Table

from support.lake import row_counts
from support.large_log import COMMITS, content, write_history


def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit is a piece, and every piece goes over the disk."""
    monkeypatch.setattr(parsing, "_BATCH_COMMITS", 3)
    monkeypatch.setattr("deltalakedb.store.bulk._IN_MEMORY", 1)
    monkeypatch.setattr("deltalakedb.store.bulk._SORTED_ROWS", 10)


def import_again(lake: Lake, folder: Path, name: str) -> Table:
    lake.drop_table(name)
    return lake.import_table(str(folder), name="large")


def test_batches_on_disk_by_parser_processes_give_the_same_rows(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    write_history(folder)
    expected = content(lake, lake.import_table(str(folder), name="small"))
    assert len(expected["dl_add_files"]) == 3 * COMMITS
    split(monkeypatch)
    monkeypatch.setattr(parsing, "PROCESSES_FROM", 1)
    table = import_again(lake, folder, "small")
    assert content(lake, table) == expected
    with lake.store.read() as session:
        assert lake.store.check_active_files(session, table.table_id) == []


def test_helpers_find_the_damage_with_its_file_and_line(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split(monkeypatch)
    monkeypatch.setattr(parsing, "PROCESSES_FROM", 1)
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
        parsing.parser_for(storage, {}, len(files), processes=2) as parse,
        pytest.raises(DeltaLakeDbError, match="parser process"),
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
        "from deltalakedb.importing import parsing\n"
        "parsing.PROCESSES_FROM = parsing._BATCH_COMMITS = 1\n"
        "print('begun')\n"
        f"lake = deltalakedb.connect('sqlite:///{tmp_path}/lake.db')\n"
        f"print(lake.import_table('{tmp_path}/log').version)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["begun", str(COMMITS - 1)]
