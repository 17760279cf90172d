"""The options of `format("deltalakedb")`, read and checked in one place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final

import deltalakedb
from deltalakedb.actions.datatypes import schema_from_json, schema_to_json, with_nulls
from deltalakedb.actions.properties import spelled
from deltalakedb.errors import ConfigurationError, UnsupportedFeatureError
from deltalakedb.operations.append import Matching
from deltalakedb.spark.api.query_text import without_alias
from deltalakedb.spark.io.timestamps import moment
from deltalakedb.spark.source.options import (
    KNOWN,
    PROPERTY,
    STORAGE,
    Use,
    check_names,
    check_together,
    value_of,
)
from deltalakedb.storage import table_location

if TYPE_CHECKING:
    from pyspark.sql.types import StructType as SparkStruct

    from deltalakedb.lake import Lake
    from deltalakedb.snapshot import Snapshot
    from deltalakedb.table import Table

FORMAT: Final = "deltalakedb"
"""The name of the format."""
_DYNAMIC = "dynamic"
_OVERWRITE_MODE = "partitionoverwritemode"
_REPLACING = ("replaceWhere", "replaceUsing", "replaceOn")
_MOMENTS = ("timestampasof", "startingtimestamp", "endingtimestamp")


@dataclass(frozen=True, slots=True)
class Replaced:
    """Which rows an overwrite replaces; all, where it says nothing."""

    where: str | None = None
    dynamic: bool = False
    matching: Matching | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader or writer was asked for; plain values, to be sent to other processes."""

    table: str
    catalog: str = field(repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: int | None = None
    timestamp: str | None = None
    change_feed: bool = False
    other: Mapping[str, str] = field(default_factory=dict, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    """What a session says of options that are not given, by their names in small letters."""

    @classmethod
    def read(
        cls,
        options: Mapping[str, str],
        *,
        uses: Iterable[Use] = Use,
        zone: tzinfo | None = None,
        defaults: Mapping[str, str] | None = None,
    ) -> SourceOptions:
        """Take options apart; names are told apart by their letters alone, not their case.

        Whatever is not known, counts for none of the `uses`, or has a wrong value is refused.

        Times without a zone are in `zone`, that of the session; a data source has no session that
        it could ask, and takes that of the machine. The same goes for `defaults`.
        """
        check_names(options, uses)
        given = {name.lower(): value for name, value in options.items()}
        known = {name: value_of(name, value) for name, value in given.items() if name in KNOWN}
        given |= {n: moment(given[n], zone).isoformat() for n in _MOMENTS if n in given}
        table = given.get("path") or given.get("table")
        catalog = given.get("catalog") or os.environ.get("DELTALAKEDB_CATALOG")
        if given.get("path") and given.get("table"):
            raise ConfigurationError(
                "The table is named twice: by what is loaded or saved, and by the option 'table'",
                fix="Leave the option out",
            )
        if not table:
            raise ConfigurationError(
                "No table is named",
                why="saveAsTable and writeTo name one of Spark's own catalog, and a table that was "
                "made there by CREATE TABLE … USING names none",
                fix='Write .load("sales.orders"), or .save("sales.orders")',
            )
        if not catalog:
            raise ConfigurationError(
                "No catalog is named",
                fix='Add .option("catalog", "sqlite:///lake.db"), or set DELTALAKEDB_CATALOG',
            )
        version, timestamp = known.get("versionasof"), given.get("timestampasof")
        if version is not None and timestamp is not None:
            raise ConfigurationError(
                "Both versionAsOf and timestampAsOf are given", fix="Give one of them"
            )
        return cls(
            table=table,
            catalog=catalog,
            storage_options=_below(options, STORAGE),
            version=version,
            timestamp=timestamp,
            change_feed=known.get("readchangefeed", False) or known.get("readchangedata", False),
            other=given,
            properties={spelled(n): v for n, v in _below(options, PROPERTY).items()},
            defaults=dict(defaults or {}),
        )

    def check(self, *uses: Use) -> None:
        """Refuse options that mean nothing to these uses, or beside one another."""
        check_names(self.other, uses)
        check_together(self.other, feed=self.change_feed, uses=uses)

    def open(self) -> Lake:
        """Connect; the caller closes it."""
        return deltalakedb.connect(self.catalog, storage_options=dict(self.storage_options))

    def snapshot(self, lake: Lake) -> Snapshot:
        """The version that was asked for."""
        return lake.table(self.table).snapshot(self.version, timestamp=self.timestamp)

    def flag(self, name: str) -> bool:
        """Whether an option is true."""
        text = {**self.defaults, **self.other}.get(name.lower())
        return text is not None and bool(value_of(name, text))

    def text(self, name: str) -> str | None:
        """The value of an option."""
        return self.other.get(name.lower())

    def number(self, name: str) -> int | None:
        """The value of an option that is a whole number."""
        text = self.text(name)
        found = None if text is None else value_of(name, text)
        if isinstance(found, str):
            raise ConfigurationError(f"The option {name!r} is {found!r}", fix="Give a version")
        return found

    def names(self, option: str) -> list[str]:
        """The columns that an option lists."""
        return [name.strip() for name in (self.text(option) or "").split(",") if name.strip()]

    def replaced(self, *, overwrite: bool) -> Replaced:
        """Which rows an overwrite replaces.

        What the options say goes before what the session says. A condition beside dynamic
        partitions or another schema is refused by whoever overwrites.
        """
        given = [name for name in _REPLACING if self.text(name) is not None]
        if given and not overwrite:
            raise ConfigurationError(
                f"{given[0]} is given, and rows are appended", fix='Use .mode("overwrite")'
            )
        if len(given) > 1:
            raise _together(*given[:2])
        alias = self._value("targetAlias")
        if alias is not None and not given:
            raise ConfigurationError(
                "targetAlias is given, and there is no condition that could name it",
                fix="Leave it out, or add replaceOn or replaceWhere",
            )
        where = self.text("replaceWhere")
        if where is not None and alias is not None:
            where = without_alias(where, alias)
        matching = None
        if given and where is None:
            if self.text(_OVERWRITE_MODE) is not None:
                raise _together("partitionOverwriteMode", given[0])
            if self.flag("overwriteSchema"):
                raise _together("overwriteSchema", given[0])
            if not self.data_change(overwrite=True):
                raise _together("dataChange=false", given[0])
            using, on = self._value("replaceUsing") or (), self._value("replaceOn")
            matching = Matching(using, on, None if using else alias)
        default = "static" if given else self.defaults.get(_OVERWRITE_MODE, "static")
        mode = value_of(_OVERWRITE_MODE, self.text(_OVERWRITE_MODE) or default)
        return Replaced(where, mode == _DYNAMIC, matching)

    def _value(self, name: str) -> Any:
        """The value of an option, or of the session's setting for it; None where neither is."""
        text = {**self.defaults, **self.other}.get(name.lower())
        return None if text is None else value_of(name, text)

    def data_change(self, *, overwrite: bool) -> bool:
        """Whether a write changes rows, or only moves them to other files."""
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
        found: str | None = self._value("compression")
        return found

    def max_records(self) -> int | None:
        """How many rows a new file has at most; None for any number."""
        most: int = self._value("maxRecordsPerFile") or 0
        return most if most > 0 else None

    def optimize(self) -> bool | None:
        """Whether rows are shuffled to fewer, larger files; None for what the table says."""
        found: bool | None = self._value("optimizeWrite")
        return found

    def app_txn(self) -> tuple[str, int] | None:
        """What lets a write count once, however often it is tried."""
        app_id, version = self.text("txnAppId"), self.number("txnVersion")
        if (app_id is None) != (version is None):
            raise ConfigurationError(
                "Only one of txnAppId and txnVersion is given", fix="Give both, or none"
            )
        return None if app_id is None or version is None else (app_id, version)


def _together(one: str, other: str) -> ConfigurationError:
    return ConfigurationError(
        f"The options {one} and {other} are given together",
        why=f"{other} replaces rows that are chosen one by one, and keeps all others",
        fix="Give one of them",
    )


def columns_of(schema: SparkStruct) -> SparkStruct:
    """The columns of a table that is created for rows.

    Whether values may be null is a matter of the table, and not of the first rows: nulls are
    allowed everywhere, as Delta has it.
    """
    from pyspark.sql.types import StructType

    made = with_nulls(schema_from_json(schema.json()))
    return StructType.fromJson(json.loads(schema_to_json(made)))


def check_layout(
    table: Table,
    location: str | None,
    *,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
) -> None:
    """Refuse a write that asks for another place or other columns than the table has.

    They count where a table is created; one that is there keeps its own.
    """
    if location is not None and (place := table_location(location)) != table.location:
        raise ConfigurationError(
            f"Table {table.name!r} does not lie at {place}",
            why=f"It exists already, at {table.location}",
            fix="Leave the option location out, or name another table",
        )
    _check_columns(table, "partitioned", partition_by, table.state().metadata.partition_columns)
    if cluster_by:
        _check_columns(table, "clustered", cluster_by, table.snapshot().clustering_columns)


def _check_columns(table: Table, how: str, asked: Sequence[str], there: Sequence[str]) -> None:
    if asked and [name.lower() for name in asked] != [name.lower() for name in there]:
        call = "partitionBy" if how == "partitioned" else "clusterBy"
        raise ConfigurationError(
            f"Table {table.name!r} is not {how} by {', '.join(asked)}",
            why=f"It is {how} by {', '.join(there)}" if there else f"It is not {how} at all",
            fix=f"Leave {call} out: rows go where they belong by themselves"
            + ("" if call == "partitionBy" else "; table.cluster_by(…) takes other columns"),
        )


def _below(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name[len(prefix) :]: value
        for name, value in options.items()
        if name.lower().startswith(prefix)
    }


def not_a_table_of_spark(what: str) -> UnsupportedFeatureError:
    """The error for a call or statement that would make such a table or view."""
    return UnsupportedFeatureError(
        f"{what} does not work with tables of a lake",
        why="It makes a table or view of Spark's own catalog, which Spark could not read or write "
        "rightly",
        fix='Write by df.write.format("deltalakedb").option("catalog", url).save("sales.orders"), '
        'which creates the table where .option("location", …) is given; for SQL make a view of '
        "what is read: deltalakedb.spark.register(spark, url), or "
        'spark.read.format("deltalakedb").option("catalog", url).load("sales.orders")'
        '.createOrReplaceTempView("orders")',
    )
