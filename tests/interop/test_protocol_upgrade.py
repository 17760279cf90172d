"""`upgradeTableProtocol` gives a table the features that Delta on Spark gives it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deltalakedb.actions import Protocol
from deltalakedb.actions.features import legacy_features, reader_features, upgrade, writer_features
from deltalakedb.errors import InvalidArgumentError
from interop.readers import DeltaSpark, Peers, Refused

VERSIONS = [(1, 1), (1, 3), (1, 4), (1, 5), (2, 3), (2, 5), (2, 6), (1, 7), (3, 7), (3, 4)]
PROPERTIES = {
    "legacy": {"delta.enableDeletionVectors": "false"},
    "features": {"delta.enableInCommitTimestamps": "true", "delta.columnMapping.mode": "name"},
}


def newest(folder: Path) -> Protocol:
    """The protocol that a log ends with."""
    found: dict[str, object] = {}
    for commit in sorted((folder / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            found = json.loads(line).get("protocol", found)
    return Protocol(
        int(str(found["minReaderVersion"])),
        int(str(found["minWriterVersion"])),
        _names(found.get("readerFeatures")),
        _names(found.get("writerFeatures")),
    )


def _names(features: object) -> tuple[str, ...] | None:
    return tuple(features) if isinstance(features, list) else None


@pytest.mark.parametrize("start", PROPERTIES)
def test_versions_stand_for_the_features_that_delta_gives(
    peers: Peers, tmp_path: Path, start: str
) -> None:
    engine = peers.there.get("Delta on Spark")
    if not isinstance(engine, DeltaSpark):
        pytest.skip(peers.missing["Delta on Spark"])
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in PROPERTIES[start].items())
    for reader, writer in VERSIONS:
        folder = tmp_path / f"{reader}-{writer}"
        name = f"delta.`{folder}`"
        engine.run(f"CREATE TABLE {name} (id bigint) USING delta TBLPROPERTIES ({properties})")
        before = newest(folder)
        change = f"'delta.minReaderVersion' = '{reader}', 'delta.minWriterVersion' = '{writer}'"
        try:
            engine.run(f"ALTER TABLE {name} SET TBLPROPERTIES ({change})")
        except Refused:
            with pytest.raises(InvalidArgumentError):
                legacy_features(reader, writer)
            continue
        theirs, ours = newest(folder), upgrade(before, legacy_features(reader, writer))
        assert reader_features(ours) == reader_features(theirs), (reader, writer)
        assert writer_features(ours) == writer_features(theirs), (reader, writer)


def test_the_versions_of_feature_lists_add_no_features() -> None:
    assert legacy_features(3, 7) == legacy_features(1, 7) == []
