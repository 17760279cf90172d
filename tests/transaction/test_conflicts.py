"""What the matrix does not show: exceptions to the rules, messages, and the derived rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from deltalakedb.actions import (
    Action,
    CdcFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Txn,
    UnknownAction,
)
from deltalakedb.errors import (
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConcurrentTransactionError,
    ConfigurationError,
    MetadataChangedError,
    ProtocolChangedError,
    UnsupportedFeatureError,
)
from deltalakedb.transaction import (
    Attempt,
    IsolationLevel,
    ReadSet,
    Winner,
    check_conflict,
    isolation_of,
    merge_read_sets,
)
from transaction.examples import (
    LEGACY,
    add,
    column,
    features,
    info,
    mapped,
    remove,
    schema,
    table,
    vector,
)

BASE = table(column("id"), column("s", {"type": "struct", "fields": [column("x")]}))


def _check(
    ours: list[Action],
    theirs: list[Action],
    *,
    reads: ReadSet | None = None,
    protocol: Protocol = LEGACY,
    metadata: Metadata = BASE,
) -> None:
    attempt = Attempt(reads or ReadSet(), ours)
    check_conflict(attempt, Winner(4, theirs), base_protocol=protocol, base_metadata=metadata)


def _set(metadata: Metadata, **properties: str) -> Metadata:
    named = {f"delta.{name.replace('__', '.')}": text for name, text in properties.items()}
    return replace(metadata, configuration={**metadata.configuration, **named})


class TestProtocol:
    @pytest.mark.parametrize(
        "name",
        ["deletionVectors", "columnMapping", "v2Checkpoint", "timestampNtz", "typeWidening"],
    )
    def test_an_added_reader_feature_that_binds_no_writer_is_no_conflict(self, name: str) -> None:
        _check([add()], [features("appendOnly", "invariants", reader=(name,))])

    @pytest.mark.parametrize(
        "name", ["inCommitTimestamp", "rowTracking", "domainMetadata", "changeDataFeed"]
    )
    def test_an_added_writer_feature_of_the_committer_is_no_conflict(self, name: str) -> None:
        _check([add()], [features("appendOnly", "invariants", name)])

    @pytest.mark.parametrize(
        "name",
        ["checkConstraints", "generatedColumns", "identityColumns", "allowColumnDefaults"],
    )
    def test_an_added_constraint_is_a_conflict_that_names_it(self, name: str) -> None:
        with pytest.raises(ProtocolChangedError, match=name):
            _check([add()], [features("appendOnly", "invariants", name)])

    def test_clustering_constrains_writers(self) -> None:
        with pytest.raises(ProtocolChangedError, match="clustering"):
            _check([add()], [features("appendOnly", "invariants", "domainMetadata", "clustering")])

    def test_legacy_versions_count_by_the_features_they_imply(self) -> None:
        _check([add()], [Protocol(1, 4)], protocol=features(*_LEGACY_4))
        with pytest.raises(ProtocolChangedError, match="checkConstraints"):
            _check([add()], [Protocol(1, 3)])

    def test_a_dropped_feature_is_a_conflict(self) -> None:
        before = features("appendOnly", "invariants", reader=("deletionVectors",))
        with pytest.raises(ProtocolChangedError, match="dropped the feature 'deletionVectors'"):
            _check([add()], [LEGACY], protocol=before)

    def test_two_changes_of_the_protocol_conflict_even_if_harmless(self) -> None:
        wanted = features("appendOnly", "invariants", reader=("deletionVectors",))
        with pytest.raises(ProtocolChangedError, match="Both commits"):
            _check([wanted], [wanted])

    def test_a_protocol_that_only_repeats_the_present_one_is_no_change(self) -> None:
        _check([add()], [LEGACY])

    @pytest.mark.parametrize(
        "after",
        [
            features("appendOnly", "invariants", reader=("variantType",)),
            features("appendOnly", "invariants", "madeUpFeature"),
            Protocol(3, 8),
        ],
    )
    def test_a_protocol_nobody_here_can_write_is_not_worth_a_retry(self, after: Protocol) -> None:
        with pytest.raises(UnsupportedFeatureError):
            _check([add()], [after])

    def test_a_feature_the_table_had_already_is_not_judged_again(self) -> None:
        before = features("appendOnly", "invariants", "madeUpFeature")
        after = features("appendOnly", "invariants", "madeUpFeature", "inCommitTimestamp")
        _check([add()], [after], protocol=before)


_LEGACY_4 = ("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns")


class TestMetadata:
    @pytest.mark.parametrize(
        "after",
        [
            _set(BASE, enableRowTracking="true", rowTracking__materializedRowIdColumnName="_r"),
            _set(BASE, enableDeletionVectors="true"),
            _set(
                BASE,
                enableInCommitTimestamps="true",
                inCommitTimestampEnablementVersion="4",
                inCommitTimestampEnablementTimestamp="1700000000000",
            ),
            _set(BASE, checkpointPolicy="v2"),
            replace(
                _set(BASE, columnMapping__mode="name", columnMapping__maxColumnId="3"),
                schema_string=schema(
                    mapped("id", 1),
                    mapped("s", 2, of_type={"type": "struct", "fields": [mapped("x", 3)]}),
                ),
            ),
            BASE,
        ],
        ids=["row tracking", "vectors", "in-commit timestamps", "v2", "mapping", "unchanged"],
    )
    def test_switching_on_what_leaves_our_files_right_is_no_conflict(self, after: Metadata) -> None:
        _check([add()], [after])
        if after != BASE:
            with pytest.raises(MetadataChangedError, match="changes the metadata too"):
                _check([_set(BASE, logRetentionDuration="interval 1 day")], [after])

    @pytest.mark.parametrize(
        ("after", "named"),
        [
            (_set(BASE, appendOnly="true"), "delta.appendOnly"),
            (_set(BASE, enableDeletionVectors="false"), "delta.enableDeletionVectors"),
            (_set(BASE, enableChangeDataFeed="true"), "delta.enableChangeDataFeed"),
            (_set(BASE, columnMapping__mode="id"), "delta.columnMapping.mode"),
            (replace(BASE, schema_string=schema(column("id"))), "the schema"),
            (replace(BASE, partition_columns=("id",)), "the partition columns"),
            (replace(BASE, description="news"), "description"),
            (replace(BASE, id="another"), "identity"),
        ],
    )
    def test_any_other_change_is_a_conflict_that_names_it(
        self, after: Metadata, named: str
    ) -> None:
        with pytest.raises(MetadataChangedError, match=named):
            _check([add()], [after])

    def test_switching_off_is_a_conflict(self) -> None:
        before = _set(BASE, enableDeletionVectors="true")
        with pytest.raises(MetadataChangedError):
            _check([add()], [_set(BASE, enableDeletionVectors="false")], metadata=before)
        with pytest.raises(MetadataChangedError):
            _check([add()], [BASE], metadata=before)

    def test_mapping_that_renames_a_column_in_files_is_a_conflict(self) -> None:
        after = replace(
            _set(BASE, columnMapping__mode="name", columnMapping__maxColumnId="3"),
            schema_string=schema(
                mapped("id", 1, "col-7"),
                mapped("s", 2, of_type={"type": "struct", "fields": [mapped("x", 3)]}),
            ),
        )
        with pytest.raises(MetadataChangedError):
            _check([add()], [after])

    def test_a_new_identity_watermark_alone_is_no_conflict(self) -> None:
        def identity(mark: int) -> Metadata:
            marks = {"delta.identity.start": 1, "delta.identity.highWaterMark": mark}
            return table(column("id", metadata=marks))

        _check([add()], [identity(20)], metadata=identity(10))
        with pytest.raises(MetadataChangedError):
            _check([identity(15)], [identity(20)], metadata=identity(10))
        with pytest.raises(MetadataChangedError):
            _check([add()], [_set(identity(20), appendOnly="true")], metadata=identity(10))


class TestDomainsAndAppTransactions:
    def test_the_domain_of_row_tracking_is_rebased(self) -> None:
        domain = DomainMetadata("delta.rowTracking", '{"rowIdHighWaterMark":1}', removed=False)
        _check([add(), domain], [add("b"), domain])

    def test_the_message_names_every_shared_domain(self) -> None:
        ours = [DomainMetadata(name, "{}", removed=False) for name in ("a", "b", "c")]
        theirs = [DomainMetadata(name, "", removed=True) for name in ("c", "b")]
        with pytest.raises(ConcurrentTransactionError, match="the metadata domains 'b', 'c'"):
            _check([*ours], [*theirs])

    def test_a_txn_we_write_counts_as_read(self) -> None:
        with pytest.raises(ConcurrentTransactionError, match="the app transaction 'stream'"):
            _check([add(), Txn("stream", 3)], [Txn("stream", 2)])


class TestFiles:
    def test_the_partition_test_gets_raw_values_once_for_each_partition(self) -> None:
        asked: list[Mapping[str, str | None]] = []

        def test(values: Mapping[str, str | None]) -> bool:
            asked.append(values)
            return values["p"] is None

        winner = [add(f"{n}", partition_values={"p": None if n == 7 else "x"}) for n in range(9)]
        with pytest.raises(ConcurrentAppendError, match="'7'") as caught:
            _check([add()], [*winner], reads=ReadSet(partitions=test))
        assert "the partition p=None" in str(caught.value)
        assert asked == [{"p": "x"}, {"p": None}]

    def test_a_read_with_a_condition_of_an_unpartitioned_table_sees_every_add(self) -> None:
        with pytest.raises(ConcurrentAppendError, match="no partitions"):
            _check([add()], [add("w")], reads=ReadSet(partitions=lambda _: True))

    def test_the_message_names_one_file_and_counts_the_rest(self) -> None:
        winner = [remove(name) for name in ("c", "a", "b", "z")]
        reads = ReadSet(files=frozenset({"c", "b", "a"}))
        with pytest.raises(ConcurrentDeleteReadError, match="'a' and 2 more"):
            _check([add()], [*winner], reads=reads)

    def test_two_deletion_vectors_for_one_file_conflict(self) -> None:
        ours: list[Action] = [remove("f"), add("f", deletion_vector=vector(offset=1))]
        theirs: list[Action] = [remove("f"), add("f", deletion_vector=vector(offset=99))]
        with pytest.raises(ConcurrentDeleteDeleteError):
            _check(ours, theirs)

    def test_a_file_removed_meanwhile_is_not_brought_back_by_refreshing_it(self) -> None:
        with pytest.raises(ConcurrentDeleteReadError, match="adds again: 'f'"):
            _check([add("f", stats="{}")], [remove("f")])

    def test_a_path_added_twice_must_be_the_same_file(self) -> None:
        _check([add("f")], [add("f")])
        with pytest.raises(ConcurrentAppendError, match="adds too: 'f'"):
            _check([add("f", deletion_vector=vector())], [add("f")])


class TestAttempt:
    def test_a_blind_append_adds_and_does_nothing_else(self) -> None:
        rest: list[Action] = [info(), Txn("a", 1), DomainMetadata("d", "", removed=False)]
        assert Attempt(ReadSet(), [add(), *rest]).is_blind_append
        assert Attempt(ReadSet(app_ids=frozenset("a")), [add()]).is_blind_append

    @pytest.mark.parametrize(
        ("reads", "more"),
        [
            (ReadSet(whole_table=True), None),
            (ReadSet(partitions=lambda _: False), None),
            (ReadSet(files=frozenset({"f"})), None),
            (ReadSet(), remove("b")),
            (ReadSet(), BASE),
            (ReadSet(), LEGACY),
            (ReadSet(), CdcFile("_change_data/c", {}, 1)),
            (ReadSet(), UnknownAction("x", 1)),
        ],
    )
    def test_anything_more_is_no_blind_append(self, reads: ReadSet, more: Action | None) -> None:
        assert not Attempt(reads, [add(), *([more] if more else [])]).is_blind_append

    def test_without_files_there_is_no_append(self) -> None:
        assert not Attempt(ReadSet(), [Txn("a", 1)]).is_blind_append

    @pytest.mark.parametrize(
        ("actions", "snapshot"),
        [
            ([add(data_change=False), remove("b", data_change=False)], True),
            ([add(data_change=False), CommitInfo({"operation": "OPTIMIZE"})], True),
            ([add(data_change=False), DomainMetadata("delta.rowTracking", "", False)], True),
            ([add(data_change=False), remove("b")], False),
            ([add(data_change=False), Txn("a", 1)], False),
            ([add(data_change=False), BASE], False),
            ([add(data_change=False), LEGACY], False),
            ([add(data_change=False), DomainMetadata("d", "", False)], False),
            ([BASE], False),
            ([], False),
        ],
    )
    def test_rewriting_files_without_changing_data_needs_only_snapshots(
        self, actions: list[Action], snapshot: bool
    ) -> None:
        level = Attempt(ReadSet(), actions, IsolationLevel.SERIALIZABLE).effective_isolation
        expected = IsolationLevel.SNAPSHOT if snapshot else IsolationLevel.SERIALIZABLE
        assert level is expected

    def test_derived_facts(self) -> None:
        attempt = Attempt(
            ReadSet(app_ids=frozenset({"read"})),
            [add("a"), remove("b"), Txn("own", 1), DomainMetadata("d", "", removed=False), LEGACY],
        )
        assert attempt.removed_paths == {"b"}
        assert attempt.app_ids == {"read", "own"}
        assert attempt.domains == {"d"}
        assert attempt.data_change
        assert attempt.changes_protocol
        assert not attempt.changes_metadata


class TestWinner:
    @pytest.mark.parametrize(("flag", "blind"), [(True, True), (False, False), (None, False)])
    def test_silence_about_blindness_counts_as_no(self, flag: bool | None, blind: bool) -> None:
        assert Winner(1, [info(blind=flag), add()]).is_blind_append is blind

    def test_a_commit_without_commit_info(self) -> None:
        winner = Winner(1, [add()])
        assert not winner.is_blind_append
        assert winner.operation == "an unnamed operation"


class TestReadSets:
    def test_merging_nothing_reads_nothing(self) -> None:
        assert merge_read_sets() == ReadSet()
        assert not merge_read_sets(ReadSet(), ReadSet()).reads_files

    def test_merging_keeps_every_read(self) -> None:
        merged = merge_read_sets(
            ReadSet(partitions=lambda v: v["p"] == "1", files=frozenset("a")),
            ReadSet(partitions=lambda v: v["p"] == "2", app_ids=frozenset("x")),
            ReadSet(files=frozenset("b")),
        )
        assert merged.partitions is not None
        assert [merged.partitions({"p": p}) for p in "123"] == [True, True, False]
        assert merged.files == {"a", "b"}
        assert merged.app_ids == {"x"}
        assert not merged.whole_table
        assert merge_read_sets(merged, ReadSet(whole_table=True)).whole_table


class TestIsolationOf:
    @pytest.mark.parametrize(
        ("text", "level"),
        [
            (None, IsolationLevel.SERIALIZABLE),
            ("Serializable", IsolationLevel.SERIALIZABLE),
            ("WriteSerializable", IsolationLevel.WRITE_SERIALIZABLE),
            ("writeserializable", IsolationLevel.WRITE_SERIALIZABLE),
        ],
    )
    def test_levels(self, text: str | None, level: IsolationLevel) -> None:
        assert isolation_of(_set(BASE, isolationLevel=text) if text else BASE) is level

    @pytest.mark.parametrize("text", ["SnapshotIsolation", "ReadCommitted", ""])
    def test_other_values_are_refused_by_name(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="WriteSerializable"):
            isolation_of(_set(BASE, isolationLevel=text))
