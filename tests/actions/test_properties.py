from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from deltalakedb.actions.properties import (
    KNOWN,
    TableProperties,
    check_properties,
    parse_interval,
)
from deltalakedb.errors import ConfigurationError

from support.intervals import format_interval


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval 30 days", timedelta(days=30)),
        ("interval 1 week", timedelta(weeks=1)),
        ("INTERVAL 1 WEEK 2 Hours", timedelta(weeks=1, hours=2)),
        ("12 hours", timedelta(hours=12)),
        ("interval 1.5 seconds", timedelta(seconds=1.5)),
        ("interval -1.5 seconds", timedelta(seconds=-1.5)),
        (
            "interval 90 minutes 3 milliseconds 7 microseconds",
            timedelta(seconds=5400, microseconds=3007),
        ),
        ("  interval  0 days ", timedelta(0)),
    ],
)
def test_intervals_are_read(text: str, expected: timedelta) -> None:
    assert parse_interval(text) == expected


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("interval 1 month", "fixed length"),
        ("interval 2 years", "fixed length"),
        ("interval", "empty"),
        ("", "empty"),
        ("interval 5", "number and a unit"),
        ("interval days", "number and a unit"),
        ("interval 5 parsecs", "parsecs"),
        ("interval 1.5 days", "fraction"),
        ("interval 999999999999999 weeks", "calendar"),
    ],
)
def test_intervals_that_are_none_are_refused(text: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        parse_interval(text)


@pytest.mark.parametrize(
    "duration",
    [timedelta(0), timedelta(days=7), timedelta(days=-1, microseconds=1), timedelta(hours=25)],
)
def test_a_written_interval_reads_back(duration: timedelta) -> None:
    assert parse_interval(format_interval(duration)) == duration


def test_defaults_are_those_of_delta() -> None:
    p = TableProperties({})
    assert p.checkpoint_interval == 10
    assert p.log_retention == timedelta(days=30)
    assert p.deleted_file_retention == timedelta(weeks=1)
    assert p.enable_expired_log_cleanup
    assert p.write_stats_as_json
    assert not p.write_stats_as_struct
    assert p.num_indexed_cols == 32
    assert p.stats_columns is None
    assert p.string_prefix_length == 32
    assert (p.column_mapping_mode, p.column_mapping_max_id) == ("none", 0)
    assert p.checkpoint_policy == "classic"
    assert p.isolation_level == "Serializable"
    assert p.set_transaction_retention is None
    assert p.random_prefix_length == 2
    assert p.compression_codec == "zstd"
    assert p.in_commit_timestamp_enablement is None
    assert p.checkpoint_protection_before_version == 0
    assert p.constraints == {}
    off = (
        p.append_only,
        p.enable_change_data_feed,
        p.enable_deletion_vectors,
        p.enable_row_tracking,
        p.enable_in_commit_timestamps,
        p.enable_type_widening,
        p.randomize_file_prefixes,
    )
    assert not any(off)


def test_set_properties_are_read_with_their_type() -> None:
    p = TableProperties(
        {
            "delta.appendOnly": "TRUE",
            "delta.checkpointInterval": "5",
            "delta.logRetentionDuration": "interval 2 days",
            "delta.setTransactionRetentionDuration": "interval 1 day",
            "delta.columnMapping.mode": "Name",
            "delta.dataSkippingNumIndexedCols": "-1",
            "delta.dataSkippingStatsColumns": "a,b.c",
            "delta.isolationLevel": "writeserializable",
            "delta.inCommitTimestampEnablementVersion": "4",
            "delta.inCommitTimestampEnablementTimestamp": "99",
            "delta.parquet.compression.codec": "SNAPPY",
            "delta.constraints.positive": "x > 0",
        }
    )
    assert p.append_only
    assert p.checkpoint_interval == 5
    assert p.log_retention == timedelta(days=2)
    assert p.set_transaction_retention == timedelta(days=1)
    assert p.column_mapping_mode == "name"
    assert p.num_indexed_cols == -1
    assert p.stats_columns == "a,b.c"
    assert p.isolation_level == "WriteSerializable"
    assert p.in_commit_timestamp_enablement == (4, 99)
    assert p.compression_codec == "snappy"
    assert p.constraints == {"positive": "x > 0"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta.appendOnly", "yes"),
        ("delta.checkpointInterval", "0"),
        ("delta.checkpointInterval", "1_0"),
        ("delta.checkpointInterval", "ten"),
        ("delta.dataSkippingNumIndexedCols", "-2"),
        ("delta.logRetentionDuration", "interval 1 month"),
        ("delta.logRetentionDuration", "interval -1 day"),
        ("delta.columnMapping.mode", "both"),
        ("delta.checkpointPolicy", "v3"),
    ],
)
def test_an_invalid_value_is_named_when_it_is_asked_for(name: str, value: str) -> None:
    properties = TableProperties({name: value})
    with pytest.raises(ConfigurationError, match=name) as caught:
        properties.value(name)
    assert value in str(caught.value)
    with pytest.raises(ConfigurationError, match=name):
        check_properties({name: value})


def test_every_default_is_valid() -> None:
    properties = TableProperties({})
    for name, known in KNOWN.items():
        assert (properties.value(name) is None) == (known.default is None)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("delta.appendonly", "delta.appendOnly"),
        ("delta.checkpointIntervall", "delta.checkpointInterval"),
        ("delta.zzz", "outside"),
        ("Delta.appendOnly", "delta.appendOnly"),
    ],
)
def test_an_unknown_delta_property_is_refused_with_a_hint(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=meant):
        check_properties({name: "true"})


def test_free_names_and_open_families_are_accepted() -> None:
    check_properties(
        {"owner": "me", "delta.constraints.c": "x > 0", "delta.feature.clustering": "supported"}
    )


def test_a_property_that_is_no_string_is_refused() -> None:
    wrong: Any = {"delta.checkpointInterval": 5}
    with pytest.raises(ConfigurationError, match="string"):
        check_properties(wrong)
