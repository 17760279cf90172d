"""Table features: requirements of a protocol, supported features, and upgrades.

Guarantees: `check_readable` and `check_writable` name every unsupported feature, not
only the first; a protocol that contradicts itself is an `InvalidActionError`, one that is merely
too new an `UnsupportedFeatureError`. Only `without` removes features from a protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from deltalakedb.actions.datatypes import (
    TIMESTAMP_NTZ,
    VARIANT,
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    is_geospatial,
)
from deltalakedb.actions.properties import CONSTRAINT_PREFIX, FEATURE_PREFIX, TableProperties
from deltalakedb.actions.values import Metadata, Protocol
from deltalakedb.errors import (
    ConfigurationError,
    InvalidActionError,
    InvalidArgumentError,
    UnsupportedFeatureError,
)

MAX_READER: Final = 3
MAX_WRITER: Final = 7
LEGACY_READER: Final = 2
LEGACY_WRITER: Final = 6


@dataclass(frozen=True, slots=True)
class TableFeature:
    """A feature of the protocol.

    `reader` is whether readers must support it too. `legacy_reader` and `legacy_writer` are the
    versions below 3 and 7 that imply it (0: none does). `requires` are features it builds on.
    """

    name: str
    reader: bool = False
    legacy_reader: int = 0
    legacy_writer: int = 0
    requires: tuple[str, ...] = ()


_FEATURES: Final = (
    TableFeature("appendOnly", legacy_writer=2),
    TableFeature("invariants", legacy_writer=2),
    TableFeature("checkConstraints", legacy_writer=3),
    TableFeature("changeDataFeed", legacy_writer=4),
    TableFeature("generatedColumns", legacy_writer=4),
    TableFeature("columnMapping", reader=True, legacy_reader=2, legacy_writer=5),
    TableFeature("identityColumns", legacy_writer=6),
    TableFeature("deletionVectors", reader=True),
    TableFeature("timestampNtz", reader=True),
    TableFeature("v2Checkpoint", reader=True),
    TableFeature("vacuumProtocolCheck", reader=True),
    TableFeature("typeWidening", reader=True),
    TableFeature("typeWidening-preview", reader=True),
    TableFeature("variantType", reader=True),
    TableFeature("variantType-preview", reader=True),
    TableFeature("variantShredding", reader=True),
    TableFeature("variantShredding-preview", reader=True),
    TableFeature("catalogManaged", reader=True, requires=("inCommitTimestamp",)),
    TableFeature("catalogOwned", reader=True, requires=("inCommitTimestamp",)),
    TableFeature("catalogOwned-preview", reader=True, requires=("inCommitTimestamp",)),
    TableFeature("redirectReaderWriter-preview", reader=True),
    TableFeature("redirectWriterOnly-preview"),
    TableFeature("allowColumnDefaults"),
    TableFeature("checkpointProtection"),
    TableFeature("clustering", requires=("domainMetadata",)),
    TableFeature("collations", requires=("domainMetadata",)),
    TableFeature("collations-preview", requires=("domainMetadata",)),
    TableFeature("coordinatedCommits-preview", requires=("inCommitTimestamp",)),
    TableFeature("domainMetadata"),
    TableFeature("geospatial", reader=True),
    TableFeature("icebergCompatV1", requires=("columnMapping",)),
    TableFeature("icebergCompatV2", requires=("columnMapping",)),
    TableFeature("icebergCompatV3", requires=("columnMapping", "rowTracking")),
    TableFeature("icebergWriterCompatV1", requires=("icebergCompatV2",)),
    TableFeature("inCommitTimestamp"),
    TableFeature("inCommitTimestamp-preview"),
    TableFeature("materializePartitionColumns"),
    TableFeature("rowTracking", requires=("domainMetadata",)),
)
FEATURES: Final[Mapping[str, TableFeature]] = {feature.name: feature for feature in _FEATURES}
_BY_LOWER: Final = {feature.name.lower(): feature.name for feature in _FEATURES}

# The choice of what may be read beyond the settled features is this one set: to stop reading one
# of them, take its name out. Variants come as their struct of two binaries; a preview has the
# format of the final feature.
READ_NEWER: Final = frozenset(
    {
        *("typeWidening", "typeWidening-preview"),
        *("variantType", "variantType-preview"),
        *("variantShredding", "variantShredding-preview"),
    }
)
READS: Final = READ_NEWER | {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Reader features this release honours. Writer-only features never hinder a reader."""

RECORDS: Final = READS | {"geospatial"}
"""Reader features of tables whose commits this release records for other engines.

They change rows, and not which files a table has: its versions are right, and reading is refused.
"""

WRITES: Final = frozenset(
    {
        *("appendOnly", "changeDataFeed", "columnMapping", "deletionVectors", "timestampNtz"),
        *("v2Checkpoint", "vacuumProtocolCheck", "domainMetadata", "clustering"),
        *("inCommitTimestamp", "typeWidening", "typeWidening-preview"),
    }
)
"""Features that every writer of this release honours by itself."""

WRITES_UNLESS_USED: Final = frozenset(
    {
        *("invariants", "checkConstraints", "generatedColumns", "identityColumns"),
        *("allowColumnDefaults", "checkpointProtection", "icebergCompatV1", "icebergCompatV2"),
        *("icebergCompatV3",),
    }
)
"""Features that bind a writer only where the table uses them; then a caller must honour them.

Old writer versions imply most of these for tables that never used one.
"""


def check_protocol(protocol: Protocol) -> None:
    """Refuse a protocol that is too new or contradicts itself."""
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    if reader > MAX_READER or writer > MAX_WRITER:
        raise UnsupportedFeatureError(
            f"The table needs reader version {reader} and writer version {writer}",
            why=f"this release knows versions up to {MAX_READER} and {MAX_WRITER}",
            fix="Upgrade deltalakedb",
        )
    if reader < 1 or writer < 1:
        raise _malformed(protocol, "versions begin at 1")
    if reader == MAX_READER and writer != MAX_WRITER:
        raise _malformed(protocol, "reader version 3 requires writer version 7")
    if (protocol.reader_features is None) == (reader == MAX_READER):
        raise _malformed(protocol, "readerFeatures belongs to reader version 3, and only there")
    if (protocol.writer_features is None) == (writer == MAX_WRITER):
        raise _malformed(protocol, "writerFeatures belongs to writer version 7, and only there")
    missing = set(protocol.reader_features or ()) - set(protocol.writer_features or ())
    if missing:
        names = ", ".join(sorted(missing))
        raise _malformed(protocol, f"writerFeatures lacks the reader features {names}")


def reader_features(protocol: Protocol) -> frozenset[str]:
    """Every feature that a reader must honour, those implied by old versions included."""
    if protocol.reader_features is not None:
        return frozenset(protocol.reader_features)
    version = protocol.min_reader_version
    return frozenset(f.name for f in _FEATURES if 0 < f.legacy_reader <= version)


def writer_features(protocol: Protocol) -> frozenset[str]:
    """Every feature that a writer must honour, those implied by old versions included."""
    if protocol.writer_features is not None:
        return frozenset(protocol.writer_features)
    version = protocol.min_writer_version
    return frozenset(f.name for f in _FEATURES if 0 < f.legacy_writer <= version)


def required_features(protocol: Protocol) -> frozenset[str]:
    """Every feature of the protocol, for readers or writers, implied ones included."""
    return reader_features(protocol) | writer_features(protocol)


def check_readable(protocol: Protocol, *, table: str = "", honours: Iterable[str] = ()) -> None:
    """Raise unless this release may read a table with this protocol.

    `honours` are features that the caller takes care of.
    """
    check_protocol(protocol)
    refused = sorted(reader_features(protocol) - READS - set(honours))
    if refused:
        raise _unsupported(table, "read", refused, "")


def check_writable(
    protocol: Protocol,
    *,
    metadata: Metadata | None = None,
    table: str = "",
    honours: Iterable[str] = (),
) -> None:
    """Raise unless this release may write to a table with this protocol.

    `metadata` decides which of `WRITES_UNLESS_USED` are in use; without it all count as used.
    `honours` are features that the caller takes care of for this write.
    """
    check_readable(protocol, table=table, honours=honours)
    needed = writer_features(protocol)
    listed = set(protocol.reader_features or ())
    known_readers = {f.name for f in _FEATURES if f.reader} & needed
    if protocol.min_reader_version == MAX_READER and known_readers - listed:
        names = ", ".join(sorted(known_readers - listed))
        raise _malformed(protocol, f"readerFeatures lacks {names}")
    used = WRITES_UNLESS_USED if metadata is None else features_in_use(metadata).keys()
    honoured = WRITES | (WRITES_UNLESS_USED - used) | set(honours)
    refused = sorted(needed - honoured)
    if refused:
        uses = {} if metadata is None else features_in_use(metadata)
        raise _unsupported(table, "write to", refused, _reasons(refused, uses))


def protocol_for(metadata: Metadata, extra_features: Iterable[str] = ()) -> Protocol:
    """The lowest protocol that a new table with this metadata needs.

    Features come from properties and schema (and `delta.feature.<name>` entries), and from
    `extra_features`; those that they require are added. While all of them have a legacy version
    the result is a legacy protocol, at least 1/2, which every client knows.
    """
    wanted = {feature_name(name) for name in (*features_in_use(metadata), *extra_features)}
    base = _floor(metadata)
    return upgrade(base, wanted)


def upgrade(protocol: Protocol, features: Iterable[str]) -> Protocol:
    """The lowest protocol with every feature of `protocol` and all of `features`.

    Stays on legacy versions where they can express the result; otherwise goes to writer version 7
    and lists every feature that the old versions implied.
    """
    check_protocol(protocol)
    wanted = _closure({feature_name(name) for name in features})
    old_readers, old_writers = reader_features(protocol), writer_features(protocol)
    if wanted <= old_writers and {n for n in wanted if FEATURES[n].reader} <= old_readers:
        return protocol
    if protocol.min_writer_version <= LEGACY_WRITER and all(
        FEATURES[name].legacy_writer for name in wanted
    ):
        return replace(
            protocol,
            min_reader_version=max(
                [protocol.min_reader_version, *(FEATURES[n].legacy_reader for n in wanted)]
            ),
            min_writer_version=max(
                [protocol.min_writer_version, *(FEATURES[n].legacy_writer for n in wanted)]
            ),
        )
    writers = old_writers | wanted
    readers = old_readers | {name for name in wanted if FEATURES[name].reader}
    if readers <= {"columnMapping"} and protocol.min_reader_version < MAX_READER:
        return Protocol(
            min_reader_version=LEGACY_READER if readers else protocol.min_reader_version,
            min_writer_version=MAX_WRITER,
            writer_features=tuple(sorted(writers)),
            extra=protocol.extra,
        )
    return Protocol(
        MAX_READER, MAX_WRITER, tuple(sorted(readers)), tuple(sorted(writers)), protocol.extra
    )


def legacy_features(reader: int, writer: int) -> list[str]:
    """The features that versions of a protocol stand for; none where it lists features itself."""
    if reader >= MAX_READER and writer < MAX_WRITER:
        raise InvalidArgumentError(
            f"Reader version {reader} cannot go with writer version {writer}",
            why=f"Reader version {MAX_READER} lists features, which only writer version "
            f"{MAX_WRITER} can",
            fix=f"Pass ({MAX_READER}, {MAX_WRITER}), or a lower reader version",
        )
    if writer >= MAX_WRITER:
        return []
    return [
        feature.name
        for feature in FEATURES.values()
        if 0 < feature.legacy_writer <= writer and feature.legacy_reader <= reader
    ]


def without(protocol: Protocol, features: Iterable[str]) -> Protocol:
    """The protocol without `features`; with legacy versions where these express the rest.

    Whether the table can do without them is the caller's business.
    """
    dropped = set(features)
    readers, writers = reader_features(protocol) - dropped, writer_features(protocol) - dropped
    for reader in range(1, LEGACY_READER + 1):
        for writer in range(1, LEGACY_WRITER + 1):
            legacy = Protocol(reader, writer, extra=protocol.extra)
            if (reader_features(legacy), writer_features(legacy)) == (readers, writers):
                return legacy
    names = tuple(sorted(writers))
    if readers <= {"columnMapping"}:
        reader = LEGACY_READER if readers else 1
        return Protocol(reader, MAX_WRITER, writer_features=names, extra=protocol.extra)
    return Protocol(MAX_READER, MAX_WRITER, tuple(sorted(readers)), names, protocol.extra)


def feature_name(name: str) -> str:
    """The protocol's spelling of a feature; raises for a name this release does not know."""
    spelling = _BY_LOWER.get(name.lower())
    if spelling is None:
        raise UnsupportedFeatureError(
            f"Unknown table feature {name!r}",
            why="this release does not know what it demands of readers and writers",
            fix=f"Use one of: {', '.join(FEATURES)}",
        )
    return spelling


def _closure(names: set[str]) -> set[str]:
    todo, done = list(names), set(names)
    while todo:
        for name in FEATURES[todo.pop()].requires:
            if name not in done:
                done.add(name)
                todo.append(name)
    return done


def _floor(metadata: Metadata) -> Protocol:
    properties = TableProperties(metadata.configuration)
    reader = properties.value("delta.minReaderVersion") or 1
    writer = properties.value("delta.minWriterVersion") or 1
    # Versions 3 and 7 mean feature lists, which the features decide; reader version 2 is column
    # mapping, which begins at writer version 5.
    reader = reader if reader <= LEGACY_READER else 1
    writer = writer if writer <= LEGACY_WRITER else 1
    return Protocol(reader, max(writer, 5 if reader == LEGACY_READER else 2))


def _reasons(refused: Iterable[str], uses: Mapping[str, Use]) -> str:
    return "; ".join(f"{name} because of {uses[name]}" for name in refused if name in uses)


def _unsupported(
    table: str, verb: str, refused: list[str], reasons: str
) -> UnsupportedFeatureError:
    subject = f"the table {table!r}" if table else "the table"
    unknown = [name for name in refused if name not in FEATURES]
    why = f"it needs features that this release cannot honour: {', '.join(refused)}"
    if unknown:
        why += f" (unknown: {', '.join(unknown)})"
    if reasons:
        why += f" ({reasons})"
    fix = "Use an engine that supports them, or drop the features from the table there"
    if any(name.startswith(("catalogManaged", "catalogOwned")) for name in refused):
        fix += "; a table that another catalog manages must be reached through that catalog"
    return UnsupportedFeatureError(f"Cannot {verb} {subject}", why=why, fix=fix)


def _malformed(protocol: Protocol, why: str) -> InvalidActionError:
    return InvalidActionError(
        "The protocol of the table is malformed: "
        f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}, "
        f"readerFeatures {_feature_list(protocol.reader_features)}, "
        f"writerFeatures {_feature_list(protocol.writer_features)}",
        why=why,
        fix="Correct the protocol action",
    )


def _feature_list(features: tuple[str, ...] | None) -> str:
    return "absent" if features is None else f"[{', '.join(features)}]"


Use: TypeAlias = str
"""A description of the use of a feature, such as "the property delta.appendOnly"."""

_BY_PROPERTY: Final = {
    "delta.appendOnly": "appendOnly",
    "delta.enableChangeDataFeed": "changeDataFeed",
    "delta.enableDeletionVectors": "deletionVectors",
    "delta.enableIcebergCompatV1": "icebergCompatV1",
    "delta.enableIcebergCompatV2": "icebergCompatV2",
    "delta.enableIcebergCompatV3": "icebergCompatV3",
    "delta.enableInCommitTimestamps": "inCommitTimestamp",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableTypeWidening": "typeWidening",
    "delta.enableVariantShredding": "variantShredding",
}
_BY_FIELD_METADATA: Final = {
    "delta.invariants": "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "delta.identity.step": "identityColumns",
    "CURRENT_DEFAULT": "allowColumnDefaults",
    "__COLLATIONS": "collations",
}
_BY_TYPE: Final = {TIMESTAMP_NTZ: "timestampNtz", VARIANT: "variantType"}


def features_in_use(metadata: Metadata) -> dict[str, Use]:
    """Map each feature that properties or schema use to a description of its use.

    `delta.feature.<name>` entries count as use, with the name as it was written. A property that
    cannot be read raises `ConfigurationError`.
    """
    uses: dict[str, Use] = {}
    for feature, use in (*_property_uses(metadata), *_schema_uses(metadata.schema)):
        uses.setdefault(feature, use)
    return uses


def _property_uses(metadata: Metadata) -> Iterator[tuple[str, Use]]:
    properties = TableProperties(metadata.configuration)
    for name, feature in _BY_PROPERTY.items():
        if properties.value(name) is True:
            yield feature, f"the property {name}"
    if properties.column_mapping_mode != "none":
        yield "columnMapping", "the property delta.columnMapping.mode"
    if properties.checkpoint_policy == "v2":
        yield "v2Checkpoint", "the property delta.checkpointPolicy"
    if properties.checkpoint_protection_before_version > 0:
        name = "delta.requireCheckpointProtectionBeforeVersion"
        yield "checkpointProtection", f"the property {name}"
    for name, text in metadata.configuration.items():
        if name.startswith(CONSTRAINT_PREFIX):
            yield "checkConstraints", f"the property {name}"
        elif name.startswith(FEATURE_PREFIX):
            if text not in ("supported", "enabled"):
                raise ConfigurationError(
                    f"The table property {name!r} has the value {text!r}",
                    why="a feature can only be asked for",
                    fix="Set it to 'supported'",
                )
            yield name.removeprefix(FEATURE_PREFIX), f"the property {name}"


def _schema_uses(schema: StructType) -> Iterator[tuple[str, Use]]:
    for field in schema.all_fields():
        for key, feature in _BY_FIELD_METADATA.items():
            if key in field.metadata:
                yield feature, f"the column {field.name!r} ({key})"
        for data_type in _types_of(field):
            # Nested types hold mappings and cannot be looked up; none of them is a feature.
            if isinstance(data_type, PrimitiveType) and data_type in _BY_TYPE:
                yield _BY_TYPE[data_type], f"the column {field.name!r} ({data_type})"
            elif is_geospatial(data_type):
                yield "geospatial", f"the column {field.name!r} ({data_type})"


def _types_of(field: StructField) -> Iterator[DataType]:
    """The types inside a field, without the fields of a struct: these are visited separately."""
    todo: list[DataType] = [field.type]
    while todo:
        data_type = todo.pop()
        yield data_type
        if isinstance(data_type, ArrayType):
            todo.append(data_type.element_type)
        elif isinstance(data_type, MapType):
            todo += [data_type.key_type, data_type.value_type]
