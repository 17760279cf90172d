"""One test a rule for the files of a commit."""

from __future__ import annotations

from typing import Any

import pytest

from deltalakedb.actions import Action, CdcFile, DeletionVectorDescriptor, Metadata, Protocol
from deltalakedb.errors import CommitRejectedError
from deltalakedb.transaction import Rule, check_live_files, refreshed_paths, validate_commit
from transaction.examples import (
    LEGACY,
    add,
    column,
    features,
    info,
    mapped,
    remove,
    table,
    vector,
)

VECTORS = features(reader=("deletionVectors",))


def accepted(
    *actions: Action, metadata: Metadata | None = None, protocol: Protocol = LEGACY
) -> None:
    validate_commit(actions, metadata=metadata or table(), protocol=protocol)


def refused(
    rule: Rule, *actions: Action, metadata: Metadata | None = None, protocol: Protocol = LEGACY
) -> str:
    with pytest.raises(CommitRejectedError) as caught:
        accepted(*actions, metadata=metadata, protocol=protocol)
    assert caught.value.rule == rule.value, str(caught.value)
    return str(caught.value)


class TestEachPathOnce:
    def test_one_add(self) -> None:
        accepted(add("a"), add("b"))
        assert "'a'" in refused(Rule.ONE_ADD, add("a"), add("b"), add("a"))

    def test_one_add_whatever_the_deletion_vector(self) -> None:
        other = add("a", deletion_vector=vector(), stats='{"numRecords":9}')
        refused(Rule.ONE_ADD, add("a"), other, protocol=VECTORS)

    def test_two_spellings_are_one_file(self) -> None:
        message = refused(Rule.ONE_ADD, add("x=a%20b/f"), add("x=a b/f"))
        assert "also written" in message

    def test_one_remove(self) -> None:
        accepted(remove("a"), remove("b"))
        assert "'a'" in refused(Rule.ONE_REMOVE, remove("a"), remove("a", deletion_vector=vector()))

    def test_add_and_remove_only_to_exchange_the_deletion_vector(self) -> None:
        new = add("a", deletion_vector=vector(), stats='{"numRecords":9}')
        accepted(remove("a"), new, protocol=VECTORS)
        accepted(remove("a", deletion_vector=vector(offset=7)), new, protocol=VECTORS)
        refused(Rule.ADD_AND_REMOVE, remove("a"), add("a"))
        same = remove("a", deletion_vector=vector())
        refused(Rule.ADD_AND_REMOVE, same, new, protocol=VECTORS)


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        [
            "part-0.parquet",
            "day=2024-01-01/part-0.parquet",
            "a..b/c...parquet",
            ".hidden/x",
            "_c=1/x",
            "x=A%252FA/y",
            "x=a%20b/y",
            "s3://bucket/other/part-0.parquet",
            "file:///data/part-0.parquet",
        ],
    )
    def test_relative_paths_and_absolute_uris_are_fine(self, path: str) -> None:
        accepted(add(path))

    @pytest.mark.parametrize(
        "path",
        [
            "",
            "/data/x",
            "../x",
            "a/../x",
            "./x",
            "a/./x",
            "a/..",
            "%2e%2e/x",
            "a/%2E./x",
            "..%2Fx",
            "s3://bucket/a/../b",
            "_delta_log/x",
            "_change_data/x",
            "a%ff",
        ],
    )
    def test_paths_that_mean_two_things_are_refused(self, path: str) -> None:
        refused(Rule.PATH, add(path))

    def test_a_file_that_is_there_under_such_a_path_can_still_be_removed(self) -> None:
        accepted(remove("/data/x"))


class TestNumbers:
    @pytest.mark.parametrize(
        "action",
        [
            add(size=-1),
            add(modification_time=-1),
            remove(size=-1),
            remove(deletion_timestamp=-1),
        ],
    )
    def test_negative_sizes_and_times_are_refused(self, action: Action) -> None:
        assert "-1" in refused(Rule.NON_NEGATIVE, action)

    def test_zero_is_fine(self) -> None:
        accepted(add(size=0, modification_time=0), remove("b", size=0, deletion_timestamp=None))

    def test_extended_metadata_is_complete_or_absent(self) -> None:
        accepted(remove(extended_file_metadata=True, size=1, partition_values={}))
        accepted(remove(extended_file_metadata=False))
        refused(Rule.REMOVE_METADATA, remove(extended_file_metadata=True, size=1))
        refused(Rule.REMOVE_METADATA, remove(extended_file_metadata=True, partition_values={}))


class TestStatistics:
    @pytest.mark.parametrize(
        "stats",
        [
            None,
            "{}",
            '{"numRecords":0}',
            '{"numRecords": 12,"minValues":{}}',
            '{"minValues":{"numRecords":-1},"numRecords":3}',
            ' { "numRecords" : 3 } ',
            '{"numRecords":null}',
            '{"minValues":{"a":1.5e300}}',
        ],
    )
    def test_sound_statistics(self, stats: str | None) -> None:
        accepted(add(stats=stats))

    @pytest.mark.parametrize(
        "stats",
        [
            "",
            "numRecords",
            "[]",
            "null",
            '{"numRecords":-1}',
            '{"numRecords":1.5}',
            '{"numRecords":"1"}',
            '{"numRecords":true}',
            '{"numRecords":1',
            '{"minValues":{"a":NaN}}',
            '{"minValues":{"a":1}} trailing',
        ],
    )
    def test_unsound_statistics(self, stats: str) -> None:
        assert "'a.parquet'" in refused(Rule.STATISTICS, add(stats=stats))


class TestDeletionVectors:
    def test_a_sound_vector(self) -> None:
        file = add(deletion_vector=vector(), stats='{"numRecords":2}')
        accepted(file, protocol=VECTORS)
        inline = DeletionVectorDescriptor("i", "wi5b=000010000siXQKl0rr91000f55c8Xg0", 40, 6)
        accepted(add(deletion_vector=inline, stats='{"numRecords":9}'), protocol=VECTORS)
        absolute = DeletionVectorDescriptor("p", "s3://b/d.bin", 40, 6, 4)
        accepted(add(deletion_vector=absolute, stats='{"numRecords":9}'), protocol=VECTORS)

    def test_the_table_needs_the_feature(self) -> None:
        file = add(deletion_vector=vector(), stats='{"numRecords":2}')
        assert "deletionVectors" in refused(Rule.DELETION_VECTOR, file)

    @pytest.mark.parametrize(
        "bad",
        [
            DeletionVectorDescriptor("x", "abc", 1, 1),
            DeletionVectorDescriptor("u", "too short", 1, 1, 1),
            DeletionVectorDescriptor("u", "\x00" * 20, 1, 1, 1),
            DeletionVectorDescriptor("p", "", 1, 1, 1),
            DeletionVectorDescriptor("i", "abcde", 1, 1, 0),
            DeletionVectorDescriptor("p", "s3://b/d", 1, -1, 1),
            DeletionVectorDescriptor("p", "s3://b/d", -1, 1, 1),
            DeletionVectorDescriptor("p", "s3://b/d", 1, 1, -1),
            DeletionVectorDescriptor("p", "s3://b/d", 1, 10, 1),
        ],
        ids=lambda bad: f"{bad.storage_type}-{bad.path_or_inline_dv!r}-{bad.cardinality}",
    )
    def test_unsound_vectors(self, bad: DeletionVectorDescriptor) -> None:
        file = add(deletion_vector=bad, stats='{"numRecords":9}')
        refused(Rule.DELETION_VECTOR, file, protocol=VECTORS)

    @pytest.mark.parametrize("stats", [None, "{}"])
    def test_with_a_vector_the_count_of_rows_is_mandatory(self, stats: str | None) -> None:
        file = add(deletion_vector=vector(), stats=stats)
        assert "mandatory" in refused(Rule.STATISTICS, file, protocol=VECTORS)


class TestPartitionValues:
    DAILY = table(column("id"), column("day", "date"), column("k", "string"), by=("day", "k"))

    def test_a_value_or_null_for_each_column(self) -> None:
        values: dict[str, Any]
        for values in (
            {"day": "2024-01-01", "k": "x"},
            {"k": None, "day": None},
            {"day": "", "k": "a/b=c %"},
        ):
            accepted(add(partition_values=values), metadata=self.DAILY)

    def test_a_missing_column_is_named(self) -> None:
        file = add(partition_values={"day": "2024-01-01"})
        assert "no value for 'k'" in refused(Rule.PARTITION_VALUES, file, metadata=self.DAILY)

    def test_an_unknown_column_is_named(self) -> None:
        file = add(partition_values={"day": None, "k": None, "z": "1"})
        assert "a value for 'z'" in refused(Rule.PARTITION_VALUES, file, metadata=self.DAILY)

    def test_a_table_without_partitions_takes_none(self) -> None:
        refused(Rule.PARTITION_VALUES, add(partition_values={"day": None}))

    @pytest.mark.parametrize(
        ("of_type", "good", "bad"),
        [
            ("date", "2024-02-29", "2023-02-29"),
            ("integer", "-7", "7.5"),
            ("byte", "127", "128"),
            ("boolean", "true", "yes"),
            ("double", "1.5E10", "ten"),
            ("timestamp", "2024-01-01T00:00:00.000000Z", "soon"),
            ("decimal(10,2)", "1.50", "1.5"),
            ("decimal(4,2)", "99.99", "100.00"),
            ("string", "x", "__HIVE_DEFAULT_PARTITION__"),
        ],
    )
    def test_values_fit_the_type(self, of_type: str, good: str, bad: str) -> None:
        metadata = table(column("id"), column("p", of_type), by=("p",))
        accepted(add(partition_values={"p": good}), metadata=metadata)
        file = add(partition_values={"p": bad})
        message = refused(
            Rule.PARTITION_VALUES,
            add("b", partition_values={"p": good}),
            file,
            metadata=metadata,
        )
        assert repr(bad) in message

    def test_null_only_where_the_column_allows_it(self) -> None:
        metadata = table(column("id"), column("p", nullable=False), by=("p",))
        accepted(add(partition_values={"p": "1"}), metadata=metadata)
        refused(Rule.PARTITION_VALUES, add(partition_values={"p": None}), metadata=metadata)

    def test_under_column_mapping_keys_are_physical_names(self) -> None:
        metadata = table(
            mapped("id", 1, "c1"),
            mapped("day", 2, "c2", "date"),
            by=("day",),
            properties={"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
        )
        protocol = Protocol(2, 5)
        file = add(partition_values={"c2": "2024-01-01"})
        accepted(file, metadata=metadata, protocol=protocol)
        message = refused(
            Rule.PARTITION_VALUES,
            add(partition_values={"day": "2024-01-01"}),
            metadata=metadata,
            protocol=protocol,
        )
        assert "its name in files is 'c2'" in message


class TestChangeData:
    TABLE = table(properties={"delta.enableChangeDataFeed": "true"})
    FILE = CdcFile("_change_data/cdc-0.parquet", {}, 10)
    PROTOCOL = Protocol(1, 4)

    def test_where_the_feed_is_on(self) -> None:
        accepted(self.FILE, remove(), metadata=self.TABLE, protocol=self.PROTOCOL)

    def test_not_where_it_is_off(self) -> None:
        assert "enableChangeDataFeed" in refused(
            Rule.CHANGE_DATA, self.FILE, protocol=self.PROTOCOL
        )

    @pytest.mark.parametrize(
        ("rule", "file"),
        [
            (Rule.CHANGE_DATA, CdcFile("cdc-0.parquet", {}, 10)),
            (Rule.CHANGE_DATA, CdcFile("_change_data/../x", {}, 10)),
            (Rule.CHANGE_DATA, CdcFile("_change_data/x", {}, 10, data_change=True)),
            (Rule.NON_NEGATIVE, CdcFile("_change_data/x", {}, -1)),
            (Rule.PARTITION_VALUES, CdcFile("_change_data/x", {"p": None}, 1)),
        ],
    )
    def test_unsound_files(self, rule: Rule, file: CdcFile) -> None:
        refused(rule, file, metadata=self.TABLE, protocol=self.PROTOCOL)


def _live_refused(rule: Rule, live: set[tuple[str, str]], *actions: Action) -> str:
    with pytest.raises(CommitRejectedError) as caught:
        check_live_files(actions, live)
    assert caught.value.rule == rule.value
    return str(caught.value)


class TestLiveFiles:
    DV = vector().unique_id

    def test_only_a_live_file_can_be_removed(self) -> None:
        check_live_files([remove("a"), info()], {("a", "")})
        assert "'a'" in _live_refused(Rule.REMOVE_LIVE, set(), remove("a"))
        assert "'b'" in _live_refused(Rule.REMOVE_LIVE, {("a", "")}, remove("a"), remove("b"))

    def test_with_exactly_its_deletion_vector(self) -> None:
        check_live_files([remove("a", deletion_vector=vector())], {("a", self.DV)})
        message = _live_refused(Rule.REMOVE_LIVE, {("a", self.DV)}, remove("a"))
        assert self.DV in message

    def test_adding_a_live_file_again_refreshes_it(self) -> None:
        check_live_files([add("a"), add("new")], {("a", "")})

    def test_another_vector_needs_the_old_one_removed(self) -> None:
        new = add("a", deletion_vector=vector())
        check_live_files([new, remove("a")], {("a", "")})
        _live_refused(Rule.ONE_LIVE, {("a", "")}, new)
        _live_refused(Rule.ONE_LIVE, {("a", self.DV)}, add("a"))

    def test_what_is_refreshed_counts_as_read(self) -> None:
        live = {("a", ""), ("b", "")}
        assert refreshed_paths([add("a"), add("new"), remove("b")], live) == {"a"}
