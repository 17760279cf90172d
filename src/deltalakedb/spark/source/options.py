"""The options of `format("deltalakedb")`: every name, where it counts, and what it may be.

Both ways in (`native_format.py` after `enable`, `datasource.py` as a data source) ask this list, so
an option has one meaning. What is not listed for a use is refused: an option that is passed over
may cost rows.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from deltalakedb.errors import ConfigurationError
from deltalakedb.staging.stage import CODECS

STORAGE: Final = "storage."
"""What the names of options of the object store begin with."""
PROPERTY: Final = "property."
"""What the names of properties of a new table begin with."""


class Use(StrEnum):
    """What options are given to."""

    READ = "spark.read"
    WRITE = "df.write"
    READ_STREAM = "spark.readStream"
    WRITE_STREAM = "df.writeStream"


READS: Final = (Use.READ, Use.READ_STREAM)
WRITES: Final = (Use.WRITE, Use.WRITE_STREAM)


class _Invalid(Exception):  # noqa: N818 - reworded before it leaves this module
    """Says what the value should be."""


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
    """A limit, where zero and less mean none, as Spark has it."""
    try:
        return int(text)
    except ValueError:
        raise _Invalid("a whole number; 0 means no limit") from None


def _version(text: str) -> int | str:
    return "latest" if text.strip().lower() == "latest" else _whole(0)(text)


def _size(text: str) -> int:
    """Bytes, as Spark reads them: a number, or one with k, m, g, t or p."""
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
    """An option: its name, what it can be given to, and how its text is read."""

    name: str
    uses: tuple[Use, ...]
    read: Callable[[str], Any] = _text


_OPTIONS: Final = (
    Option("catalog", tuple(Use)),
    Option("path", tuple(Use)),
    Option("table", tuple(Use)),
    # What is read.
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
    # What is written.
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
"""The options by their names in small letters."""

_LATER: Final = "Leave it out; this release has no other way to do it"
_ALL_FILES: Final = "Leave it out: a stream reads every file that a version adds"
_COLUMNS: Final = (
    "Leave it out; a query that ended because the columns changed goes on with the new ones when "
    "it is started again"
)
_PARQUET: Final = "Leave it out: files are written as every reader of Delta understands them"
# Options of Delta that nothing here does yet, and what to do instead.
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
# They say which versions or rows of a table are read; the feed has words of its own for that.
_NOT_OF_FEEDS: Final = (
    *("versionAsOf", "timestampAsOf", "where", "metadata", "pushFilters"),
    *("ignoreChanges", "ignoreDeletes", "skipChangeCommits"),
)
_OF_FEEDS: Final = ("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp")


def check_names(given: Iterable[str], uses: Iterable[Use]) -> None:
    """Refuse options that are not known, or that count for none of these uses."""
    wanted = tuple(uses)
    for name in given:
        lowered = name.lower()
        if lowered.startswith(STORAGE):
            continue
        if lowered.startswith(PROPERTY):
            _check_use(name, WRITES, wanted)
        elif lowered in KNOWN:
            _check_use(KNOWN[lowered].name, KNOWN[lowered].uses, wanted)
        elif lowered in _NOT_HONOURED:
            spelled = _NOT_HONOURED[lowered]
            raise ConfigurationError(
                f"The option {spelled!r} does not work here",
                why="Delta has it, and this release does not",
                fix=NOT_HONOURED[spelled],
            )
        else:
            raise _unknown(name, wanted)


def check_together(given: Mapping[str, str], *, feed: bool, uses: Iterable[Use]) -> None:
    """Refuse options that mean nothing beside the others."""
    for name in _NOT_OF_FEEDS if feed else ():
        if name.lower() in given:
            raise ConfigurationError(
                f"The options readChangeFeed and {name} are given together",
                why="The feed has every change of its versions",
                fix="Choose versions by startingVersion and endingVersion, or their timestamps; "
                "filter the rows of the feed",
            )
    for name in _OF_FEEDS if not feed and Use.READ_STREAM not in uses else ():
        if name.lower() in given:
            raise ConfigurationError(
                f"The option {name!r} means nothing to {Use.READ} of a table",
                why="It chooses versions of the change data feed",
                fix="Add readChangeFeed=true, or read one version by versionAsOf or timestampAsOf",
            )


def value_of(name: str, text: str) -> Any:
    """What the text of an option says; refused where it is nothing that the option can be."""
    option = KNOWN[name.lower()]
    if not isinstance(text, str):
        raise ConfigurationError(
            f"The option {option.name!r} has no value", fix="Give one, or leave the option out"
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
            f"The option {name!r} means nothing to {' or '.join(wanted)}",
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
