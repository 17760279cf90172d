"""Table properties: the `delta.*` names this release knows, their types and defaults.

Guarantees: `TableProperties` is read-only and lazy, so a table with an odd property can still be
opened; the accessor of that property raises `ConfigurationError` with the name, the value and
what would be valid. `check_properties` is for properties that a user sets.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from deltalakedb.errors import ConfigurationError

CONSTRAINT_PREFIX: Final = "delta.constraints."
FEATURE_PREFIX: Final = "delta.feature."
_OPEN_PREFIXES: Final = (
    CONSTRAINT_PREFIX,
    FEATURE_PREFIX,
    "delta.universalFormat.",
    "delta.coordinatedCommits.",
    "delta.rowTracking.",
)


class _Invalid(Exception):  # noqa: N818 -- reworded before it leaves this module
    """A value that is not valid; the message is the valid form."""


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    raise _Invalid("true or false")


def _integer(low: int, high: int = 2**63 - 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text) if text.isascii() and "_" not in text else None
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise _Invalid(f"an integer of at least {low}")
        return number

    return read


def _one_of(*names: str) -> Callable[[str], str]:
    choices = {name.lower(): name for name in names}

    def read(text: str) -> str:
        choice = choices.get(text.strip().lower())
        if choice is None:
            raise _Invalid(f"one of: {', '.join(names)}")
        return choice

    return read


def _duration(text: str) -> timedelta:
    try:
        duration = parse_interval(text)
    except ConfigurationError as error:
        raise _Invalid(f"an interval such as 'interval 30 days' ({error.why})") from error
    if duration < timedelta(0):
        raise _Invalid("an interval that is not negative")
    return duration


@dataclass(frozen=True, slots=True)
class Property:
    """One known property: its name, how its text is read, and the text that stands in for it."""

    name: str
    read: Callable[[str], Any]
    default: str | None


_KNOWN: Final = (
    Property("delta.appendOnly", _boolean, "false"),
    Property("delta.autoOptimize", _boolean, "false"),
    Property("delta.autoOptimize.autoCompact", str, None),
    Property("delta.autoOptimize.optimizeWrite", _boolean, None),
    Property("delta.castIcebergTimeType", _boolean, None),
    Property("delta.checkpoint.partSize", _integer(1), None),
    Property("delta.checkpoint.writeStatsAsJson", _boolean, "true"),
    # The protocol's default; Spark's own code has true.
    Property("delta.checkpoint.writeStatsAsStruct", _boolean, "false"),
    Property("delta.checkpointInterval", _integer(1), "10"),
    Property("delta.checkpointPolicy", _one_of("classic", "v2"), "classic"),
    Property("delta.checkpointRetentionDuration", _duration, "interval 2 days"),
    Property("delta.columnMapping.maxColumnId", _integer(0), "0"),
    Property("delta.columnMapping.mode", _one_of("none", "name", "id"), "none"),
    Property("delta.compatibility.symlinkFormatManifest.enabled", _boolean, "false"),
    Property("delta.dataSkippingNumIndexedCols", _integer(-1), "32"),
    Property("delta.dataSkippingStatsColumns", str, None),
    Property("delta.dataSkippingStringPrefixLength", _integer(1, 65_536), "32"),
    Property("delta.deletedFileRetentionDuration", _duration, "interval 1 week"),
    Property("delta.dropFeatureTruncateHistory.retentionDuration", _duration, None),
    Property("delta.enableChangeDataFeed", _boolean, "false"),
    Property("delta.enableDeletionVectors", _boolean, "false"),
    Property("delta.enableExpiredLogCleanup", _boolean, "true"),
    Property("delta.enableFullRetentionRollback", _boolean, None),
    Property("delta.enableIcebergCompatV1", _boolean, "false"),
    Property("delta.enableIcebergCompatV2", _boolean, "false"),
    Property("delta.enableIcebergCompatV3", _boolean, "false"),
    Property("delta.enableInCommitTimestamps", _boolean, "false"),
    Property("delta.enableRowTracking", _boolean, "false"),
    Property("delta.enableTypeWidening", _boolean, "false"),
    Property("delta.enableVariantShredding", _boolean, "false"),
    Property("delta.ignoreProtocolDefaults", _boolean, None),
    Property("delta.inCommitTimestampEnablementTimestamp", _integer(0), None),
    Property("delta.inCommitTimestampEnablementVersion", _integer(0), None),
    Property(
        "delta.isolationLevel",
        _one_of("Serializable", "WriteSerializable", "SnapshotIsolation"),
        "Serializable",
    ),
    Property("delta.liquid.clusteringColumns", str, None),
    Property("delta.logRetentionDuration", _duration, "interval 30 days"),
    Property("delta.minReaderVersion", _integer(1, 3), None),
    Property("delta.minWriterVersion", _integer(1, 7), None),
    Property("delta.parquet.compression.codec", str, "zstd"),
    Property("delta.parquet.format.version", str, None),
    Property("delta.randomPrefixLength", _integer(1, 100), "2"),
    Property("delta.randomizeFilePrefixes", _boolean, "false"),
    Property("delta.requireCheckpointProtectionBeforeVersion", _integer(0), "0"),
    Property("delta.rowTrackingSuspended", _boolean, None),
    Property("delta.setTransactionRetentionDuration", _duration, None),
    Property("delta.stats.skipping", _boolean, None),
    Property("delta.targetFileSize", str, None),
    Property("delta.tuneFileSizesForRewrites", _boolean, None),
)
KNOWN: Final[Mapping[str, Property]] = {known.name: known for known in _KNOWN}
_BY_LOWER: Final = {known.name.lower(): known.name for known in _KNOWN}


def check_properties(configuration: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` unless a user may set these properties.

    Names outside `delta.` are free. Names are case-sensitive here, because other engines read
    them so.
    """
    properties = TableProperties(configuration)
    for name, text in configuration.items():
        if not isinstance(text, str):
            raise ConfigurationError(
                f"The table property {name!r} is not valid",
                why=f"it is {text!r} ({type(text).__name__})",
                fix="Pass every property as a string",
            )
        if name in KNOWN:
            properties.value(name)
        elif name.lower().startswith("delta.") and not name.startswith(_OPEN_PREFIXES):
            raise _unknown(name)


def spelled(name: str) -> str:
    """Return the known spelling of a name; drivers and engines may change its case.

    Names that are not known stay as they are.
    """
    return _BY_LOWER.get(name.lower(), name)


def _unknown(name: str) -> ConfigurationError:
    close = _BY_LOWER.get(name.lower()) or next(
        iter(difflib.get_close_matches(name, list(KNOWN), n=1)), None
    )
    return ConfigurationError(
        f"Unknown table property {name!r}",
        why="names that begin with 'delta.' are reserved for properties that Delta defines",
        fix=f"Did you mean {close!r}?" if close else "Choose a name outside 'delta.'",
    )


class TableProperties:
    """Typed, read-only view of a table's `configuration`; an absent property has its default."""

    __slots__ = ("_configuration",)

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self._configuration = configuration

    def value(self, name: str) -> Any:
        """The typed value of a known property; None where it is unset and has no default."""
        definition = KNOWN[name]
        text = self._configuration.get(name, definition.default)
        if text is None:
            return None
        try:
            return definition.read(text)
        except _Invalid as error:
            raise ConfigurationError(
                f"The table property {name!r} has the value {text!r}",
                why="that is not a valid value",
                fix=f"Set it to {error}",
            ) from None

    def _flag(self, name: str) -> bool:
        return self.value(name) is True

    @property
    def append_only(self) -> bool:
        """Whether rows may only be added."""
        return self._flag("delta.appendOnly")

    @property
    def checkpoint_interval(self) -> int:
        """How many commits lie between two checkpoints."""
        return int(self.value("delta.checkpointInterval"))

    @property
    def checkpoint_policy(self) -> str:
        """`classic` or `v2`."""
        return str(self.value("delta.checkpointPolicy"))

    @property
    def write_stats_as_json(self) -> bool:
        """Whether checkpoints carry statistics as JSON."""
        return self._flag("delta.checkpoint.writeStatsAsJson")

    @property
    def write_stats_as_struct(self) -> bool:
        """Whether checkpoints carry statistics as typed columns."""
        return self._flag("delta.checkpoint.writeStatsAsStruct")

    @property
    def column_mapping_mode(self) -> str:
        """`none`, `name` or `id`."""
        return str(self.value("delta.columnMapping.mode"))

    @property
    def column_mapping_max_id(self) -> int:
        """The highest column id ever assigned; it only grows."""
        return int(self.value("delta.columnMapping.maxColumnId"))

    @property
    def num_indexed_cols(self) -> int:
        """How many leaf columns have statistics; -1 for all."""
        return int(self.value("delta.dataSkippingNumIndexedCols"))

    @property
    def stats_columns(self) -> str | None:
        """The columns that have statistics, as written, where they are listed by name."""
        value = self.value("delta.dataSkippingStatsColumns")
        return value if isinstance(value, str) else None

    @property
    def string_prefix_length(self) -> int:
        """How many characters of a string its bounds keep."""
        return int(self.value("delta.dataSkippingStringPrefixLength"))

    @property
    def deleted_file_retention(self) -> timedelta:
        """How long a removed file stays on the store and in checkpoints."""
        return self._duration("delta.deletedFileRetentionDuration")

    @property
    def log_retention(self) -> timedelta:
        """The retention of the history."""
        return self._duration("delta.logRetentionDuration")

    @property
    def set_transaction_retention(self) -> timedelta | None:
        """The retention of app transactions; None for ever."""
        value = self.value("delta.setTransactionRetentionDuration")
        return value if isinstance(value, timedelta) else None

    @property
    def enable_expired_log_cleanup(self) -> bool:
        """Whether expired log files may be deleted."""
        return self._flag("delta.enableExpiredLogCleanup")

    @property
    def enable_change_data_feed(self) -> bool:
        """Whether updates and deletes record row-level changes."""
        return self._flag("delta.enableChangeDataFeed")

    @property
    def enable_deletion_vectors(self) -> bool:
        """Whether writers may hide rows instead of rewriting files."""
        return self._flag("delta.enableDeletionVectors")

    @property
    def enable_in_commit_timestamps(self) -> bool:
        """Whether commits carry their own authoritative time."""
        return self._flag("delta.enableInCommitTimestamps")

    @property
    def in_commit_timestamp_enablement(self) -> tuple[int, int] | None:
        """Version and time at which in-commit timestamps began, if not with the table."""
        version = self.value("delta.inCommitTimestampEnablementVersion")
        timestamp = self.value("delta.inCommitTimestampEnablementTimestamp")
        return None if version is None or timestamp is None else (int(version), int(timestamp))

    @property
    def enable_row_tracking(self) -> bool:
        """Whether rows have stable ids."""
        return self._flag("delta.enableRowTracking")

    @property
    def enable_type_widening(self) -> bool:
        """Whether column types may be widened in place."""
        return self._flag("delta.enableTypeWidening")

    @property
    def isolation_level(self) -> str:
        """`Serializable`, `WriteSerializable` or `SnapshotIsolation`."""
        return str(self.value("delta.isolationLevel"))

    @property
    def randomize_file_prefixes(self) -> bool:
        """Whether data files get random directories instead of partition directories."""
        return self._flag("delta.randomizeFilePrefixes")

    @property
    def random_prefix_length(self) -> int:
        """How many characters a random directory has."""
        return int(self.value("delta.randomPrefixLength"))

    @property
    def optimize_write(self) -> bool:
        """Whether rows are shuffled to fewer, larger files before they are written."""
        return bool(self.value("delta.autoOptimize.optimizeWrite"))

    @property
    def compression_codec(self) -> str:
        """The Parquet codec for new data files, in lower case."""
        return str(self.value("delta.parquet.compression.codec")).lower()

    @property
    def checkpoint_protection_before_version(self) -> int:
        """Versions below this one must not lose their checkpoints; 0 for none."""
        return int(self.value("delta.requireCheckpointProtectionBeforeVersion"))

    @property
    def constraints(self) -> dict[str, str]:
        """CHECK constraints: name to SQL expression."""
        return {
            name.removeprefix(CONSTRAINT_PREFIX): text
            for name, text in self._configuration.items()
            if name.startswith(CONSTRAINT_PREFIX)
        }

    def _duration(self, name: str) -> timedelta:
        value = self.value(name)
        assert isinstance(value, timedelta)  # noqa: S101 -- the property has a default
        return value


# --- intervals ------------------------------------------------------------------------

_MICROSECONDS: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART: Final = re.compile(r"([+-]?\d{1,15})(?:\.(\d{1,6}))?\s+([a-z]+)\s*", re.ASCII)
_FIX: Final = "Write for example 'interval 30 days' or 'interval 1 week 12 hours'"


def parse_interval(text: str) -> timedelta:
    """Parse a fixed length of time; raises `ConfigurationError` for months, years and nonsense.

    The word `interval` and letter case do not matter. Only seconds may have a fraction.
    """
    body = text.strip().lower()
    body = body.removeprefix("interval").strip()
    total = 0
    position = 0
    while position < len(body):
        match = _PART.match(body, position)
        if match is None:
            raise _bad(text, "it is not a number and a unit, repeated")
        total += _microseconds(text, match[1], match[2], match[3])
        position = match.end()
    if position == 0:
        raise _bad(text, "it is empty")
    try:
        return timedelta(microseconds=total)
    except OverflowError as error:
        raise _bad(text, "it is longer than any calendar") from error


def _microseconds(text: str, whole: str, fraction: str | None, unit: str) -> int:
    singular = unit.removesuffix("s")
    if singular in ("month", "year", "quarter"):
        raise _bad(text, f"a {singular} has no fixed length")
    size = _MICROSECONDS.get(singular)
    if size is None:
        raise _bad(text, f"{unit!r} is not a unit of time")
    amount = int(whole) * size
    if fraction is None:
        return amount
    if singular != "second":
        raise _bad(text, "only seconds may have a fraction")
    part = int(fraction.ljust(6, "0"))
    return amount - part if whole.startswith("-") else amount + part


def _bad(text: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"Cannot read {text!r} as an interval", why=why, fix=_FIX)
