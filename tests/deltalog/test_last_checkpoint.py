"""`_last_checkpoint`: what it says, in which order, and how its checksum is made."""

import hashlib
import json
from pathlib import Path

import pytest

from deltalakedb.actions import CheckpointMetadata, Protocol, Sidecar
from deltalakedb.deltalog.last_checkpoint import LastCheckpoint, V2Hint, checksum_of, parse_hint


def test_every_checksum_of_other_writers_is_reproduced(golden_dir: Path) -> None:
    checked = 0
    for path in golden_dir.glob("*/_delta_log/_last_checkpoint"):
        document = json.loads(path.read_text("utf-8"))
        if "checksum" in document:
            assert checksum_of(document) == document["checksum"], path
            checked += 1
    assert checked > 10


def test_the_canonical_form_is_quoted_sorted_and_ignores_the_checksum_itself() -> None:
    document = {"b": [True, None, {"ü/ ": "a+b"}], "a": 1, "checksum": "not this"}
    canonical = '"a"=1,"b"+0=true,"b"+1=null,"b"+2+"%C3%BC%2F%20"="a%2Bb"'
    expected = hashlib.md5(canonical.encode(), usedforsecurity=False).hexdigest()
    assert checksum_of(document) == expected


def test_version_size_and_parts_come_first_and_nothing_is_null() -> None:
    hint = LastCheckpoint(7, 12, parts=3, size_in_bytes=99, num_of_add_files=5)
    text = hint.to_json().decode()
    assert text.startswith('{"version":7,"size":12,"parts":3,"sizeInBytes":99,"numOfAddFiles":5,')
    assert json.loads(text)["checksum"] == checksum_of(json.loads(text))
    assert list(json.loads(LastCheckpoint(7, 12).to_json())) == ["version", "size", "checksum"]


def test_a_v2_checkpoint_is_named_with_what_is_in_it() -> None:
    sidecar = Sidecar("s.parquet", 10, 1_700_000_000_000)
    v2 = V2Hint("x.parquet", 5, 3, [Protocol(3, 7, (), ()), CheckpointMetadata(7)], [sidecar])
    document = json.loads(LastCheckpoint(7, 3, v2=v2).to_json())
    assert document["v2Checkpoint"] == {
        "path": "x.parquet",
        "sizeInBytes": 5,
        "modificationTime": 3,
        "nonFileActions": [
            {
                "protocol": {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": [],
                    "writerFeatures": [],
                }
            },
            {"checkpointMetadata": {"version": 7}},
        ],
        "sidecarFiles": [
            {"path": "s.parquet", "sizeInBytes": 10, "modificationTime": 1_700_000_000_000}
        ],
    }
    short = json.loads(LastCheckpoint(7, 3, v2=V2Hint("x.parquet", 5, 3)).to_json())
    assert list(short["v2Checkpoint"]) == ["path", "sizeInBytes", "modificationTime"]


def test_what_was_written_is_read_back() -> None:
    hint = LastCheckpoint(7, 12, parts=3, size_in_bytes=99)
    assert parse_hint(hint.to_json()) == LastCheckpoint(7, 12, parts=3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '{"size":1}',
        '{"version":"1","size":1}',
        '{"version":true,"size":1}',
        '{"version":-1,"size":1}',
        '{"version":1,"size":1,"checksum":"0"}',
        '{"version":1,"size":1,"x":1.5,"checksum":"0"}',
    ],
)
def test_a_damaged_hint_is_as_good_as_none(text: str) -> None:
    assert parse_hint(text.encode()) is None


def test_a_hint_without_a_checksum_counts() -> None:
    assert parse_hint(b'{"version":3,"size":10,"parts":null}') == LastCheckpoint(3, 10)
