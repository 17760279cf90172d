"""`format("deltalakedb")` in the driver: Spark's own scan and writer, in the place of Arrow.

Spark gives a data source in Python neither the DataFrame that is written nor a say in the plan that
reads it. So `DataFrameReader.load` and `DataFrameWriter.save` of PySpark are wrapped, once this
room is in use: with our format they do what `DeltaTable.toDF()`, `Table.append` and
`Table.overwrite` do, with any other what they always did. What was asked for is read from the
reader or writer of the JVM, where PySpark keeps it. What would make a table or view of Spark's own
catalog by our format (`saveAsTable`, `writeTo(…).using`, `CREATE … USING`) is refused.

Streams, Spark Connect, sessions with `spark.deltalakedb.nativeFormat=false`, and processes that
never loaded this room go on through the data source (`datasource.py`). Options mean the same.
"""

from __future__ import annotations

import functools
import inspect
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.errors import ConfigurationError, TableExistsError, TableNotFoundError
from deltalakedb.operations.overwrite import overwrite as overwrite_rows
from deltalakedb.spark.api.errors import analysis_errors
from deltalakedb.spark.api.lakes import session_settings, using_lake
from deltalakedb.spark.api.session import default_options, default_properties
from deltalakedb.spark.io.scan import session_zone
from deltalakedb.spark.source.options import Use
from deltalakedb.spark.source.source_options import SourceOptions, check_layout, columns_of
from deltalakedb.spark.source.spark_tables import not_a_table_of_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.lake import Lake
    from deltalakedb.table import Table

FORMAT: Final = "deltalakedb"
SWITCH: Final = "spark.deltalakedb.nativeFormat"
"""The setting of a session that is `false` where the data source is to do it all."""
_CREATE_TABLE: Final = frozenset(
    {"CreateTable", "CreateTableAsSelect", "ReplaceTable", "ReplaceTableAsSelect"}
)
_installed = threading.Lock()


def install() -> None:
    """Let PySpark read and write our format in the driver; again and again does no harm."""
    from pyspark.sql import SparkSession, readwriter

    with _installed:
        for kind, name, made in (
            (readwriter.DataFrameReader, "load", _loading),
            (readwriter.DataFrameWriter, "save", _saving),
            (readwriter.DataFrameWriter, "saveAsTable", _saving_as_table),
            (readwriter.DataFrameWriterV2, "using", _using),
            (SparkSession, "sql", _running),
        ):
            original = getattr(kind, name)
            if not hasattr(original, "__deltalakedb_original__"):
                wrapped = made(original)
                wrapped.__deltalakedb_original__ = original  # type: ignore[attr-defined]
                setattr(kind, name, wrapped)


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        said = _said(signature, self, args, kwargs)
        if _is_ours(self._spark, said.get("format"), self._jreader):
            self.format(FORMAT).options(**said.get("options", {}))
            if said.get("schema") is not None:
                self.schema(said["schema"])
            asked = _Reading.of(self, said.get("path"))
            if asked is not None:
                return _loaded(self._spark, asked)
        return original(self, *args, **kwargs)

    return load


def _saving(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        said = _said(signature, self, args, kwargs)
        if _is_ours(self._spark, said.get("format"), self._jwrite):
            self.format(FORMAT).mode(said.get("mode")).options(**said.get("options", {}))
            if said.get("partitionBy") is not None:
                self.partitionBy(said["partitionBy"])
            asked = _Writing.of(self, said.get("path"))
            if asked is not None:
                return _save(self._df, asked)
        return original(self, *args, **kwargs)

    return save


def _saving_as_table(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def save_as_table(self: Any, *args: Any, **kwargs: Any) -> Any:
        said = _said(signature, self, args, kwargs)
        if _is_named(said.get("format") or _kept(self._jwrite, "source")):
            raise not_a_table_of_spark(f"saveAsTable({said.get('name')!r})")
        return original(self, *args, **kwargs)

    return save_as_table


def _using(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def using(self: Any, provider: Any) -> Any:
        if _is_named(provider):
            raise not_a_table_of_spark(f"writeTo(…).using({provider!r})")
        return original(self, provider)

    return using


def _running(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sql(self: Any, *args: Any, **kwargs: Any) -> Any:
        query = args[0] if args else kwargs.get("sqlQuery")
        if isinstance(query, str) and FORMAT in query.lower():
            _check_definition(self, query)
        return original(self, *args, **kwargs)

    return sql


def _check_definition(spark: SparkSession, query: str) -> None:
    """Refuse statements that make a table or view of Spark's by our format.

    The data source cannot: it is not asked when a table is created with its columns, and neither
    does it know a view, which would take inserts and go on to show what it was first read with.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(query)  # noqa: SLF001
        kind = str(plan.getClass().getSimpleName())
        if kind == "CreateTempViewUsing":
            provider = plan.provider()
        elif kind in _CREATE_TABLE:
            found = plan.tableSpec().provider()
            provider = found.get() if found.isDefined() else None
        else:
            return
    except (Py4JError, PySparkException):
        # What is wrong with it is for Spark to say.
        return
    if _is_named(provider):
        statement = "CREATE TEMPORARY VIEW" if kind == "CreateTempViewUsing" else "CREATE TABLE"
        raise not_a_table_of_spark(f"{statement} … USING {FORMAT}")


def _is_named(name: Any) -> bool:
    return isinstance(name, str) and name.lower() == FORMAT


def _said(
    signature: inspect.Signature, self: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by name; none where they do not fit, which the original will say."""
    try:
        return dict(signature.bind(self, *args, **kwargs).arguments)
    except TypeError:
        return {}


# --- what is asked for --------------------------------------------------------------------


def _is_ours(spark: SparkSession, name: str | None, kept: Any) -> bool:
    """Whether a reader or writer is for our format, and is to be served here."""
    if name is None:
        name = _kept(kept, "source")
    if not _is_named(name):
        return False
    return str(spark.conf.get(SWITCH, "true")).strip().lower() != "false"


def _kept(kept: Any, name: str) -> Any:
    """What a reader or writer of the JVM knows; None where this Spark has it under no such name."""
    from py4j.protocol import Py4JError

    try:
        return getattr(kept, name)()
    except Py4JError:
        return None


def _given(spark: SparkSession, kept: Any, path: str | None, use: Use) -> SourceOptions | None:
    """The options, their names as they were written; those of the session where they say nothing.

    None where they cannot be known: then the data source is asked, which is told them by Spark.
    """
    found = _kept(kept, "extraOptions")
    if found is None:
        return None
    java = spark.sparkContext._jvm  # noqa: SLF001 - there is no other way to it
    assert java is not None  # noqa: S101 - a session that is classic has one
    convert = java.scala.jdk.javaapi.CollectionConverters
    options: dict[str, str] = dict(convert.asJava(found.originalMap()))
    session = session_settings(spark)
    there = {name.lower() for name in options}
    if any(name.startswith("storage.") for name in there):
        there |= {name for name in session if name.startswith("storage.")}
    if path is not None and "path" in there:
        raise ConfigurationError(
            "The table is named twice: by the option 'path', and by what is loaded or saved",
            fix="Leave the option out",
        )
    if path is not None:
        options["path"] = path
    said = {**{n: v for n, v in session.items() if n not in there}, **options}
    given = SourceOptions.read(
        said, uses=[use], zone=session_zone(spark), defaults=default_options(spark)
    )
    given.check(use)
    return given


@dataclass(frozen=True, slots=True)
class _Reading:
    """A read, as far as it is known before the catalog is asked."""

    given: SourceOptions
    schema: str | None

    @classmethod
    def of(cls, reader: Any, path: Any) -> _Reading | None:
        kept = reader._jreader  # noqa: SLF001 - nothing else knows it
        if isinstance(path, (list, tuple)):
            if len(path) != 1:
                raise ConfigurationError(
                    f"{len(path)} tables are named", fix="Load one table, and join or union others"
                )
            (path,) = path
        schema = _kept(kept, "userSpecifiedSchema")
        given = _given(reader._spark, kept, path, Use.READ)  # noqa: SLF001
        if given is None or schema is None:
            return None
        return cls(given, str(schema.get().json()) if schema.isDefined() else None)


@dataclass(frozen=True, slots=True)
class _Writing:
    """A write, as far as it is known before the catalog is asked."""

    given: SourceOptions
    mode: str
    partition_by: list[str] | None
    cluster_by: list[str] | None

    @classmethod
    def of(cls, writer: Any, path: str | None) -> _Writing | None:
        kept, spark = writer._jwrite, writer._spark  # noqa: SLF001 - nothing else knows it
        mode = _kept(kept, "curmode")
        names = {
            name: _kept(kept, name)
            for name in ("partitioningColumns", "clusteringColumns", "bucketColumnNames")
        }
        sorted_by = _kept(kept, "sortColumnNames")
        given = _given(spark, kept, path, Use.WRITE)
        if given is None or mode is None or sorted_by is None or None in names.values():
            return None
        if names["bucketColumnNames"].isDefined() or sorted_by.isDefined():
            raise ConfigurationError(
                "bucketBy and sortBy mean nothing to a table of a lake",
                fix="Leave them out; clusterBy lets rows that are alike share files",
            )
        convert = spark.sparkContext._jvm.scala.jdk.javaapi.CollectionConverters  # noqa: SLF001

        def listed(name: str) -> list[str] | None:
            some = names[name]
            return list(convert.asJava(some.get())) if some.isDefined() else None

        return cls(
            given, str(mode).lower(), listed("partitioningColumns"), listed("clusteringColumns")
        )


# --- doing it -----------------------------------------------------------------------------


@analysis_errors()
def _loaded(spark: SparkSession, asked: _Reading) -> DataFrame:
    """The rows, or the changes of rows, that are asked for."""
    from deltalakedb.spark.io.scan import scan
    from deltalakedb.spark.source.feed import feed_frame

    given = asked.given
    with using_lake(given.catalog, given.storage_options) as lake:
        if given.change_feed:
            return feed_frame(spark, lake, given)
        snapshot = given.snapshot(lake)
        frame = scan(spark, snapshot, where=given.text("where"), metadata=given.flag("metadata"))
    if asked.schema is not None:
        _check_schema(asked, frame)
    return frame


def _check_schema(asked: _Reading, frame: DataFrame) -> None:
    from pyspark.sql.types import StructType

    assert asked.schema is not None  # noqa: S101
    wanted = StructType.fromJson(json.loads(asked.schema))
    shown, there = (
        [f"{f.name} {f.dataType.simpleString()}" for f in s] for s in (wanted, frame.schema)
    )
    if [text.lower() for text in shown] != [text.lower() for text in there]:
        raise ConfigurationError(
            f"Table {asked.given.table!r} is read with columns that it does not have",
            why=f"They are {', '.join(there)}, and not {', '.join(shown)}",
            fix="Leave schema() out, and select or cast columns of what is loaded",
        )


@analysis_errors()
def _save(frame: DataFrame, asked: _Writing) -> None:
    """Write the rows in one commit; a table that is not there is created by the same commit."""
    from deltalakedb.spark.io.stage import FrameSource, is_adaptive

    given, mode = asked.given, asked.mode
    overwrite = mode == "overwrite"
    replaced = given.replaced(overwrite=overwrite)
    data_change = given.data_change(overwrite=overwrite)
    source = FrameSource(
        frame, codec=given.codec(), max_records=given.max_records(), optimize=given.optimize()
    )
    if given.text("optimizeWrite") and given.optimize() and not is_adaptive(frame.sparkSession):
        raise ConfigurationError(
            "optimizeWrite is true, and Spark's adaptive execution is off",
            why="It decides how many files the rows are shuffled to",
            fix="Set spark.sql.adaptive.enabled to true, or leave the option out",
        )
    how: dict[str, Any] = {
        "app_txn": given.app_txn(),
        "user_metadata": given.text("userMetadata"),
        "target_bytes": given.number("targetFileBytes"),
    }
    partition_by = _named_once(given, "partitionBy", asked.partition_by)
    cluster_by = _named_once(given, "clusterBy", asked.cluster_by)
    with using_lake(given.catalog, given.storage_options) as lake:
        table = _found(lake, given, create=replaced.matching is None and data_change)
        if table is None:
            try:
                lake.create_table_as(
                    given.table,
                    source,
                    location=given.text("location") or "",
                    schema=columns_of(frame.schema),
                    partition_by=partition_by,
                    cluster_by=cluster_by,
                    properties={**default_properties(frame.sparkSession), **given.properties},
                    where=replaced.where,
                    **how,
                )
            except TableExistsError:
                # Somebody else may have been faster.
                table = _found(lake, given, create=True)
                if table is None:
                    raise
            else:
                return
        if mode == "errorifexists":
            raise TableExistsError(
                f"Table {table.name!r} exists already",
                why="Without a mode, or with mode('error'), only a new table is written to",
                fix="Use mode('append'), mode('overwrite') or mode('ignore')",
            )
        if mode == "ignore":
            return
        merge_schema = given.flag("mergeSchema")
        overwrite_schema = overwrite and given.flag("overwriteSchema")
        check_layout(
            table,
            given.text("location"),
            partition_by=() if overwrite_schema else partition_by,
            cluster_by=cluster_by,
        )
        if not overwrite:
            table.append(source, merge_schema=merge_schema, **how)
            return
        commit = overwrite_rows(
            table.snapshot(),
            source,
            where=replaced.where,
            storage_options=lake.storage_options,
            now=table.now_ms(),
            merge_schema=merge_schema,
            overwrite_schema=overwrite_schema,
            partition_by=(partition_by or None) if overwrite_schema else None,
            dynamic=replaced.dynamic,
            target_bytes=how["target_bytes"],
            matching=replaced.matching,
            data_change=data_change,
        )
        noted = commit.with_note(how["user_metadata"])
        table.submit(noted.with_app_txn(how["app_txn"], table.now_ms()))


def _named_once(given: SourceOptions, name: str, called: list[str] | None) -> list[str]:
    """The columns that a call of the writer names, or the option of the same name."""
    if called is not None and given.text(name) is not None:
        raise ConfigurationError(
            f"The columns are named twice: by {name}(), and by the option {name!r}",
            fix="Leave the option out",
        )
    return given.names(name) if called is None else called


def _found(lake: Lake, given: SourceOptions, *, create: bool) -> Table | None:
    """The table; None where it is not there, and may be created."""
    try:
        return lake.table(given.table)
    except TableNotFoundError:
        if given.text("location") is None or not create:
            raise
        return None
