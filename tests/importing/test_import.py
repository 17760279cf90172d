"""Importing an existing table: what is kept, what is refused, and that a refusal leaves nothing."""

import json
import socket
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import deltalakedb
from deltalakedb.deltalog.checkpoints import read_file_actions
from deltalakedb.errors import (
    CommitRejectedError,
    ConfigurationError,
    DeltaLakeDbError,
    InvalidLogError,
    PathNotAllowedError,
    TableExistsError,
    UnsupportedFeatureError,
)
from deltalakedb.importing.import_table import import_table
from deltalakedb.lake import Lake
from deltalakedb.storage import open_storage
from deltalakedb.store.url import Engine
from deltalakedb.table import Table

from support.delta_log import (
    PROTOCOL,
    START_MS,
    metadata,
    write_appends,
    write_checkpoint,
    write_commit,
    write_lines,
)
from support.lake import SCHEMA, Json, add, live_paths, remove, row_counts, schema_json

ICT = {"delta.enableInCommitTimestamps": "true"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "old table"


def versions(table: Table) -> list[int]:
    return [record.version for record in reversed(table.history(1000))]


def times(table: Table) -> list[int]:
    return [record.committed_at for record in reversed(table.history(1000))]


def test_every_version_is_kept_with_its_provenance(lake: Lake, folder: Path) -> None:
    write_appends(folder, 4)
    write_commit(folder, 4, [remove("f1"), add("f0", size=7), {"newThing": {"a": 1}}])
    seen: list[tuple[int, int]] = []
    table = lake.import_table(str(folder), progress=lambda done, total: seen.append((done, total)))
    assert table.name == "old table"
    assert versions(table) == [0, 1, 2, 3, 4]
    assert times(table) == [START_MS + 1000 * version for version in range(5)]
    assert live_paths(table, 3) == ["f0", "f1", "f2", "f3"]
    assert live_paths(table) == ["f0", "f2", "f3"]
    assert table.snapshot().counts.live_bytes == 207
    assert seen[-1] == (5, 5)
    record = table.history(10)[1]
    assert (record.committer, record.counts.num_adds) == ("ann", 1)
    assert record.commit_info is not None
    assert record.commit_info.fields["n"] == 3
    with lake.store.read() as session:
        kinds = [type(a).__name__ for a in lake.store.actions_of(session, table.table_id, 4)]
    assert sorted(kinds) == ["AddFile", "RemoveFile", "UnknownAction"]
    committed = table.commit([remove("f0"), add("f9")])
    assert committed.version == 5
    assert live_paths(table) == ["f2", "f3", "f9"]
    assert times(table)[-1] > START_MS + 4000


def test_nothing_is_written_at_the_location(lake: Lake, folder: Path) -> None:
    write_appends(folder, 2)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    lake.import_table(str(folder))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def state(version: int) -> list[Json]:
    return [
        PROTOCOL,
        metadata({"delta.appendOnly": "false"}),
        {"txn": {"appId": "app", "version": 3, "lastUpdated": 1}},
        {"domainMetadata": {"domain": "mine", "configuration": "{}", "removed": False}},
        *(add(f"f{number}", data_change=False) for number in range(version + 1)),
        {"remove": {"path": "gone", "deletionTimestamp": 5, "dataChange": False}},
    ]


@pytest.mark.parametrize("with_json", [True, False])
def test_a_log_that_begins_with_a_checkpoint_keeps_its_numbers(
    lake: Lake, folder: Path, with_json: bool
) -> None:
    write_checkpoint(folder, f"{10:020d}.checkpoint.parquet", state(10))
    if with_json:
        write_commit(folder, 10, [{"commitInfo": {"operation": "MERGE"}}, add("f10")])
    write_commit(folder, 11, [add("f11"), remove("f0")])
    write_commit(folder, 12, [add("f12")])
    table = lake.import_table(str(folder))
    assert versions(table) == [10, 11, 12]
    assert len(live_paths(table, 10)) == 11
    assert len(live_paths(table)) == 12
    records = table.history(10)
    assert times(table) == sorted(set(times(table)))
    assert times(table)[1:] == [START_MS + 11_000, START_MS + 12_000]
    info = records[-1].commit_info
    assert (info.operation if info else None) == ("MERGE" if with_json else None)
    with lake.store.read() as session:
        assert lake.store.check_active_files(session, table.table_id) == []
        assert lake.store.newest_app_txn(session, table.table_id, "app") == (3, 10)
        assert lake.store.domain_at(session, table.table_id, "mine", 10) is not None
    assert table.commit([add("f13")]).version == 13


def test_the_oldest_state_wins_and_gaps_before_it_do_not_matter(lake: Lake, folder: Path) -> None:
    write_appends(folder, 9)
    (folder / "_delta_log" / f"{2:020d}.json").unlink()
    write_checkpoint(folder, f"{4:020d}.checkpoint.parquet", state(4))
    write_checkpoint(folder, f"{6:020d}.checkpoint.parquet", state(6))
    assert versions(lake.import_table(str(folder))) == [4, 5, 6, 7, 8]


def test_a_damaged_checkpoint_is_passed_over_for_a_newer_one(lake: Lake, folder: Path) -> None:
    write_appends(folder, 9)
    (folder / "_delta_log" / f"{0:020d}.json").unlink()
    (folder / "_delta_log" / f"{4:020d}.checkpoint.parquet").write_bytes(b"PAR1 not really")
    write_checkpoint(folder, f"{6:020d}.checkpoint.parquet", state(6))
    (folder / "_delta_log" / "_last_checkpoint").write_text("{damaged")
    table = lake.import_table(str(folder))
    assert versions(table) == [6, 7, 8]
    assert len(live_paths(table)) == 9


def test_a_multi_part_checkpoint_counts_only_when_complete(lake: Lake, folder: Path) -> None:
    write_appends(folder, 6)
    (folder / "_delta_log" / f"{1:020d}.json").unlink()
    parts = state(4)
    write_checkpoint(
        folder, f"{4:020d}.checkpoint.{1:010d}.{2:010d}.parquet", [*parts[:3], *parts[6:]]
    )
    with pytest.raises(InvalidLogError, match="ommit 1 is missing"):
        lake.import_table(str(folder))
    write_checkpoint(folder, f"{4:020d}.checkpoint.{2:010d}.{2:010d}.parquet", parts[3:6])
    table = lake.import_table(str(folder))
    assert versions(table) == [4, 5]
    assert len(live_paths(table)) == 6


def test_a_compaction_leads_over_commits_that_are_gone(lake: Lake, folder: Path) -> None:
    write_appends(folder, 8)
    for version in (2, 3, 4):
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    compacted = [remove("f0"), add("f2"), add("f3"), add("f4")]
    write_lines(folder, f"{2:020d}.{4:020d}.compacted.json", compacted, at_ms=START_MS + 4000)
    table = lake.import_table(str(folder))
    assert versions(table) == [4, 5, 6, 7]
    assert live_paths(table, 4) == ["f1", "f2", "f3", "f4"]
    assert live_paths(table) == ["f1", "f2", "f3", "f4", "f5", "f6", "f7"]


def test_times_of_copied_files_are_moved_on(lake: Lake, folder: Path) -> None:
    for version, at_ms in enumerate([5000, 3000, 3000, 9000]):
        first = [PROTOCOL, metadata()] if version == 0 else []
        write_commit(folder, version, [*first, add(f"f{version}")], at_ms=at_ms)
    assert times(lake.import_table(str(folder))) == [5000, 5001, 5002, 9000]


def test_in_commit_timestamps_count_and_file_times_give_way(lake: Lake, folder: Path) -> None:
    write_commit(folder, 0, [PROTOCOL, metadata()], at_ms=2000)
    write_commit(folder, 1, [add("f1")], at_ms=90_000)
    enabled = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7}}
    enabled["protocol"]["writerFeatures"] = ["inCommitTimestamp"]  # type: ignore[assignment]
    for version, in_commit in ((2, 5000), (3, 6000)):
        info = {"commitInfo": {"inCommitTimestamp": in_commit}}
        first = [enabled, metadata(ICT)] if version == 2 else []
        write_commit(folder, version, [info, *first], at_ms=90_000)
    assert times(lake.import_table(str(folder))) == [2000, 4999, 5000, 6000]


def test_a_file_is_the_same_however_its_path_is_encoded(lake: Lake, folder: Path) -> None:
    write_commit(folder, 0, [PROTOCOL, metadata(), add("a%20b"), add("c%25d")])
    write_commit(folder, 1, [remove("a b"), add("%63%25d", size=5)])
    write_commit(folder, 2, [add("a b")])
    table = lake.import_table(str(folder))
    assert live_paths(table, 0) == ["a%20b", "c%25d"]
    assert live_paths(table, 1) == ["c%25d"]
    # The spelling of the newest add: other readers compare paths as text.
    assert live_paths(table) == ["a b", "c%25d"]
    assert table.snapshot(1).counts.live_bytes == 5


def test_of_two_actions_on_one_file_in_a_commit_the_last_counts(lake: Lake, folder: Path) -> None:
    twice = [add("x", size=1), add("x", size=2), add("y"), remove("y"), remove("z"), add("z")]
    txns = [{"txn": {"appId": "a", "version": number}} for number in (1, 2)]
    write_commit(folder, 0, [PROTOCOL, PROTOCOL, metadata(), *twice, *txns])
    table = lake.import_table(str(folder))
    assert live_paths(table) == ["x", "z"]
    assert table.snapshot().counts.live_bytes == 102
    with lake.store.read() as session:
        assert lake.store.newest_app_txn(session, table.table_id, "a") == (2, 0)
        assert lake.store.check_active_files(session, table.table_id) == []


def damage(folder: Path, what: str) -> None:
    log = folder / "_delta_log"
    write_appends(folder, 4)
    if what == "empty":
        for path in log.iterdir():
            path.unlink()
    elif what == "gap":
        (log / f"{2:020d}.json").unlink()
    elif what == "no JSON":
        (log / f"{2:020d}.json").write_text('{"commitInfo":{}}\n{"add":{"path":"x"')
    elif what == "bad action":
        write_commit(folder, 2, [{"add": {"path": "x"}}])
    elif what == "no metaData":
        write_commit(folder, 0, [PROTOCOL, add("x")])
    elif what == "feature":
        features = {"readerFeatures": ["fromTheFuture"], "writerFeatures": ["fromTheFuture"]}
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
        write_commit(folder, 3, [{"protocol": protocol}])
    elif what == "schema":
        write_commit(folder, 3, [metadata(schemaString='{"type":"struct"}')])
    elif what == "schema text":
        write_commit(folder, 3, [metadata(schemaString="{")])
    elif what == "value":
        body = add("x")
        body["add"]["modificationTime"] = -1
        write_commit(folder, 3, [body])
    elif what == "sizes":
        write_commit(folder, 3, [add("x", size=2**62), add("y", size=2**62), add("z")])


@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("empty", InvalidLogError, "no Delta table"),
        ("gap", InvalidLogError, "ommit 2 is missing"),
        ("no JSON", InvalidLogError, "00002.json, line 2"),
        ("bad action", InvalidLogError, "00002.json, line 1"),
        ("no metaData", InvalidLogError, "metaData"),
        ("feature", UnsupportedFeatureError, "fromTheFuture"),
        ("schema", InvalidLogError, "schema"),
        ("schema text", InvalidLogError, "schema"),
        ("value", InvalidLogError, "cannot keep"),
        ("sizes", InvalidLogError, "long"),
    ],
)
def test_a_log_that_cannot_be_trusted_is_refused_and_leaves_nothing(
    lake: Lake, folder: Path, what: str, kind: type[DeltaLakeDbError], says: str
) -> None:
    damage(folder, what)
    before = row_counts(lake)
    with pytest.raises(kind, match=says) as caught:
        lake.import_table(str(folder))
    assert caught.value.fix
    assert row_counts(lake) == before
    lake.create_table("after", location=str(folder.parent / "after"), schema=SCHEMA)


def test_no_folder_no_table(lake: Lake, folder: Path) -> None:
    with pytest.raises(InvalidLogError, match="no Delta table"):
        lake.import_table(str(folder))
    assert not folder.exists()


def test_names_and_locations_are_taken_once(lake: Lake, folder: Path) -> None:
    write_appends(folder, 2)
    lake.import_table(str(folder), "first")
    with pytest.raises(TableExistsError, match="first"):
        lake.import_table(f"{folder}/", "second")
    other = folder.parent / "other"
    write_appends(other, 2)
    with pytest.raises(TableExistsError, match="first"):
        lake.import_table(str(other), "first")
    with pytest.raises(ConfigurationError):
        lake.import_table(str(other), " ")
    assert [table.name for table in lake.tables()] == ["first"]
    lake.drop_table("first")
    lake.import_table(str(folder), "again")


def test_of_two_imports_at_once_one_wins(lake: Lake, folder: Path) -> None:
    write_appends(folder, 20)
    ready = threading.Barrier(2)
    refused: list[DeltaLakeDbError] = []

    def run(name: str) -> None:
        ready.wait()
        try:
            lake.import_table(str(folder), name)
        except TableExistsError as error:
            refused.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (table,) = lake.tables()
    assert len(refused) == 1
    assert versions(table) == list(range(20))


def test_a_new_table_does_not_go_where_a_delta_table_is(lake: Lake, folder: Path) -> None:
    write_appends(folder, 1)
    with pytest.raises(TableExistsError, match="import_table"):
        lake.create_table("new", location=str(folder), schema=SCHEMA)
    assert lake.tables() == []
    # One that is here already is called by its name: there is nothing to import.
    lake.import_table(str(folder), "old")
    for name, told in (("old", "named 'old' exists"), ("new", "belongs to table 'old'")):
        with pytest.raises(TableExistsError, match=told):
            lake.create_table(name, location=str(folder), schema=SCHEMA)


def test_a_log_in_an_object_store(lake: Lake, tmp_path: Path, engine: Engine) -> None:
    write_appends(tmp_path / "t", 300)
    storage = open_storage(f"memory:///{engine}")
    for path in (tmp_path / "t" / "_delta_log").iterdir():
        storage.put(f"_delta_log/{path.name}", path.read_bytes())
    record = import_table(lake.store, storage, name="t", location="s3://bucket/t")
    table = lake.table(record.name)
    assert versions(table) == list(range(300))
    assert len(live_paths(table)) == 300


def test_many_versions_in_few_inserts(lake: Lake, folder: Path) -> None:
    write_appends(folder, 300)
    table = lake.import_table(str(folder))
    assert versions(table) == list(range(300))
    with lake.store.read() as session:
        assert lake.store.check_active_files(session, table.table_id) == []
    assert len(live_paths(table, 150)) == 151


ODD_TEXTS = (
    *("back\\slash", "\\N", "\\.", "a tab\t", "a line\n", "a return\r", 'a "quote"', "it's", ","),
    *("\ue000 private", "größe 東京 🦆", "\\u0041", " ", "'; DROP TABLE dl_tables; --"),
)


@pytest.mark.parametrize("alone", [True, False], ids=["each in a log of its own", "all in one"])
def test_no_text_is_changed_on_its_way_in(lake: Lake, tmp_path: Path, *, alone: bool) -> None:
    """Many rows of plain text take another way into a catalog than a few odd ones."""
    for number, texts in enumerate([(text,) for text in ODD_TEXTS] if alone else [ODD_TEXTS]):
        folder = tmp_path / f"t{number}"
        # Statistics are text of whoever wrote them, and JSON only by custom.
        stats = [*texts, *(json.dumps({"minValues": {"x": text}}) for text in texts)]
        files = [{"add": {**add(f"f{at}")["add"], "stats": stat}} for at, stat in enumerate(stats)]
        write_commit(folder, 0, [PROTOCOL, metadata(), *files])
        table = lake.import_table(str(folder))
        assert sorted(table.snapshot().files()["stats"].to_pylist()) == sorted(stats)


def test_storage_options_are_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="storage_options"):
        deltalakedb.connect(
            f"sqlite:///{tmp_path}/l.db",
            storage_options=["x"],  # type: ignore[arg-type]
        )
    with (
        deltalakedb.connect(
            f"sqlite:///{tmp_path}/l.db", storage_options={"nonsense": "1"}
        ) as lake,
        pytest.raises(ConfigurationError, match="nonsense"),
    ):
        lake.import_table("s3://bucket/table")


# --- files outside the table --------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("../other/a.parquet", "%2e%2e/other/a.parquet", "x/..%2F..%2Fother/a.parquet"),
        *("file://{root}/other/a.parquet", "file:{root}/other/a.parquet", "{root}/other/a.parquet"),
        *("%2Fetc/passwd", "s3://bucket/a.parquet", "file://host{root}/old%20table/a.parquet"),
        *("http://127.0.0.1:{port}/a.parquet", "https://169.254.169.254/latest"),
        "abfss://c@127.0.0.1:{port}/a.parquet",
    ],
)
def test_a_log_cannot_choose_what_is_read(
    lake: Lake, folder: Path, tmp_path: Path, path: str
) -> None:
    before = row_counts(lake)
    with socket.create_server(("127.0.0.1", 0)) as server:
        spelled = path.format(root=tmp_path, port=server.getsockname()[1])
        write_appends(folder, 2)
        write_commit(folder, 2, [add(spelled)])
        with pytest.raises(PathNotAllowedError) as caught:
            lake.import_table(str(folder))
        assert all((caught.value.what, caught.value.why, caught.value.fix))
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert row_counts(lake) == before


@pytest.mark.parametrize("kind", ["p", "p without a scheme", "u", "cdc", "checkpoint"])
def test_nor_can_its_vectors_changes_and_checkpoints(lake: Lake, folder: Path, kind: str) -> None:
    write_appends(folder, 2)
    vector = {"offset": 1, "sizeInBytes": 36, "cardinality": 1, "storageType": kind[0]}
    if kind == "cdc":
        line: Json = {"path": "../x", "partitionValues": {}, "size": 1, "dataChange": False}
        write_commit(folder, 2, [{"cdc": line}])
    elif kind == "checkpoint":
        write_checkpoint(
            folder,
            f"{1:020}.checkpoint.parquet",
            [PROTOCOL, metadata(), add("../x"), add("f1")],
        )
        (folder / "_delta_log" / f"{0:020}.json").unlink()
    else:
        where = {"p": "file:///etc/x.bin", "u": "../.." + "0" * 20}.get(kind, "/etc/x.bin")
        action = add("f2")
        action["add"]["deletionVector"] = {**vector, "pathOrInlineDv": where}
        write_commit(folder, 2, [action])
    with pytest.raises(PathNotAllowedError):
        lake.import_table(str(folder))


def test_roots_that_the_operator_allows(lake: Lake, folder: Path, tmp_path: Path) -> None:
    write_appends(folder, 1)
    write_commit(folder, 1, [add(f"file:{tmp_path}/source/a"), add(f"{tmp_path}/old%20table/b")])
    with pytest.raises(PathNotAllowedError):
        lake.import_table(str(folder), allowed_roots=[str(tmp_path / "sour")])
    with pytest.raises(ConfigurationError, match="scheme 'http'"):
        lake.import_table(str(folder), allowed_roots=["http://127.0.0.1"])
    table = lake.import_table(str(folder), "t", allowed_roots=[str(tmp_path / "source")])
    source, own = f"file://{tmp_path}/source", table.location
    assert table.allowed_roots == lake.table("t").allowed_roots == (source, own)
    # The absolute path is that of a file which has a relative one.
    with pytest.raises(CommitRejectedError, match="is live as"):
        table.commit([add("b")])
    with pytest.raises(CommitRejectedError, match="does not lie in the table"):
        table.commit([add(f"file://{tmp_path}/more/c")])
    assert table.allow_roots([f"{tmp_path}/more"])[-1] == f"file://{tmp_path}/more"
    assert lake.table("t").commit([add(f"file://{tmp_path}/more/c")]) == 2


# --- checkpoints that contradict the commits ----------------------------------------------

NAME = f"{1:020}.checkpoint.parquet"


def changed(file: Json, **fields: object) -> Json:
    return {"add": {**file["add"], **fields}}


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ([metadata(), add("f0")], "'f1' is in the commits and not in the checkpoint"),
        (
            [metadata(), add("f0"), add("f1"), add("f2")],
            "'f2' is in the checkpoint and not in the commits",
        ),
        ([metadata(), add("f0"), changed(add("f1"), size=7)], "live file 'f1' differs in size"),
        (
            [metadata(), add("f0"), changed(add("f1"), modificationTime=7)],
            "live file 'f1' differs in modificationTime",
        ),
        ([metadata(configuration={"a": "b"}), add("f0"), add("f1")], "differs in a"),
        (
            [
                metadata(),
                add("f0"),
                add("f1"),
                {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
            ],
            "the metadata domain 'd' is absent in the commits",
        ),
    ],
)
def test_a_checkpoint_that_contradicts_the_commits_is_refused(
    lake: Lake, folder: Path, state: list[Json], problem: str
) -> None:
    write_appends(folder, 3)
    write_checkpoint(folder, NAME, [PROTOCOL, *state])
    before = row_counts(lake)
    for stage_from in (None, 1):
        with pytest.raises(InvalidLogError, match="contradict its commits") as caught:
            lake.import_table(str(folder), "t", stage_from=stage_from)
        assert problem in caught.value.why
        assert row_counts(lake) == before
    table = lake.import_table(str(folder), "t", trust_commits=True)
    assert live_paths(table) == ["f0", "f1", "f2"]
    assert not lake.verify("t").ok


def test_a_checkpoint_that_says_what_the_commits_say_is_fine(lake: Lake, folder: Path) -> None:
    write_appends(folder, 3)
    write_checkpoint(folder, NAME, [PROTOCOL, metadata(), add("./f0"), add("f1")])
    assert live_paths(lake.import_table(str(folder), "t")) == ["f0", "f1", "f2"]


@pytest.mark.parametrize("name", ["id", "ID"])
def test_columns_of_the_same_name_are_refused(lake: Lake, folder: Path, name: str) -> None:
    twice = schema_json("id", name)
    write_commit(folder, 0, [PROTOCOL, metadata(schemaString=twice)])
    with pytest.raises(InvalidLogError, match=f"'id' and '{name}' have the same name"):
        lake.import_table(str(folder), "t")
    assert lake.tables() == []


def test_a_checkpoint_of_empty_rows_is_not_read_through(lake: Lake, folder: Path) -> None:
    write_appends(folder, 3)
    empty = pa.table({"add": pa.nulls(3_000_000, pa.struct({"path": pa.string()}))})
    path = folder / "_delta_log" / NAME
    pq.write_table(empty, path)
    assert path.stat().st_size < 10_000
    with pytest.raises(InvalidLogError, match="3000000 rows in"):
        list(read_file_actions(path.read_bytes(), file=NAME))
    # It is passed over, as any damaged one is, where the commits are there.
    assert live_paths(lake.import_table(str(folder), "t")) == ["f0", "f1", "f2"]
    lake.drop_table("t", force=True)
    (folder / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(InvalidLogError):
        lake.import_table(str(folder), "t")
