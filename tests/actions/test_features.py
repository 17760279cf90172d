from __future__ import annotations

from typing import Any

import pytest

from deltalakedb.actions import Metadata, Protocol
from deltalakedb.actions.datatypes import (
    STRING,
    TIMESTAMP_NTZ,
    VARIANT,
    ArrayType,
    MapType,
    StructField,
    StructType,
    schema_to_json,
)
from deltalakedb.actions.features import (
    FEATURES,
    READ_NEWER,
    READS,
    WRITES,
    WRITES_UNLESS_USED,
    check_protocol,
    check_readable,
    check_writable,
    protocol_for,
    reader_features,
    required_features,
    upgrade,
    without,
    writer_features,
)
from deltalakedb.errors import ConfigurationError, InvalidActionError, UnsupportedFeatureError


def metadata(*fields: StructField, **configuration: str) -> Metadata:
    return Metadata(
        "id",
        schema_string=schema_to_json(StructType(fields)),
        configuration={name.replace("__", "."): value for name, value in configuration.items()},
    )


def features(*names: str) -> Protocol:
    readers = tuple(name for name in names if name in FEATURES and FEATURES[name].reader)
    return Protocol(3, 7, readers, names)


def test_old_versions_imply_their_features() -> None:
    assert required_features(Protocol(1, 1)) == set()
    assert required_features(Protocol(1, 2)) == {"appendOnly", "invariants"}
    assert required_features(Protocol(1, 4)) == {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
    }
    assert reader_features(Protocol(2, 5)) == {"columnMapping"}
    assert "columnMapping" in writer_features(Protocol(2, 5))
    assert "identityColumns" in writer_features(Protocol(2, 6))


def test_listed_features_are_taken_as_listed() -> None:
    protocol = Protocol(3, 7, ("deletionVectors",), ("deletionVectors", "clustering"))
    assert reader_features(protocol) == {"deletionVectors"}
    assert required_features(protocol) == {"deletionVectors", "clustering"}
    assert required_features(Protocol(2, 7, None, ("columnMapping",))) == {"columnMapping"}


@pytest.mark.parametrize(
    ("protocol", "word"),
    [
        (Protocol(0, 2), "begin at 1"),
        (Protocol(1, 0), "begin at 1"),
        (Protocol(1, 2, (), None), "readerFeatures"),
        (Protocol(1, 2, None, ()), "writerFeatures"),
        (Protocol(3, 7, None, ()), "readerFeatures"),
        (Protocol(3, 7, (), None), "writerFeatures"),
        (Protocol(1, 7), "writerFeatures"),
        (Protocol(3, 2, (), None), "requires writer version 7"),
        (Protocol(3, 7, ("deletionVectors",), ()), "lacks the reader features deletionVectors"),
    ],
)
def test_a_malformed_protocol_is_refused(protocol: Protocol, word: str) -> None:
    with pytest.raises(InvalidActionError, match=word):
        check_protocol(protocol)


@pytest.mark.parametrize("protocol", [Protocol(4, 7), Protocol(1, 8), Protocol(99, 7, (), ())])
def test_a_protocol_of_the_future_is_unsupported(protocol: Protocol) -> None:
    with pytest.raises(UnsupportedFeatureError, match="Upgrade"):
        check_readable(protocol)


@pytest.mark.parametrize("name", sorted(READS))
def test_what_is_read_is_readable(name: str) -> None:
    check_readable(Protocol(3, 7, (name,), (name,)))


def test_the_newer_features_are_an_explicit_choice() -> None:
    assert READ_NEWER < READS
    assert FEATURES.keys() >= READ_NEWER
    assert {f.name for f in FEATURES.values() if f.reader} >= READS


def test_every_unreadable_feature_is_named_with_the_table() -> None:
    names = ("catalogManaged", "deletionVectors", "teleport")
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_readable(Protocol(3, 7, names, names), table="sales.orders")
    message = str(caught.value)
    assert "sales.orders" in message
    assert "catalogManaged, teleport" in message
    assert "unknown: teleport" in message
    assert "deletionVectors" not in message
    assert "catalog" in caught.value.fix


@pytest.mark.parametrize("name", ["collations", "liquid", "rowTracking", "icebergCompatV2"])
def test_a_writer_only_feature_never_hinders_a_reader(name: str) -> None:
    check_readable(Protocol(1, 7, None, (name,)))


@pytest.mark.parametrize("name", sorted(WRITES))
def test_what_is_written_is_writable(name: str) -> None:
    check_writable(features(name), metadata=metadata())


@pytest.mark.parametrize(
    "name", ["collations", "liquid", "rowTracking", "variantType", "materializePartitionColumns"]
)
def test_what_a_writer_must_know_and_does_not_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=name):
        check_writable(features(name), metadata=metadata())


def test_a_caller_may_honour_a_feature_itself() -> None:
    check_writable(
        features("rowTracking", "domainMetadata"), metadata=metadata(), honours=["rowTracking"]
    )


@pytest.mark.parametrize(
    ("used", "feature"),
    [
        (metadata(delta__constraints__c="x > 0"), "checkConstraints"),
        (
            metadata(StructField("a", STRING, metadata={"delta.generationExpression": "b"})),
            "generatedColumns",
        ),
        (
            metadata(StructField("a", STRING, metadata={"delta.identity.start": 1})),
            "identityColumns",
        ),
        (metadata(StructField("a", STRING, metadata={"delta.invariants": "{}"})), "invariants"),
    ],
)
def test_features_of_old_versions_bind_only_where_they_are_used(
    used: Metadata, feature: str
) -> None:
    check_writable(Protocol(1, 6), metadata=metadata())
    with pytest.raises(UnsupportedFeatureError, match=f"{feature} because of the"):
        check_writable(Protocol(1, 6), metadata=used)
    check_writable(Protocol(1, 6), metadata=used, honours=[feature])


def test_without_metadata_features_count_as_used() -> None:
    with pytest.raises(UnsupportedFeatureError, match="checkConstraints"):
        check_writable(Protocol(1, 3))


def test_a_feature_for_readers_that_only_writers_list_is_malformed_for_writing() -> None:
    protocol = Protocol(3, 7, (), ("deletionVectors",))
    check_readable(protocol)
    with pytest.raises(InvalidActionError, match="readerFeatures lacks deletionVectors"):
        check_writable(protocol, metadata=metadata())


def test_the_sets_do_not_overlap_and_hold_known_names() -> None:
    assert not WRITES & WRITES_UNLESS_USED
    assert FEATURES.keys() >= WRITES | WRITES_UNLESS_USED


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (metadata(), Protocol(1, 2)),
        (metadata(delta__appendOnly="true"), Protocol(1, 2)),
        (metadata(delta__appendOnly="false"), Protocol(1, 2)),
        (metadata(delta__constraints__c="x > 0"), Protocol(1, 3)),
        (metadata(delta__enableChangeDataFeed="true"), Protocol(1, 4)),
        (
            metadata(StructField("a", STRING, metadata={"delta.generationExpression": "1"})),
            Protocol(1, 4),
        ),
        (metadata(delta__columnMapping__mode="name"), Protocol(2, 5)),
        (metadata(StructField("a", STRING, metadata={"delta.identity.step": 1})), Protocol(1, 6)),
        (metadata(delta__minWriterVersion="4"), Protocol(1, 4)),
        (metadata(delta__minWriterVersion="7", delta__minReaderVersion="3"), Protocol(1, 2)),
        (metadata(delta__minReaderVersion="2"), Protocol(2, 5)),
    ],
)
def test_a_new_table_gets_a_legacy_protocol_where_that_is_enough(
    table: Metadata, expected: Protocol
) -> None:
    assert protocol_for(table) == expected


@pytest.mark.parametrize(
    ("table", "readers", "writers"),
    [
        (metadata(StructField("t", TIMESTAMP_NTZ)), {"timestampNtz"}, set()),
        (metadata(StructField("t", ArrayType(TIMESTAMP_NTZ))), {"timestampNtz"}, set()),
        (metadata(StructField("t", MapType(STRING, VARIANT))), {"variantType"}, set()),
        (
            metadata(StructField("s", StructType((StructField("t", TIMESTAMP_NTZ),)))),
            {"timestampNtz"},
            set(),
        ),
        (metadata(delta__enableDeletionVectors="true"), {"deletionVectors"}, set()),
        (metadata(delta__checkpointPolicy="v2"), {"v2Checkpoint"}, set()),
        (metadata(delta__enableTypeWidening="true"), {"typeWidening"}, set()),
        (metadata(delta__enableInCommitTimestamps="true"), None, {"inCommitTimestamp"}),
        (metadata(delta__enableRowTracking="true"), None, {"rowTracking", "domainMetadata"}),
        (metadata(delta__feature__CLUSTERING="supported"), None, {"clustering", "domainMetadata"}),
        (
            metadata(StructField("a", STRING, metadata={"CURRENT_DEFAULT": "1"})),
            None,
            {"allowColumnDefaults"},
        ),
    ],
)
def test_a_new_table_lists_the_features_that_have_no_version(
    table: Metadata, readers: set[str] | None, writers: set[str]
) -> None:
    protocol = protocol_for(table)
    check_protocol(protocol)
    assert protocol.min_writer_version == 7
    assert protocol.min_reader_version == (1 if readers is None else 3)
    assert (None if readers is None else set(protocol.reader_features or ())) == readers
    assert protocol.writer_features is not None
    assert set(protocol.writer_features) == writers | (readers or set()) | {
        "appendOnly",
        "invariants",
    }


def test_column_mapping_beside_writer_features_keeps_reader_version_two() -> None:
    table = metadata(delta__columnMapping__mode="id", delta__enableInCommitTimestamps="true")
    protocol = protocol_for(table)
    assert (protocol.min_reader_version, protocol.min_writer_version) == (2, 7)
    assert protocol.reader_features is None
    assert protocol.writer_features is not None
    assert {"columnMapping", "inCommitTimestamp"} <= set(protocol.writer_features)


def test_extra_features_are_added_in_any_case_of_letters() -> None:
    protocol = protocol_for(metadata(), ["DeletionVectors"])
    assert protocol.reader_features == ("deletionVectors",)


def test_an_unknown_feature_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="teleport"):
        protocol_for(metadata(), ["teleport"])
    with pytest.raises(ConfigurationError, match="supported"):
        protocol_for(metadata(delta__feature__clustering="maybe"))


@pytest.mark.parametrize(
    ("before", "added", "after"),
    [
        (Protocol(1, 2), ["appendOnly"], Protocol(1, 2)),
        (Protocol(1, 2), ["changeDataFeed"], Protocol(1, 4)),
        (Protocol(1, 1), ["columnMapping"], Protocol(2, 5)),
        (
            Protocol(1, 3),
            ["inCommitTimestamp"],
            Protocol(
                1,
                7,
                None,
                ("appendOnly", "checkConstraints", "inCommitTimestamp", "invariants"),
            ),
        ),
        (
            Protocol(2, 5),
            ["deletionVectors"],
            Protocol(
                3,
                7,
                ("columnMapping", "deletionVectors"),
                (
                    *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping"),
                    *("deletionVectors", "generatedColumns", "invariants"),
                ),
            ),
        ),
        (
            Protocol(3, 7, (), ("someday",)),
            ["timestampNtz"],
            Protocol(3, 7, ("timestampNtz",), ("someday", "timestampNtz")),
        ),
        (
            Protocol(1, 7, None, ()),
            ["columnMapping"],
            Protocol(2, 7, None, ("columnMapping",)),
        ),
        (
            Protocol(1, 7, None, ("clustering",)),
            ["rowTracking"],
            Protocol(1, 7, None, ("clustering", "domainMetadata", "rowTracking")),
        ),
    ],
)
def test_an_upgrade_keeps_every_feature_the_old_versions_implied(
    before: Protocol, added: list[str], after: Protocol
) -> None:
    assert upgrade(before, added) == after
    assert upgrade(after, added) == after


def test_an_upgrade_keeps_unknown_fields() -> None:
    extra: dict[str, Any] = {"future": 1}
    assert upgrade(Protocol(1, 2, extra=extra), ["clustering"]).extra == extra


@pytest.mark.parametrize(
    ("protocol", "going", "left"),
    [
        (
            Protocol(1, 7, None, ("appendOnly", "inCommitTimestamp", "invariants")),
            {"inCommitTimestamp"},
            Protocol(1, 2),
        ),
        (Protocol(1, 7, None, ("inCommitTimestamp",)), {"inCommitTimestamp"}, Protocol(1, 1)),
        (
            Protocol(1, 7, None, ("appendOnly", "inCommitTimestamp")),
            {"inCommitTimestamp"},
            Protocol(1, 7, None, ("appendOnly",)),
        ),
        (
            Protocol(3, 7, ("columnMapping",), ("columnMapping", "inCommitTimestamp")),
            {"inCommitTimestamp"},
            Protocol(2, 7, None, ("columnMapping",)),
        ),
        (
            Protocol(3, 7, ("deletionVectors",), ("clustering", "deletionVectors")),
            {"clustering"},
            Protocol(3, 7, ("deletionVectors",), ("deletionVectors",)),
        ),
        (
            Protocol(2, 6),
            {"identityColumns"},
            Protocol(2, 5),
        ),
        (Protocol(1, 2), {"clustering"}, Protocol(1, 2)),
    ],
)
def test_without_features_the_lowest_protocol_is_left(
    protocol: Protocol, going: set[str], left: Protocol
) -> None:
    found = without(protocol, going)
    assert found == left
    assert required_features(found) == required_features(protocol) - going
    check_protocol(found)
