"""`format("deltalakedb")` by Spark's own scan and writer, for programs that call `enable`.

Spark passes a data source in Python neither the DataFrame that is written nor a part of the plan
that reads. So `enable` wraps `DataFrameReader.load` and `DataFrameWriter.save` of PySpark: with our
format they do what `DeltaTable.toDF()`, `Table.append` and `Table.overwrite` do, with any other
format they call the original.

- Nothing of PySpark is changed by an import: only `enable` does it, and `disable` undoes it.
- Options have the same meaning as in the data source (`datasource.py`), which serves every other
  program, streams, Spark Connect, and sessions with `spark.deltalakedb.nativeFormat=false`.
- Calls that would create a table or view of Spark's own catalog with our format (`saveAsTable`,
  `writeTo(…).using`, `CREATE … USING`) are refused.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession, readwriter
from pyspark.sql.types import StructType

from deltalakedb.arguments import require_session
from deltalakedb.errors import (
    ConfigurationError,
    TableExistsError,
    UnsupportedFeatureError,
)
from deltalakedb.forking import ProcessLock
from deltalakedb.operations.overwrite import overwrite as overwrite_rows
from deltalakedb.spark.api.errors import analysis_errors
from deltalakedb.spark.api.session import (
    catalog_options,
    default_options,
    default_properties,
    using_lake,
)
from deltalakedb.spark.io.scan import scan
from deltalakedb.spark.io.spark_internals import (
    ReaderState,
    WriterState,
    created_with,
    is_connect,
    reader_format,
    reader_session,
    reader_state,
    writer_format,
    writer_state,
    written_frame,
)
from deltalakedb.spark.io.stage import FrameSource, is_adaptive
from deltalakedb.spark.io.timestamps import session_zone
from deltalakedb.spark.source.feed import feed_frame
from deltalakedb.spark.source.options import FORMAT, SourceOptions, Use, not_a_table_of_spark
from deltalakedb.spark.source.writer import check_layout, columns_of, existing

SWITCH: Final = "spark.deltalakedb.nativeFormat"
"""The setting that leaves a session to the data source, where it is `false`."""
_ORIGINAL: Final = "__deltalakedb_original__"
_lock = ProcessLock()


def enable(spark: SparkSession) -> None:
    """Serve `format("deltalakedb")` by Spark's own reader and writer, in the whole process.

    This wraps methods of PySpark: `load`, `save`, `saveAsTable`, `writeTo(…).using` and
    `SparkSession.sql`. Other formats are passed through. A second call changes nothing, `disable`
    restores the methods, and the setting `spark.deltalakedb.nativeFormat=false` leaves a session
    out. Without it the format is served by a data source in Python: correct, and slower.
    """
    require_session("spark", spark)
    if is_connect(spark):
        raise UnsupportedFeatureError(
            "deltalakedb.spark.enable does not work with Spark Connect",
            why="Its server reads and writes, and this process has no part in it",
            fix='Leave it out: format("deltalakedb") works by the data source',
        )
    with _lock.lock:
        for owner, name, wrapper in _wrappers():
            original = getattr(owner, name)
            if not hasattr(original, _ORIGINAL):
                wrapped = functools.wraps(original)(wrapper(original))
                setattr(wrapped, _ORIGINAL, original)
                setattr(owner, name, wrapped)


def disable() -> None:
    """Restore the methods of PySpark that `enable` has wrapped."""
    with _lock.lock:
        for owner, name, _ in _wrappers():
            original = getattr(getattr(owner, name), _ORIGINAL, None)
            if original is not None:
                setattr(owner, name, original)


def _wrappers() -> list[tuple[type, str, Callable[[Callable[..., Any]], Callable[..., Any]]]]:
    return [
        (readwriter.DataFrameReader, "load", _wrap_load),
        (readwriter.DataFrameWriter, "save", _wrap_save),
        (readwriter.DataFrameWriter, "saveAsTable", _wrap_save_as_table),
        (readwriter.DataFrameWriterV2, "using", _wrap_using),
        (SparkSession, "sql", _wrap_sql),
    ]


def _wrap_load(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = _arguments(signature, self, args, kwargs)
        if _is_served(self, arguments.get("format"), reader_format):
            self.format(FORMAT).options(**arguments.get("options", {}))
            if arguments.get("schema") is not None:
                self.schema(arguments["schema"])
            state = _state(reader_state, self)
            if state is not None:
                return _load(reader_session(self), state, _one_path(arguments.get("path")))
        return original(self, *args, **kwargs)

    return load


def _wrap_save(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = _arguments(signature, self, args, kwargs)
        if _is_served(self, arguments.get("format"), writer_format):
            self.format(FORMAT).mode(arguments.get("mode")).options(**arguments.get("options", {}))
            if arguments.get("partitionBy") is not None:
                self.partitionBy(arguments["partitionBy"])
            state = _state(writer_state, self)
            if state is not None:
                return _save(written_frame(self), state, arguments.get("path"))
        return original(self, *args, **kwargs)

    return save


def _wrap_save_as_table(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def save_as_table(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = _arguments(signature, self, args, kwargs)
        if _is_format(arguments.get("format") or _state(writer_format, self)):
            raise not_a_table_of_spark(f"saveAsTable({arguments.get('name')!r})")
        return original(self, *args, **kwargs)

    return save_as_table


def _wrap_using(original: Callable[..., Any]) -> Callable[..., Any]:
    def using(self: Any, provider: Any) -> Any:
        if _is_format(provider):
            raise not_a_table_of_spark(f"writeTo(…).using({provider!r})")
        return original(self, provider)

    return using


def _wrap_sql(original: Callable[..., Any]) -> Callable[..., Any]:
    def sql(self: Any, *args: Any, **kwargs: Any) -> Any:
        query = args[0] if args else kwargs.get("sqlQuery")
        if isinstance(query, str) and FORMAT in query.lower():
            # The data source cannot refuse it: Spark does not ask it when columns are listed.
            created = created_with(self, query)
            if created is not None and _is_format(created[1]):
                raise not_a_table_of_spark(f"{created[0]} … USING {FORMAT}")
        return original(self, *args, **kwargs)

    return sql


def _is_format(name: Any) -> bool:
    return isinstance(name, str) and name.lower() == FORMAT


def _is_served(owner: Any, name: str | None, current: Callable[[Any], str]) -> bool:
    """Whether a reader or writer has our format, and its session is not left out."""
    if not _is_format(_state(current, owner) if name is None else name):
        return False
    return str(reader_session(owner).conf.get(SWITCH, "true")).strip().lower() != "false"


def _state(read: Callable[[Any], Any], owner: Any) -> Any:
    """The state of a reader or writer; None where this Spark has no such internals."""
    try:
        return read(owner)
    except (Py4JError, AttributeError):
        return None


def _arguments(
    signature: inspect.Signature, self: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by name; none where they do not fit, which the original will refuse."""
    try:
        return dict(signature.bind(self, *args, **kwargs).arguments)
    except TypeError:
        return {}


def _one_path(path: Any) -> Any:
    if not isinstance(path, (list, tuple)):
        return path
    if len(path) != 1:
        raise ConfigurationError(
            f"{len(path)} tables are named", fix="Load one table, and join or union others"
        )
    return path[0]


def _source_options(
    spark: SparkSession, state: ReaderState | WriterState, path: str | None, use: Use
) -> SourceOptions:
    """The options of a read or write; those of the session are their defaults."""
    defaults = catalog_options(spark)
    names = {name.lower() for name in state.options}
    if any(name.startswith("storage.") for name in names):
        names |= {name for name in defaults if name.startswith("storage.")}
    if path is not None and "path" in names:
        raise ConfigurationError(
            "The table is named twice: by the option 'path', and by load() or save()",
            fix="Leave the option out",
        )
    texts = {**{n: v for n, v in defaults.items() if n not in names}, **state.options}
    if path is not None:
        texts["path"] = path
    options = SourceOptions.read(
        texts, uses=[use], zone=session_zone(spark), defaults=default_options(spark)
    )
    options.check(use)
    return options


# --- reading and writing ------------------------------------------------------------------


@analysis_errors()
def _load(spark: SparkSession, state: ReaderState, path: str | None) -> DataFrame:
    """The rows of a table, or its change data feed."""
    options = _source_options(spark, state, path, Use.READ)
    with using_lake(options.catalog, options.storage_options) as lake:
        if options.change_feed:
            return feed_frame(spark, lake, options)
        snapshot = options.snapshot(lake)
        where, metadata = options.text("where"), options.flag("metadata")
        frame = scan(spark, snapshot, where=where, metadata=metadata)
    if state.schema is not None:
        _check_schema(options.table, state.schema, frame)
    return frame


def _check_schema(table: str, schema: str, frame: DataFrame) -> None:
    requested, actual = (
        [f"{f.name} {f.dataType.simpleString()}" for f in s]
        for s in (StructType.fromJson(json.loads(schema)), frame.schema)
    )
    if [text.lower() for text in requested] != [text.lower() for text in actual]:
        raise ConfigurationError(
            f"Table {table!r} is read with columns that it does not have",
            why=f"They are {', '.join(actual)}, and not {', '.join(requested)}",
            fix="Leave schema() out, and select or cast columns of the DataFrame",
        )


@analysis_errors()
def _save(frame: DataFrame, state: WriterState, path: str | None) -> None:
    """Write the rows in one commit, which also creates a table that does not exist."""
    spark = frame.sparkSession
    options = _source_options(spark, state, path, Use.WRITE)
    if state.is_bucketed:
        raise ConfigurationError(
            "bucketBy and sortBy do not apply to a table of a lake",
            fix="Leave them out; clusterBy lets similar rows share files",
        )
    overwrite = state.mode == "overwrite"
    replaced = options.replaced(overwrite=overwrite)
    data_change = options.data_change(overwrite=overwrite)
    source = FrameSource(frame, options.codec(), options.max_records(), options.optimize())
    if options.text("optimizeWrite") and options.optimize() and not is_adaptive(spark):
        raise ConfigurationError(
            "optimizeWrite is true, and Spark's adaptive execution is off",
            why="It decides how many files the rows are shuffled to",
            fix="Set spark.sql.adaptive.enabled to true, or leave the option out",
        )
    app_txn, note = options.app_txn(), options.text("userMetadata")
    target_bytes = options.number("targetFileBytes")
    partition_by = _named_once(options, "partitionBy", state.partition_by)
    cluster_by = _named_once(options, "clusterBy", state.cluster_by)
    with using_lake(options.catalog, options.storage_options) as lake:
        table = existing(lake, options, create=replaced.matching is None and data_change)
        if table is None:
            try:
                lake.create_table_as(
                    options.table,
                    source,
                    location=options.text("location"),
                    schema=columns_of(frame.schema),
                    partition_by=partition_by,
                    cluster_by=cluster_by,
                    properties={**default_properties(spark), **options.properties},
                    where=replaced.where,
                    app_txn=app_txn,
                    user_metadata=note,
                    target_bytes=target_bytes,
                )
            except TableExistsError:
                # Another writer may have created it meanwhile.
                table = existing(lake, options)
                if table is None:
                    raise
            else:
                return
        if state.mode == "errorifexists":
            raise TableExistsError(
                f"Table {table.name!r} exists already",
                why="Without a mode, or with mode('error'), only a new table is written to",
                fix="Use mode('append'), mode('overwrite') or mode('ignore')",
            )
        if state.mode == "ignore":
            return
        merge_schema = options.flag("mergeSchema")
        overwrite_schema = overwrite and options.flag("overwriteSchema")
        check_layout(
            table,
            options.text("location"),
            partition_by=() if overwrite_schema else partition_by,
            cluster_by=cluster_by,
        )
        if not overwrite:
            table.append(
                source,
                merge_schema=merge_schema,
                app_txn=app_txn,
                user_metadata=note,
                target_bytes=target_bytes,
            )
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
            matching=replaced.matching,
            data_change=data_change,
            app_txn=app_txn,
            user_metadata=note,
            target_bytes=target_bytes,
        )
        table.submit(commit)


def _named_once(options: SourceOptions, name: str, called: list[str] | None) -> list[str]:
    """The columns of a call of the writer, or of the option of the same name."""
    if called is not None and options.text(name) is not None:
        raise ConfigurationError(
            f"The columns are named twice: by {name}(), and by the option {name!r}",
            fix="Leave the option out",
        )
    return options.names(name) if called is None else called
