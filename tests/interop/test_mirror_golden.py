"""Tables of other engines, taken over and published: every reader sees our rows, at every version.

Each golden table is copied and imported, with the figures that are known of it. Then rows are
appended, published by the mirror, and a checkpoint is written. What a reader cannot do is declared
in `limits.py`, and every limit that stands there is met here, or the list is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
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
from interop.data_files import hide_rows, live_files, write_rows
from interop.limits import LIMITS, ONE_DOUBLE, Case, Limit, judge, judge_all, limit_of
from interop.readers import Peers, Reader, SparkWorker

from support.golden import GoldenTable, file_digest, golden_names
from support.lake import Json
from support.profiles import SOAK
from support.published import record_of
from support.store import Catalogs

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
# Rows of these are appended by committing files that were written with care: `append` does not
# make the values that their features ask for.
NOT_APPENDED = {
    "delta-spark__dbr_8_1_generated_columns": "delta.generationExpression",
    "delta-table-with-icebegCompatV2Enabled": "icebergCompatV2",
}
# How many tables the slow reader works on while the others are judged.
AHEAD = 6


@dataclass(frozen=True, slots=True)
class Added:
    """What came of one more commit: how many rows were added, and which doors were closed."""

    rows: int
    no_append: UnsupportedFeatureError | None = None
    no_commit: UnsupportedFeatureError | None = None


@dataclass(slots=True)
class Mirrored:
    """A golden table after its take-over, one more commit, and a checkpoint."""

    golden: GoldenTable
    table: Table
    versions: list[int]
    """Those whose data files are there."""
    added: Added
    answers: dict[tuple[str, int], Future[pa.Table]] = field(default_factory=dict)

    @property
    def has_rows(self) -> bool:
        """Whether there are data files, and such as can be read here."""
        return bool(self.golden.facts["data_complete"]) and self.golden.name not in SHREDDED

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
    made: list[Case] = field(default_factory=list)
    """Tables that show what no golden table shows."""

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
        added = one_more_commit(table, copy)
        if added.no_commit is None:
            self.lake.mirror.run_once()
            record = record_of(self.lake, table)
            storage = self.lake.open_storage(table.location)
            write_checkpoint(self.lake.store, storage, record, table.version)
        mirrored = Mirrored(copy, table, readable_versions(table, copy.path), added)
        if mirrored.has_rows:
            self._ask(mirrored)
        return mirrored

    def answer(self, reader: Reader, case: Case) -> Future[pa.Table] | None:
        """What a reader that is asked ahead was asked for already."""
        mirrored = self.found.get(case.name)
        if not isinstance(mirrored, Mirrored):
            return None
        return mirrored.answers.get((reader.name, case.version))

    def _ask(self, mirrored: Mirrored) -> None:
        for reader in self.peers:
            if isinstance(reader, SparkWorker):
                for version in chosen(mirrored.versions, few=reader.slow):
                    answer = reader.ask_read(mirrored.golden.path, version=version)
                    mirrored.answers[reader.name, version] = answer


def chosen(versions: list[int], *, few: bool) -> list[int]:
    """All of them; for a slow reader the last, and in the long form three more."""
    if not few:
        return versions
    middle = versions[len(versions) // 2]
    return sorted({versions[0], middle, *versions[-2:]}) if SOAK else versions[-1:]


def one_more_commit(table: Table, golden: GoldenTable) -> Added:
    """Append some rows of the table once more, by the public door where it opens."""
    head = table.snapshot()
    if not golden.facts["data_complete"] or golden.name in SHREDDED or not head.schema.fields:
        # There are no rows, or none that can be written.
        return _committed(table, [], 0, app_txn=("one more", 1))
    rows = sample(head)
    try:
        table.append(rows)
    except UnsupportedFeatureError as error:
        adds = write_rows(golden.path, head, rows, "one-more")
        added = _committed(table, adds, rows.num_rows)
        return added if added.no_commit else replace(added, no_append=error)
    return Added(rows.num_rows)


def _committed(table: Table, actions: list[Json], rows: int, **options: Any) -> Added:
    try:
        table.commit(actions, operation="WRITE", enforced=WRITES_UNLESS_USED, **options)
    except UnsupportedFeatureError as error:
        return Added(0, no_commit=error)
    return Added(rows)


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
        folder = tmp_path_factory.mktemp("golden")
        yield Gallery(lake, peers, golden_tables, folder, made=list(made_tables(lake, folder)))


def made_tables(lake: Lake, folder: Path) -> Iterator[Case]:
    """What no golden table shows: a long double, a hidden row below `a b`, a late publication."""
    double = made_table(lake, folder, ONE_DOUBLE, {"x": [0.9041325298027265]})
    hidden = made_table(lake, folder, "hidden", {"x": [1, 2], "part": ["a b", "a b"]})
    (file,) = live_files(hidden.snapshot())
    hidden.commit(hide_rows(hidden, file, {1}), operation="DELETE")
    late = made_table(lake, folder, "late", {"x": [1]})
    lake.mirror.run_once()
    for table in (double, hidden):
        yield Case(folder / table.name, table.snapshot(), table.name, head=table.version)
    snapshot = late.snapshot()
    tomorrow = snapshot.timestamp.timestamp() + 24 * 3600
    for commit in (folder / "late" / "_delta_log").glob("*.json"):
        os.utime(commit, (tomorrow, tomorrow))
    yield Case(folder / "late", snapshot, "late", snapshot.timestamp, head=1)


def made_table(lake: Lake, folder: Path, name: str, rows: dict[str, Any]) -> Table:
    data = pa.table(rows)
    partitions = [column for column in data.column_names if column == "part"]
    properties = {"delta.enableDeletionVectors": "true"}
    table = lake.create_table(
        name,
        location=str(folder / name),
        schema=data.schema,
        partition_by=partitions,
        properties=properties,
    )
    table.append(data)
    return table


@pytest.mark.parametrize("name", golden_names())
def test_every_reader_sees_our_rows_at_every_version(
    name: str, golden_tables: dict[str, GoldenTable], gallery: Gallery
) -> None:
    golden = golden_tables[name]
    mirrored = gallery[name]
    if isinstance(mirrored, DeltaLakeDbError):
        assert not golden.must_import, mirrored
        return
    check_import(golden, mirrored)
    check_log(golden, mirrored)
    if mirrored.has_rows:
        check_rows(mirrored, gallery)
    else:
        check_files(mirrored)


def check_import(golden: GoldenTable, mirrored: Mirrored) -> None:
    """The versions that came in have the files, and the newest of them all figures, as known."""
    facts, table = golden.facts, mirrored.table
    for expected in facts["snapshots"]:
        files = table.snapshot(expected["v"]).files(columns=["path", "dv_id", "size_bytes"])
        vectors = [mirrored.golden.as_it_lay(dv or "") for dv in files["dv_id"].to_pylist()]
        keys = zip(files["path"].to_pylist(), vectors, strict=True)
        assert file_digest(keys) == expected["digest"]
        assert sum(files["size_bytes"].to_pylist()) == expected["bytes"]
    head = table.snapshot(facts["latest_version"])
    assert head.num_files == facts["active_files"]
    assert list(head.partition_columns) == facts["partition_columns"]
    assert dict(head.properties) == facts["configuration"]
    if mirrored.has_rows:
        assert head.to_arrow(columns=[]).num_rows == facts["expected_rows"]


def check_log(golden: GoldenTable, mirrored: Mirrored) -> None:
    """What was there is untouched; the new commit continues its numbering."""
    before, after = golden.path / "_delta_log", mirrored.golden.path / "_delta_log"
    for commit in before.glob("*.json"):
        if b"{{FOLDER" not in commit.read_bytes():
            assert (after / commit.name).read_bytes() == commit.read_bytes()
    check_doors(golden.name, mirrored.added)
    committed = mirrored.added.no_commit is None
    head = golden.facts["latest_version"] + committed
    assert mirrored.table.version == head
    if committed:
        assert (after / f"{head:020d}.json").exists()
        assert list(after.glob(f"{head:020d}.checkpoint*"))
    assert not (after / f"{head + 1:020d}.json").exists()


def check_doors(name: str, added: Added) -> None:
    """Only known tables are refused, and for the known reason."""
    for known, refusal in ((NOT_WRITTEN, added.no_commit), (NOT_APPENDED, added.no_append)):
        assert (refusal is None) == (name not in known), refusal
        assert refusal is None or known[name] in str(refusal)


def check_rows(mirrored: Mirrored, gallery: Gallery) -> None:
    assert mirrored.versions[-1] == mirrored.table.version
    rows = mirrored.table.snapshot().to_arrow(columns=[]).num_rows
    assert rows == mirrored.golden.facts["expected_rows"] + mirrored.added.rows
    problems = []
    for version in mirrored.versions:
        case = mirrored.case(version)
        ours = case.snapshot.to_arrow()
        problems += [
            judge(reader, case, ours, gallery.answer(reader, case))
            for reader in gallery.peers
            if version in chosen(mirrored.versions, few=reader.slow)
        ]
    judge_all(problems)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.reader} {limit.why}")
def test_a_declared_limit_is_met(limit: Limit, gallery: Gallery, peers: Peers) -> None:
    """A limit that no table meets could hide an error of ours; one that is met is judged."""
    if limit.reader in peers.missing:
        pytest.skip(f"{limit.reader}: {peers.missing[limit.reader]}")
    reader = peers.there[limit.reader]
    met = (case for case in cases(gallery, reader) if limit_of(reader, case) is limit)
    case = next(met, None)
    assert case is not None, "no table shows it: it must go from the list"
    ours = case.snapshot.to_arrow()
    assert judge(reader, case, ours, gallery.answer(reader, case)) is None


def cases(gallery: Gallery, reader: Reader) -> Iterator[Case]:
    """What shows limits: tables made for it, and golden ones; what was asked for comes first."""
    yield from gallery.made
    found = [gallery[name] for name in golden_names()]
    readable = [one for one in found if isinstance(one, Mirrored) and one.has_rows]
    for one in readable:
        yield from (one.case(version) for version in chosen(one.versions, few=reader.slow))
    for one in readable:
        yield from (one.case(version) for version in one.versions)


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
