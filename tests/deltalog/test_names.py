"""File names of a log: each kind is known, and nothing else is taken for one."""

import pytest

from deltalakedb.deltalog.names import (
    LOG,
    LogKind,
    LogName,
    checkpoint_key,
    checksum_key,
    commit_key,
    parse_name,
    sidecar_key,
)

TEN = f"{10:020d}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{TEN}.json", LogName(LogKind.COMMIT, 10, is_json=True)),
        (f"{TEN}.crc", LogName(LogKind.CHECKSUM, 10, is_json=True)),
        (f"{TEN}.checkpoint.parquet", LogName(LogKind.CHECKPOINT, 10)),
        (
            f"{TEN}.checkpoint.0000000002.0000000003.parquet",
            LogName(LogKind.CHECKPOINT_PART, 10, part=2, parts=3),
        ),
        (
            f"{TEN}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json",
            LogName(LogKind.V2_CHECKPOINT, 10, is_json=True),
        ),
        (
            f"{TEN}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet",
            LogName(LogKind.V2_CHECKPOINT, 10),
        ),
        (
            f"{TEN}.{12:020d}.compacted.json",
            LogName(LogKind.COMPACTION, 10, end=12, is_json=True),
        ),
    ],
)
def test_names_say_what_a_file_is(name: str, expected: LogName) -> None:
    assert parse_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "_last_checkpoint",
        "10.json",
        f".{TEN}.json.crc",
        f"{TEN}.json.tmp",
        f"{TEN}.json#1",
        f"x/{TEN}.json",
        f"{TEN}.checkpoint.0000000004.0000000003.parquet",
        f"{TEN}.checkpoint.0000000000.0000000003.parquet",
        f"{TEN}.{TEN}.compacted.json",
        f"{TEN}.{9:020d}.compacted.json",
        f"{2**63:020d}.json",
        f".{TEN}.checkpoint.477ba875-7a14-4e57-9973-1349c21a152c.tmp.parquet",
    ],
)
def test_other_names_are_no_part_of_the_log(name: str) -> None:
    assert parse_name(name) is None


def test_keys_are_names_that_parse() -> None:
    for key, kind in (
        (commit_key(10), LogKind.COMMIT),
        (checksum_key(10), LogKind.CHECKSUM),
        (checkpoint_key(10), LogKind.CHECKPOINT),
    ):
        parsed = parse_name(key.removeprefix(f"{LOG}/"))
        assert parsed is not None
        assert (parsed.kind, parsed.version) == (kind, 10)
    assert sidecar_key("a.parquet") == "_delta_log/_sidecars/a.parquet"
