"""Tables of other engines come in with the files, bytes and metadata that are known of them."""

import hashlib
import json
from collections.abc import Iterator

import pyarrow.parquet as pq
import pytest

import deltalakedb
from deltalakedb.actions import DomainMetadata, Txn, parse_commit, to_dict
from deltalakedb.actions.datatypes import physical_name
from deltalakedb.actions.features import WRITES_UNLESS_USED, check_writable
from deltalakedb.errors import DeltaLakeDbError, UnsupportedFeatureError
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from deltalakedb.table import Table

from support.golden import GoldenTable, file_digest, golden_names
from support.lake import Json, row_counts
from support.store import Catalogs

SAMPLE = [
    "delta-rs-cdc_ict_table",
    "delta-rs-checkpoint-cdf-table",
    "delta-rs-checkpoint_with_partitions",
    "delta-rs-data_err_logs__table_b",
    "delta-rs-delta-checkpoint-stats-optional",
    "delta-rs-table_with_liquid_clustering",
    "delta-data-reader-partition-values",
    "delta-dv-partitioned-with-checkpoint",
    "delta-kernel__kernel-pagination-v2-checkpoint-parquet",
    "delta-log-replay-special-characters",
    "delta-multi-part-checkpoint",
    "delta-spark__transaction_log_schema_evolvability",
    "delta-v2-checkpoint-json",
    "delta-rs-data_err_logs__table_f",
    "delta-versions-not-contiguous",
]


@pytest.fixture(scope="module")
def sqlite_lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url, mirror="worker") as lake:
        yield lake


@pytest.mark.parametrize("name", golden_names())
def test_a_golden_table_on_sqlite(
    name: str, golden_tables: dict[str, GoldenTable], sqlite_lake: Lake
) -> None:
    check_import(sqlite_lake, golden_tables[name])


@pytest.mark.parametrize("name", SAMPLE)
def test_a_golden_table_on_every_engine(
    name: str, engine: Engine, golden_tables: dict[str, GoldenTable], shared_lake: Lake
) -> None:
    check_import(shared_lake, golden_tables[name])


def check_import(lake: Lake, golden: GoldenTable) -> None:
    before = row_counts(lake)
    table: Table | None = None
    refusal: DeltaLakeDbError | None = None
    try:
        table = golden.import_into(lake)
    except DeltaLakeDbError as error:
        if golden.must_import:
            raise
        refusal = error
    if table is None:
        assert refusal is not None
        assert all((refusal.what, refusal.why, refusal.fix))
        assert row_counts(lake) == before
        return
    check_figures(lake, golden, table)
    check_published(lake, golden, table)
    check_one_more_commit(lake, golden, table)


def check_figures(lake: Lake, golden: GoldenTable, table: Table) -> None:
    facts = golden.facts
    snapshots = facts["snapshots"]
    history = list(reversed(table.history(1_000_000)))
    assert [record.version for record in history] == [s["v"] for s in snapshots]
    for record, expected in zip(history, snapshots, strict=True):
        with lake.store.read() as session:
            rows = session.execute(
                lake.store.dialect.sql(
                    "SELECT path, dv_id FROM dl_active_files WHERE table_id = :table_id "
                    "AND added_version <= :version AND removed_version > :version"
                ),
                {"table_id": table.table_id, "version": expected["v"]},
            )
            files = [(session.decode_text(row[0]), session.decode_text(row[1])) for row in rows]
            assert not lake.store.check_active_files(session, table.table_id)
        assert len(files) == expected["files"] == record.counts.live_files, expected["v"]
        assert record.counts.live_bytes == expected["bytes"], expected["v"]
        assert file_digest(files) == expected["digest"], expected["v"]
    times = [record.committed_at for record in history]
    assert times == sorted(set(times))
    head = table.snapshot()
    assert head.version == facts["latest_version"]
    assert head.counts.live_files == facts["active_files"]
    assert head.counts.live_bytes == facts["active_bytes"]
    assert list(head.metadata.partition_columns) == facts["partition_columns"]
    assert dict(head.metadata.configuration) == facts["configuration"]
    protocol = to_dict(head.protocol)["protocol"]
    for key, value in (facts["protocol"] or {}).items():
        found = protocol.get(key)
        assert (sorted(found) if isinstance(found, list) else found) == value, key
    assert head.metadata.schema_string == last_schema(golden)
    check_state(lake, golden, table)


def last_schema(golden: GoldenTable) -> str | None:
    """The schema that a plain look at the newest commits finds, or else at the checkpoint."""
    for path in sorted(golden.path.glob("_delta_log/*.json"), reverse=True):
        if "checkpoint" in path.name:
            continue
        for line in reversed(path.read_text("utf-8").splitlines()):
            document = json.loads(line) if line.strip() else {}
            if document.get("metaData"):
                schema: str | None = document["metaData"].get("schemaString")
                return schema
    (checkpoint,) = golden.path.glob("_delta_log/*.checkpoint.parquet")
    column = pq.read_table(checkpoint, columns=["metaData"])["metaData"].drop_null().to_pylist()
    in_checkpoint: str = column[0]["schemaString"]
    return in_checkpoint


def check_state(lake: Lake, golden: GoldenTable, table: Table) -> None:
    with lake.store.read() as session:
        assert lake.store.check_active_files(session, table.table_id) == []
        actions = list(lake.store.control_actions_after(session, table.table_id, -1))
    actions.sort(key=lambda pair: pair[0])
    txns = {a.app_id: a.version for _, a in actions if isinstance(a, Txn)}
    domains = {a.domain: a for _, a in actions if isinstance(a, DomainMetadata)}
    assert txns == golden.facts["app_transactions"]
    live = sorted(name for name, action in domains.items() if not action.removed)
    assert live == sorted(golden.facts["domains"])


def check_published(lake: Lake, golden: GoldenTable, table: Table) -> None:
    """Every version has its provenance, and the mirror has nothing to do for it."""
    query = lake.store.dialect.sql(
        "SELECT version, status, digest, payload, payload_bytes FROM dl_mirror_status "
        "WHERE table_id = :table_id ORDER BY version"
    )
    with lake.store.read() as session:
        rows = session.execute(query, {"table_id": table.table_id})
    assert [row[0] for row in rows] == [s["v"] for s in golden.facts["snapshots"]]
    for version, status, digest, payload, size in rows:
        assert (status, payload) == ("SUCCEEDED", None)
        commit = golden.path / "_delta_log" / f"{version:020d}.json"
        data = commit.read_bytes() if commit.exists() else b""
        assert size == len(data)
        assert digest == (hashlib.sha256(data).hexdigest() if commit.exists() else "")
        with lake.store.read() as session:
            record = lake.store.version(session, table.table_id, version)
        infos = [a for a in parse_commit(data, file="") if type(a).__name__ == "CommitInfo"]
        assert record is not None
        assert record.commit_info == (infos[0] if infos else None)


def check_one_more_commit(lake: Lake, golden: GoldenTable, table: Table) -> None:
    head = table.snapshot()
    try:
        check_writable(head.protocol, metadata=head.metadata, honours=WRITES_UNLESS_USED)
    except UnsupportedFeatureError:
        with pytest.raises(UnsupportedFeatureError):
            table.commit([new_file(table)], enforced=WRITES_UNLESS_USED)
        return
    committed = table.commit([new_file(table)], enforced=WRITES_UNLESS_USED)
    assert committed.version == golden.facts["latest_version"] + 1
    assert table.snapshot().counts.live_files == golden.facts["active_files"] + 1
    with lake.store.read() as session:
        assert lake.store.check_active_files(session, table.table_id) == []


def new_file(table: Table) -> Json:
    metadata = table.snapshot().metadata
    partitions = [physical_name(metadata.schema.field(c)) for c in metadata.partition_columns]
    return {
        "add": {
            "path": "one-more.parquet",
            "partitionValues": dict.fromkeys(partitions),
            "size": 1,
            "modificationTime": 1,
            "dataChange": True,
            "stats": '{"numRecords":1}',
        }
    }
