"""The options of `format("deltalakedb")`: their names, uses and values, checked in one place.

Both ways in (`native_format.py` after `enable`, `datasource.py` as a data source) read options
here, so an option has one meaning. An option that is not listed for a use is refused: ignoring it
may cost rows.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from enum import StrEnum
from typing import Any, Final

import deltalakedb
from deltalakedb.actions.properties import spelled
from deltalakedb.errors import ConfigurationError, UnsupportedFeatureError
from deltalakedb.lake import Lake
from deltalakedb.operations.append import Matching
from deltalakedb.snapshot import Snapshot
from deltalakedb.spark.io.query_text import without_alias
from deltalakedb.spark.io.timestamps import moment
from deltalakedb.staging.stage import CODECS

FORMAT: Final = "deltalakedb"
"""The name of the format."""
STORAGE: Final = "storage."
"""The prefix of options of the object store."""
PROPERTY: Final = "property."
"""The prefix of properties of a new table."""
_OVERWRITE_MODE: Final = "partitionoverwritemode"
_REPLACING: Final = ("replaceWhere", "replaceUsing", "replaceOn")
_TIMESTAMPS: Final = ("timestampasof", "startingtimestamp", "endingtimestamp")


class Use(StrEnum):
    """The calls of Spark that take options."""

    READ = "spark.read"
    WRITE = "df.write"
    READ_STREAM = "spark.readStream"
    WRITE_STREAM = "df.writeStream"


READS: Final = (Use.READ, Use.READ_STREAM)
WRITES: Final = (Use.WRITE, Use.WRITE_STREAM)


class _Invalid(Exception):  # noqa: N818 - reworded before it leaves this module
    """The value is invalid; the message names valid ones."""


def _text(text: str) -> str:
    return text


def _flag(text: str) -> bool:
    value = text.strip().lower()
    if value not in ("true", "false"):
        raise _Invalid("either true or false")
    return value == "true"


def _whole(low: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low:
            raise _Invalid(f"a whole number, {low} or more")
        return number

    return read


def _records(text: str) -> int:
    """A limit of rows; zero or less is none, as in Spark."""
    try:
        return int(text)
    except ValueError:
        raise _Invalid("a whole number; 0 means no limit") from None


def _version(text: str) -> int | str:
    return "latest" if text.strip().lower() == "latest" else _whole(0)(text)


def _size(text: str) -> int:
    """Bytes in Spark's notation: a number, or one with k, m, g, t or p."""
    number, unit = text.strip().lower().removesuffix("b"), 1
    if number[-1:] in ("k", "m", "g", "t", "p"):
        number, unit = number[:-1], 1024 ** ("kmgtp".index(number[-1]) + 1)
    try:
        return _whole(1)(number) * unit
    except _Invalid:
        raise _Invalid("a size, such as 1000000 or 10m") from None


def _one_of(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        value = text.strip().lower()
        if value not in values:
            raise _Invalid(f"one of: {', '.join(values)}")
        return value

    return read


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise _Invalid("names of columns with commas between them, none of them empty")
    return names


def _not_empty(text: str) -> str:
    if not text.strip():
        raise _Invalid("not empty")
    return text.strip()


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its name, the calls that take it, and the parser of its value."""

    name: str
    uses: tuple[Use, ...]
    read: Callable[[str], Any] = _text


_OPTIONS: Final = (
    Option("catalog", tuple(Use)),
    Option("path", tuple(Use)),
    Option("table", tuple(Use)),
    # Reading
    Option("versionAsOf", (Use.READ,), _whole(0)),
    Option("timestampAsOf", (Use.READ,)),
    Option("where", (Use.READ,)),
    Option("metadata", (Use.READ,), _flag),
    Option("pushFilters", (Use.READ,), _flag),
    Option("readChangeFeed", READS, _flag),
    Option("readChangeData", READS, _flag),
    Option("startingVersion", READS, _version),
    Option("startingTimestamp", READS),
    Option("endingVersion", (Use.READ,), _whole(0)),
    Option("endingTimestamp", (Use.READ,)),
    Option("maxFilesPerTrigger", (Use.READ_STREAM,), _whole(1)),
    Option("maxBytesPerTrigger", (Use.READ_STREAM,), _size),
    Option("ignoreChanges", (Use.READ_STREAM,), _flag),
    Option("ignoreDeletes", (Use.READ_STREAM,), _flag),
    Option("skipChangeCommits", (Use.READ_STREAM,), _flag),
    Option("failOnDataLoss", (Use.READ_STREAM,), _flag),
    # Writing
    Option("location", WRITES),
    Option("partitionBy", WRITES),
    Option("clusterBy", WRITES),
    Option("mergeSchema", WRITES, _flag),
    Option("overwriteSchema", WRITES, _flag),
    Option("partitionOverwriteMode", WRITES, _one_of("static", "dynamic")),
    Option("replaceWhere", WRITES),
    Option("replaceUsing", (Use.WRITE,), _columns),
    Option("replaceOn", (Use.WRITE,), _not_empty),
    Option("targetAlias", WRITES, _not_empty),
    Option("dataChange", (Use.WRITE,), _flag),
    Option("targetFileBytes", WRITES, _size),
    Option("maxRecordsPerFile", WRITES, _records),
    Option("compression", WRITES, _one_of(*CODECS)),
    Option("optimizeWrite", (Use.WRITE,), _flag),
    Option("userMetadata", WRITES),
    Option("txnAppId", WRITES),
    Option("txnVersion", (Use.WRITE,), _whole(0)),
    Option("checkpointLocation", (Use.WRITE_STREAM,)),
    Option("queryName", (Use.WRITE_STREAM,)),
)
KNOWN: Final[Mapping[str, Option]] = {known.name.lower(): known for known in _OPTIONS}
"""The options by their names in lower case."""

_LATER: Final = "Leave it out; this release has no other way to do it"
_ALL_FILES: Final = "Leave it out: a stream reads every file that a version adds"
_COLUMNS: Final = (
    "Leave it out; a query that ended because the columns changed goes on with the new ones when "
    "it is started again"
)
_PARQUET: Final = "Leave it out: files are written as every reader of Delta understands them"
# Options of Delta that do nothing here yet, and the alternatives.
NOT_HONOURED: Final[Mapping[str, str]] = {
    "allowSourceColumnDrop": _COLUMNS,
    "allowSourceColumnRename": _COLUMNS,
    "allowSourceColumnTypeChange": _COLUMNS,
    "excludeRegex": _ALL_FILES,
    "ignoreFileDeletion": "Use ignoreDeletes, ignoreChanges or skipChangeCommits",
    "parquet.writer.version": _PARQUET,
    "schemaLocation": _COLUMNS,
    "schemaTrackingLocation": _COLUMNS,
    "spark.sql.parquet.outputTimestampType": _PARQUET,
    "streamingSourceTrackingId": _COLUMNS,
    "useNullIntolerantEqualityWithDPO": _LATER,
    "writePartitionColumns": _PARQUET,
}
_NOT_HONOURED: Final = {name.lower(): name for name in NOT_HONOURED}
# They choose versions or rows of a table; the feed has options of its own for that.
_NOT_OF_FEEDS: Final = (
    *("versionAsOf", "timestampAsOf", "where", "metadata", "pushFilters"),
    *("ignoreChanges", "ignoreDeletes", "skipChangeCommits"),
)
_OF_FEEDS: Final = ("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp")


def check_names(names: Iterable[str], uses: Iterable[Use]) -> None:
    """Refuse unknown options, and options that apply to none of these uses."""
    wanted = tuple(uses)
    for name in names:
        lowered = name.lower()
        if lowered.startswith(STORAGE):
            continue
        if lowered.startswith(PROPERTY):
            _check_use(name, WRITES, wanted)
        elif lowered in KNOWN:
            _check_use(KNOWN[lowered].name, KNOWN[lowered].uses, wanted)
        elif lowered in _NOT_HONOURED:
            known = _NOT_HONOURED[lowered]
            raise ConfigurationError(
                f"The option {known!r} does not work here",
                why="Delta has it, and this release does not",
                fix=NOT_HONOURED[known],
            )
        else:
            raise _unknown(name, wanted)


def check_together(options: Mapping[str, str], *, feed: bool, uses: Iterable[Use]) -> None:
    """Refuse options that cannot be combined."""
    for name in _NOT_OF_FEEDS if feed else ():
        if name.lower() in options:
            raise ConfigurationError(
                f"The options readChangeFeed and {name} cannot be combined",
                why="The feed has every change of its versions",
                fix="Choose versions by startingVersion and endingVersion, or their timestamps; "
                "filter the rows of the feed",
            )
    for name in _OF_FEEDS if not feed and Use.READ_STREAM not in uses else ():
        if name.lower() in options:
            raise ConfigurationError(
                f"The option {name!r} does not apply to {Use.READ} of a table",
                why="It chooses versions of the change data feed",
                fix="Add readChangeFeed=true, or read one version by versionAsOf or timestampAsOf",
            )


def value_of(name: str, text: str) -> Any:
    """Return the value of an option; refuse an invalid one."""
    option = KNOWN[name.lower()]
    if not isinstance(text, str):
        raise ConfigurationError(
            f"The option {option.name!r} has no value", fix="Set one, or leave the option out"
        )
    try:
        return option.read(text)
    except _Invalid as wanted:
        raise ConfigurationError(
            f"The option {option.name!r} is {text!r}", fix=f"It is {wanted}"
        ) from None


def _check_use(name: str, uses: tuple[Use, ...], wanted: tuple[Use, ...]) -> None:
    if not set(uses) & set(wanted):
        raise ConfigurationError(
            f"The option {name!r} does not apply to {' or '.join(wanted)}",
            why=f"It is an option of {' and '.join(uses)}",
            fix="Leave it out",
        )


def _unknown(name: str, wanted: tuple[Use, ...]) -> ConfigurationError:
    names = [*_usable(wanted), *NOT_HONOURED]
    lowered = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    if close:
        fix = f"Did you mean {lowered[close[0]]!r}?"
    elif name.lower().startswith("fs."):
        fix = f"Options of the object store are named {STORAGE}<name>"
    else:
        fix = f"Leave it out, or choose one of: {', '.join(_usable(wanted))}, {STORAGE}<name>"
    return ConfigurationError(f"Unknown option {name!r}", fix=fix)


def _usable(wanted: tuple[Use, ...]) -> Iterator[str]:
    return (option.name for option in _OPTIONS if set(option.uses) & set(wanted))


# --- the options of one call ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replaced:
    """The rows that an overwrite replaces; by default all."""

    where: str | None = None
    dynamic: bool = False
    matching: Matching | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a reader or writer: plain values that can be sent to other processes."""

    table: str
    catalog: str = field(repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: int | None = None
    timestamp: str | None = None
    change_feed: bool = False
    other: Mapping[str, str] = field(default_factory=dict, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The values of options that are not set, from the session; names in lower case."""

    @classmethod
    def read(
        cls,
        options: Mapping[str, str],
        *,
        uses: Iterable[Use] = Use,
        zone: tzinfo | None = None,
        defaults: Mapping[str, str] | None = None,
    ) -> SourceOptions:
        """Parse options; the case of their names does not matter.

        - Unknown options, options for none of the `uses` and invalid values are refused.
        - Timestamps without a zone are in `zone`, that of the session. A data source has no
          session: it has no `defaults`, and takes the zone of the machine.
        """
        check_names(options, uses)
        texts = {name.lower(): value for name, value in options.items()}
        known = {name: value_of(name, value) for name, value in texts.items() if name in KNOWN}
        texts |= {n: moment(texts[n], zone).isoformat() for n in _TIMESTAMPS if n in texts}
        table = texts.get("path") or texts.get("table")
        catalog = texts.get("catalog") or os.environ.get("DELTALAKEDB_CATALOG")
        if texts.get("path") and texts.get("table"):
            raise ConfigurationError(
                "The table is named twice: by load() or save(), and by the option 'table'",
                fix="Leave the option out",
            )
        if not table:
            raise ConfigurationError(
                "No table is named",
                why="saveAsTable and writeTo name a table of Spark's own catalog, and so does "
                "CREATE TABLE … USING",
                fix='Write .load("sales.orders"), or .save("sales.orders")',
            )
        if not catalog:
            raise ConfigurationError(
                "No catalog is named",
                fix='Add .option("catalog", "sqlite:///lake.db"), or set DELTALAKEDB_CATALOG',
            )
        version, timestamp = known.get("versionasof"), texts.get("timestampasof")
        if version is not None and timestamp is not None:
            raise exclusive("versionAsOf", "timestampAsOf")
        return cls(
            table=table,
            catalog=catalog,
            storage_options=_below(options, STORAGE),
            version=version,
            timestamp=timestamp,
            change_feed=known.get("readchangefeed", False) or known.get("readchangedata", False),
            other=texts,
            properties={spelled(n): v for n, v in _below(options, PROPERTY).items()},
            defaults=dict(defaults or {}),
        )

    def check(self, *uses: Use) -> None:
        """Refuse options that do not apply to these uses, or cannot be combined."""
        check_names(self.other, uses)
        check_together(self.other, feed=self.change_feed, uses=uses)

    def open(self) -> Lake:
        """Connect; the caller closes it."""
        return deltalakedb.connect(self.catalog, storage_options=dict(self.storage_options))

    def snapshot(self, lake: Lake) -> Snapshot:
        """The snapshot of the version or timestamp in the options; by default the newest."""
        return lake.table(self.table).snapshot(self.version, timestamp=self.timestamp)

    def flag(self, name: str) -> bool:
        """Whether an option is true."""
        return bool(self._value(name))

    def text(self, name: str) -> str | None:
        """The value of an option."""
        return self.other.get(name.lower())

    def number(self, name: str) -> int | None:
        """The value of an option that is a whole number."""
        text = self.text(name)
        number = None if text is None else value_of(name, text)
        if isinstance(number, str):
            raise ConfigurationError(f"The option {name!r} is {number!r}", fix="Set a version")
        return number

    def names(self, option: str) -> list[str]:
        """The columns that an option lists."""
        return [name.strip() for name in (self.text(option) or "").split(",") if name.strip()]

    def replaced(self, *, overwrite: bool) -> Replaced:
        """The rows that an overwrite replaces; options precede the settings of the session.

        `check_overwrite` refuses a condition beside dynamic partitions or another schema.
        """
        replacing = [name for name in _REPLACING if self.text(name) is not None]
        if replacing and not overwrite:
            raise ConfigurationError(
                f"{replacing[0]} is set, and rows are appended", fix='Use .mode("overwrite")'
            )
        if len(replacing) > 1:
            raise _together(*replacing[:2])
        alias = self._value("targetAlias")
        if alias is not None and not replacing:
            raise ConfigurationError(
                "targetAlias is set, and there is no condition that could name it",
                fix="Leave it out, or add replaceOn or replaceWhere",
            )
        where = self.text("replaceWhere")
        if where is not None and alias is not None:
            where = without_alias(where, alias)
        matching = None
        if replacing and where is None:
            if self.text(_OVERWRITE_MODE) is not None:
                raise _together("partitionOverwriteMode", replacing[0])
            if self.flag("overwriteSchema"):
                raise _together("overwriteSchema", replacing[0])
            if not self.data_change(overwrite=True):
                raise _together("dataChange=false", replacing[0])
            using, on = self._value("replaceUsing") or (), self._value("replaceOn")
            matching = Matching(using, on, None if using else alias)
        default = "static" if replacing else self.defaults.get(_OVERWRITE_MODE, "static")
        mode = value_of(_OVERWRITE_MODE, self.text(_OVERWRITE_MODE) or default)
        return Replaced(where, mode == "dynamic", matching)

    def _value(self, name: str) -> Any:
        """The value of an option, by default of the session's setting for it; or None."""
        text = {**self.defaults, **self.other}.get(name.lower())
        return None if text is None else value_of(name, text)

    def data_change(self, *, overwrite: bool) -> bool:
        """Whether a write changes rows; otherwise it only moves them to other files."""
        changes = self._value("dataChange") is not False
        if not changes and not overwrite:
            raise ConfigurationError(
                "dataChange is false, and rows are appended",
                why="No stream and no reader of the change feed would ever see them",
                fix='Leave it out; it is for .mode("overwrite") with the same rows',
            )
        return changes

    def codec(self) -> str | None:
        """The codec of new files; None for that of the table."""
        codec: str | None = self._value("compression")
        return codec

    def max_records(self) -> int | None:
        """The most rows of a new file; None for any number."""
        most: int = self._value("maxRecordsPerFile") or 0
        return most if most > 0 else None

    def optimize(self) -> bool | None:
        """Whether rows are shuffled to fewer, larger files; None for the table's property."""
        optimize: bool | None = self._value("optimizeWrite")
        return optimize

    def app_txn(self) -> tuple[str, int] | None:
        """The transaction of an application: a write with the same one is committed once."""
        app_id, version = self.text("txnAppId"), self.number("txnVersion")
        if (app_id is None) != (version is None):
            raise ConfigurationError(
                "Only one of txnAppId and txnVersion is set", fix="Set both, or none"
            )
        return None if app_id is None or version is None else (app_id, version)


def _together(one: str, other: str) -> ConfigurationError:
    return ConfigurationError(
        f"The options {one} and {other} cannot be combined",
        why=f"{other} replaces rows that are chosen one by one, and keeps all others",
        fix="Set one of them",
    )


def exclusive(one: str, other: str) -> ConfigurationError:
    """The error for two options of which a call takes one."""
    return ConfigurationError(f"Both {one} and {other} are set", fix="Set one of them")


def _below(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name[len(prefix) :]: value
        for name, value in options.items()
        if name.lower().startswith(prefix)
    }


def not_a_table_of_spark(what: str) -> UnsupportedFeatureError:
    """The error for a call or statement that creates a table or view of Spark's catalog."""
    return UnsupportedFeatureError(
        f"{what} does not work with tables of a lake",
        why="It creates a table or view of Spark's own catalog, which Spark could not read or "
        "write correctly",
        fix='Write by df.write.format("deltalakedb").option("catalog", url).save("sales.orders"), '
        'which creates a table if .option("location", …) is set or the catalog has a warehouse; '
        "for SQL create a view: "
        "deltalakedb.spark.register(spark, url), or "
        'spark.read.format("deltalakedb").option("catalog", url).load("sales.orders")'
        '.createOrReplaceTempView("orders")',
    )
