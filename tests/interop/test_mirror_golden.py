"""Tables of other engines, taken over and published: every reader sees our rows, at every version.

Each golden table is copied and imported. Then comes one more commit with real rows, published by
the mirror, and a checkpoint of it. `test_import_golden.py` has judged the import itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

import deltalakedb
from deltalakedb.actions.arrow import schema_to_arrow
from deltalakedb.actions.features import WRITES_UNLESS_USED
from deltalakedb.errors import DeltaLakeDbError, UnsupportedFeatureError
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint
from deltalakedb.snapshot import Snapshot
from deltalakedb.table import Table
from interop.data_files import write_rows
from interop.limits import Case, judge, judge_all
from interop.readers import Peers, SparkWorker

from fix_golden import GoldenTable, golden_names
from fix_published import record_of
from fix_store import Catalogs

# The rows of these cannot be read here; their files are compared.
SHREDDED = {
    "delta-spark__variant-stats-no-checkpoint",
    "delta-spark__variant-stats-state-reconstruction",
}
# Nobody may write to these who does not honour the feature: nothing is committed, and all the
# versions that were there before are compared.
NOT_WRITTEN = {
    "delta-collations-table": "collations",
    "delta-kernel__spark-variant-checkpoint": "variantType-preview",
    "delta-rs-spark-variant-checkpoint": "variantType-preview",
    "delta-rs-table_with_liquid_clustering": "liquid",
    "delta-spark-variant-checkpoint": "variantType-preview",
    "delta-spark__variant-stats-no-checkpoint": "variantShredding-preview",
    "delta-spark__variant-stats-state-reconstruction": "variantShredding-preview",
}
# How many tables the slow reader works on while the others are judged.
AHEAD = 6


@dataclass(slots=True)
class Mirrored:
    """A golden table after its take-over, one more commit, and a checkpoint."""

    golden: GoldenTable
    table: Table
    versions: list[int]
    """Those whose data files are there."""
    refusal: UnsupportedFeatureError | None
    """Why nothing can be committed."""
    answers: dict[tuple[str, int], Future[pa.Table]] = field(default_factory=dict)

    def case(self, version: int) -> Case:
        return Case(
            path=self.golden.path,
            snapshot=self.table.snapshot(version),
            name=self.golden.name,
            head=self.table.version,
        )


@dataclass(slots=True)
class Gallery:
    """Takes tables over as they are needed, some of them ahead."""

    lake: Lake
    peers: Peers
    tables: dict[str, GoldenTable]
    folder: Path
    found: dict[str, Mirrored | DeltaLakeDbError] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Mirrored | DeltaLakeDbError:
        names = golden_names()
        start = names.index(name)
        for other in names[start : start + 1 + AHEAD]:
            if other not in self.found:
                self.found[other] = self._mirrored(self.tables[other])
        return self.found[name]

    def _mirrored(self, golden: GoldenTable) -> Mirrored | DeltaLakeDbError:
        copy = golden.copy_to(self.folder)
        try:
            table = self.lake.import_table(str(copy.path), copy.name)
        except DeltaLakeDbError as error:
            return error
        refusal = one_more_commit(table, copy)
        if refusal is None:
            self.lake.mirror.run_once()
            record = record_of(self.lake, table)
            storage = self.lake.open_storage(table.location)
            write_checkpoint(self.lake.store, storage, record, table.version)
        mirrored = Mirrored(copy, table, readable_versions(table, copy.path), refusal)
        if copy.name not in SHREDDED:
            self._ask(mirrored)
        return mirrored

    def _ask(self, mirrored: Mirrored) -> None:
        for reader in self.peers:
            if isinstance(reader, SparkWorker):
                for version in chosen(mirrored.versions, few=reader.slow):
                    answer = reader.ask_read(mirrored.golden.path, version=version)
                    mirrored.answers[reader.name, version] = answer


def chosen(versions: list[int], *, few: bool) -> list[int]:
    """All of them; of many for a slow reader the first, the one in the middle and the last two."""
    if not few or len(versions) <= 4:
        return versions
    return [versions[0], versions[len(versions) // 2], *versions[-2:]]


def one_more_commit(table: Table, golden: GoldenTable) -> UnsupportedFeatureError | None:
    """Append some rows of the table once more; why not, where its features forbid it."""
    head = table.snapshot()
    try:
        if golden.facts["data_complete"] and golden.name not in SHREDDED and head.schema.fields:
            adds = write_rows(golden.path, head, sample(head), "one-more")
            table.commit(adds, operation="WRITE", enforced=WRITES_UNLESS_USED)
        else:
            # There are no rows, or none that can be written.
            table.commit([], operation="STREAMING UPDATE", app_txn=("one more", 1))
    except UnsupportedFeatureError as error:
        return error
    return None


def sample(snapshot: Snapshot) -> pa.Table:
    """Some rows; where there are none, one that has a value only where it must."""
    rows = snapshot.to_arrow()
    if rows.num_rows:
        return rows.slice(0, 3)
    schema = schema_to_arrow(snapshot.schema)
    row = {field.name: None if field.nullable else 0 for field in schema}
    return pa.Table.from_pylist([row], schema=schema)


def readable_versions(table: Table, folder: Path) -> list[int]:
    found = []
    for record in reversed(table.history(None)):
        paths = table.snapshot(record.version).files(columns=["path"])["path"].to_pylist()
        if all((folder / unquote(path)).exists() for path in paths):
            found.append(record.version)
    return found


@pytest.fixture(scope="module")
def gallery(
    catalogs: Catalogs,
    peers: Peers,
    golden_tables: dict[str, GoldenTable],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gallery]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url, mirror="worker") as lake:
        yield Gallery(lake, peers, golden_tables, tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("name", golden_names())
def test_every_reader_sees_our_rows_at_every_version(
    name: str, golden_tables: dict[str, GoldenTable], gallery: Gallery, peers: Peers
) -> None:
    golden = golden_tables[name]
    mirrored = gallery[name]
    if isinstance(mirrored, DeltaLakeDbError):
        assert not golden.must_import, mirrored
        return
    check_log(golden, mirrored)
    if golden.facts["data_complete"] and name not in SHREDDED:
        check_rows(mirrored, peers)
    else:
        check_files(mirrored)


def check_log(golden: GoldenTable, mirrored: Mirrored) -> None:
    """What was there is untouched; the new commit continues its numbering."""
    before, after = golden.path / "_delta_log", mirrored.golden.path / "_delta_log"
    for commit in before.glob("*.json"):
        if b"{{FOLDER" not in commit.read_bytes():
            assert (after / commit.name).read_bytes() == commit.read_bytes()
    feature = NOT_WRITTEN.get(golden.name)
    assert (mirrored.refusal is None) == (feature is None), mirrored.refusal
    assert feature is None or feature in str(mirrored.refusal)
    head = golden.facts["latest_version"] + (mirrored.refusal is None)
    assert mirrored.table.version == head
    if mirrored.refusal is None:
        assert (after / f"{head:020d}.json").exists()
        assert list(after.glob(f"{head:020d}.checkpoint*"))
    assert not (after / f"{head + 1:020d}.json").exists()


def check_rows(mirrored: Mirrored, peers: Peers) -> None:
    assert mirrored.versions[-1] == mirrored.table.version
    problems = []
    for version in mirrored.versions:
        case = mirrored.case(version)
        ours = case.snapshot.to_arrow()
        for reader in peers:
            answer = mirrored.answers.get((reader.name, version))
            if version in chosen(mirrored.versions, few=reader.slow):
                problems.append(judge(reader, case, ours, answer))
    judge_all(problems)


def check_files(mirrored: Mirrored) -> None:
    """Where rows cannot be read, the files are compared."""
    snapshot = mirrored.table.snapshot()
    if snapshot.metadata.schema_string is None:
        with pytest.raises(DeltaError, match="schemaString"):
            DeltaTable(str(mirrored.golden.path))
        return
    theirs = DeltaTable(str(mirrored.golden.path)).file_uris()
    paths = snapshot.files(columns=["path"])["path"].to_pylist()
    ours = [str(mirrored.golden.path / unquote(path)) for path in paths]
    assert sorted(unquote(uri) for uri in theirs) == sorted(ours)
