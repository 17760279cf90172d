"""Everything that this room uses of Spark and PySpark beyond their public API.

No other module reads a private attribute of PySpark or calls the JVM. Each function states why the
public API is not enough. `broken_internals` tries all of them: `deltalakedb doctor --spark` reports
those that a version of Spark has changed, and a test fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

_SEPARATOR: Final = "\x00\x01"
_CREATE_TABLE: Final = frozenset(
    {"CreateTable", "CreateTableAsSelect", "ReplaceTable", "ReplaceTableAsSelect"}
)


def is_connect(value: SparkSession | DataFrame) -> bool:
    """Whether a session or DataFrame is one of Spark Connect, which has no JVM in this process."""
    return type(value).__module__.startswith("pyspark.sql.connect")


SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""What a statement raises: PySpark has classes of its own for the most frequent errors of Java."""


def first_line(error: Exception) -> str:
    """The first line of an error of Spark, which is not the one that names a call of Python."""
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java.toString()).strip().partition("\n")[0]


def session_settings(spark: SparkSession) -> dict[str, str]:
    """All settings of a session.

    `spark.conf.getAll` fetches entry by entry, which took 30 ms where this took 1 ms.
    """
    if is_connect(spark):
        settings = spark.conf.getAll
        return dict(settings() if callable(settings) else settings)
    java: Any = spark._jsparkSession  # noqa: SLF001
    lines = java.conf().getAll().mkString(_SEPARATOR).split(_SEPARATOR)
    return dict(line.split(" -> ", 1) for line in lines if " -> " in line)


def builder_settings(builder: SparkSession.Builder) -> dict[str, str]:
    """The settings that a builder has so far."""
    return {name: str(value) for name, value in builder._options.items()}  # noqa: SLF001


# --- the JVM and Hadoop -------------------------------------------------------------------
# PySpark has no public API for either.


def file_name_encoding(spark: SparkSession) -> str:
    """The encoding that Java writes file names in."""
    return str(_jvm(spark).java.lang.System.getProperty("sun.jnu.encoding"))


def hadoop_version(spark: SparkSession) -> str:
    """The version of Hadoop on Spark's class path."""
    return str(_jvm(spark).org.apache.hadoop.util.VersionInfo.getVersion())


def has_file_system(spark: SparkSession, scheme: str) -> bool:
    """Whether Hadoop has a connector for the URIs of a scheme."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    try:
        _jvm(spark).org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, settings)
    except Py4JError:
        return False
    return True


def set_hadoop_default(spark: SparkSession, values: Mapping[str, str]) -> None:
    """Set values of Hadoop's configuration for all sessions, where none of them is set."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    if all(settings.get(name) is None for name in values):
        for name, value in values.items():
            settings.set(name, value)


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm  # noqa: SLF001


# --- analysed plans -----------------------------------------------------------------------
# `DataFrame.explain` has plans as text only, and PySpark has nothing that resolves a Column.


def analyzed_plan(frame: DataFrame) -> Any:
    """The plan of a DataFrame after Spark's analysis."""
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001


def filter_plan(filtered: DataFrame) -> Any:
    """The filter of an analysed plan: hidden columns that it names are dropped again above it."""
    plan = analyzed_plan(filtered)
    while plan.getClass().getSimpleName() != "Filter":
        plan = plan.children().apply(0)
    return plan


def join_condition(joined: DataFrame) -> Any:
    """The condition of a join, resolved."""
    return analyzed_plan(joined).condition().get()


def alias_of(frame: DataFrame) -> str | None:
    """The alias of a DataFrame, also below later operations with one child."""
    plan: Any
    if is_connect(frame):
        plan = getattr(frame, "_plan", None)
        while plan is not None:
            if type(plan).__name__ == "SubqueryAlias":
                return str(plan._alias)  # noqa: SLF001
            plan = getattr(plan, "_child", None)
        return None
    plan = analyzed_plan(frame)
    while True:
        if plan.getClass().getSimpleName() == "SubqueryAlias":
            return str(plan.alias())
        if plan.children().size() != 1:
            return None
        plan = plan.children().apply(0)


def same_expression(expected: Any, read: Callable[[], Any]) -> bool:
    """Whether Spark resolves a text to an expression that is equal to another one."""
    try:
        return bool(read().semanticEquals(expected))
    except (Py4JError, PySparkException):
        return False


def has_subquery(spark: SparkSession, plan: Any) -> bool:
    """Whether the condition of a filter reads another table."""
    expressions = _jvm(spark).org.apache.spark.sql.catalyst.expressions
    return bool(expressions.SubqueryExpression.hasSubquery(plan.condition()))


def with_current_time(spark: SparkSession, plan: Any) -> tuple[Any, bool]:
    """A filter with literals for functions of the current time; whether it had any.

    The rules are those that Spark's optimizer applies first. The optimizer as a whole would also
    rewrite the condition in ways that its SQL text cannot express.
    """
    rules = _jvm(spark).org.apache.spark.sql.catalyst.optimizer
    # `now() - INTERVAL 1 HOUR` has to be replaced by an expression that can be evaluated.
    plain = rules.ReplaceExpressions.apply(plan)
    fixed = rules.SpecialDatetimeValues.apply(rules.ComputeCurrentTime.apply(plain))
    return rules.ConstantFolding.apply(fixed), not fixed.fastEquals(plain)


def replaced_expressions(spark: SparkSession, plan: Any) -> Any:
    """A filter as `with_current_time` compares it."""
    return _jvm(spark).org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions.apply(plan)


def release_checkpoint(frame: DataFrame) -> None:
    """Delete the rows of a local checkpoint; otherwise they stay until Java collects garbage."""
    with suppress(Py4JError, TypeError, AttributeError):
        analyzed_plan(frame).rdd().unpersist(False)  # noqa: FBT003


# --- settings of one scan or write --------------------------------------------------------
# The settings of a session are those of all its threads and DataFrames. Where only a setting lets
# Spark read or write files as a table needs them, a clone of the session has it: a scan keeps the
# clone that it was opened with, and a write runs in one. The clone has the settings, views and
# files of the session, and shares its cache. `SparkSession.newSession` has none of these.


def cloned_reader(spark: SparkSession, settings: Mapping[str, str]) -> DataFrameReader:
    """A reader whose scans have other settings; `in_session` brings them back."""
    reader = spark.read
    # A SparkSession of Python's for the clone would make itself that of RDD.toDF.
    reader._jreader = _clone(spark, settings).read()  # noqa: SLF001
    return reader


def in_session(spark: SparkSession, scan: DataFrame) -> DataFrame:
    """A scan of a cloned reader as a DataFrame of the session."""
    java: Any = spark._jsparkSession  # noqa: SLF001
    return DataFrame(java.baseRelationToDataFrame(analyzed_plan(scan).relation()), spark)


def in_clone(frame: DataFrame, settings: Mapping[str, str]) -> DataFrame:
    """The rows of a DataFrame, computed with other settings."""
    spark = frame.sparkSession
    dataset = _jvm(spark).org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(_clone(spark, settings), analyzed_plan(frame)), spark)


def java_object(spark: SparkSession, jar: str, name: str, *arguments: object) -> Any:
    """A new object of a class in a jar, by its first constructor.

    The class is that of the session where its jars have it, otherwise of a class loader of its own.
    """
    jvm = _jvm(spark)
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        kind = loader.loadClass(name)
    except Py4JError:
        urls = gateway.new_array(jvm.java.net.URL, 1)
        urls[0] = jvm.java.io.File(jar).toURI().toURL()
        kind = jvm.java.net.URLClassLoader(urls, loader).loadClass(name)
    values = gateway.new_array(jvm.java.lang.Object, len(arguments))
    for place, argument in enumerate(arguments):
        values[place] = argument
    return kind.getConstructors()[0].newInstance(values)


def java_session(spark: SparkSession, settings: Mapping[str, str]) -> Any:
    """The session in Java; a clone of it where a scan needs other settings."""
    return _clone(spark, settings) if settings else spark._jsparkSession  # noqa: SLF001


def is_observed(frame: DataFrame) -> bool:
    """Whether an Observation waits for the rows: it is not notified of those of a clone."""
    return "CollectMetrics" in analyzed_plan(frame).toString()


def _clone(spark: SparkSession, settings: Mapping[str, str]) -> Any:
    clone = spark._jsparkSession.cloneSession()  # noqa: SLF001
    for name, value in settings.items():
        clone.conf().set(name, value)
    return clone


# --- readers and writers ------------------------------------------------------------------
# PySpark keeps what `option`, `schema`, `mode`, … set in the JVM only. Used after `enable`.


@dataclass(frozen=True, slots=True)
class ReaderState:
    """The calls of a DataFrameReader before `load`."""

    format: str
    options: Mapping[str, str]
    schema: str | None
    """As JSON."""


@dataclass(frozen=True, slots=True)
class WriterState:
    """The calls of a DataFrameWriter before `save`."""

    format: str
    options: Mapping[str, str]
    mode: str
    partition_by: list[str] | None
    cluster_by: list[str] | None
    is_bucketed: bool


def reader_session(reader: Any) -> SparkSession:
    """The session of a reader or writer."""
    session: SparkSession = reader._spark  # noqa: SLF001
    return session


def written_frame(writer: Any) -> DataFrame:
    """The DataFrame that a writer writes."""
    frame: DataFrame = writer._df  # noqa: SLF001
    return frame


def reader_format(reader: Any) -> str:
    """The format of a reader."""
    return str(reader._jreader.source())  # noqa: SLF001


def writer_format(writer: Any) -> str:
    """The format of a writer."""
    return str(writer._jwrite.source())  # noqa: SLF001


def reader_state(reader: Any) -> ReaderState:
    """The calls of a reader."""
    java = reader._jreader  # noqa: SLF001
    schema = java.userSpecifiedSchema()
    return ReaderState(
        reader_format(reader),
        _options(reader_session(reader), java),
        str(schema.get().json()) if schema.isDefined() else None,
    )


def writer_state(writer: Any) -> WriterState:
    """The calls of a writer."""
    java, spark = writer._jwrite, reader_session(writer)  # noqa: SLF001

    def columns(names: Any) -> list[str] | None:
        return list(_as_java(spark, names.get())) if names.isDefined() else None

    return WriterState(
        writer_format(writer),
        _options(spark, java),
        str(java.curmode()).lower(),
        columns(java.partitioningColumns()),
        columns(java.clusteringColumns()),
        bool(java.bucketColumnNames().isDefined() or java.sortColumnNames().isDefined()),
    )


def _options(spark: SparkSession, java: Any) -> dict[str, str]:
    """The options, their names as they were written."""
    return dict(_as_java(spark, java.extraOptions().originalMap()))


def _as_java(spark: SparkSession, collection: Any) -> Any:
    return _jvm(spark).scala.jdk.javaapi.CollectionConverters.asJava(collection)


def created_with(spark: SparkSession, query: str) -> tuple[str, str] | None:
    """The statement and the format by which SQL creates a table or a temporary view of Spark's.

    None for other statements, and for text that Spark's parser refuses.
    """
    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(query)  # noqa: SLF001
        kind = str(plan.getClass().getSimpleName())
        if kind == "CreateTempViewUsing":
            return "CREATE TEMPORARY VIEW", str(plan.provider())
        if kind in _CREATE_TABLE and plan.tableSpec().provider().isDefined():
            return "CREATE TABLE", str(plan.tableSpec().provider().get())
    except (Py4JError, PySparkException):
        return None
    return None


def parse_expression(spark: SparkSession, text: str) -> None:
    """Let Spark parse an expression; ParseException where it cannot.

    Elsewhere PySpark also resolves it, and logs an error with a stack trace if it names columns.
    """
    if not is_connect(spark):
        spark._jsparkSession.sessionState().sqlParser().parseExpression(text)  # noqa: SLF001
        return
    try:
        _ = spark.range(0).select(F.expr(text)).schema
    except ParseException:
        raise
    except AnalysisException:
        return  # it names columns of the table or the source


# --- the probe ----------------------------------------------------------------------------


def broken_internals(spark: SparkSession) -> dict[str, str]:
    """The internals that do not work with this Spark, by what needs them; the error of each."""
    broken = {}
    for name, works in _PROBES.items():
        try:
            if not works(spark):
                broken[name] = "the result is not the expected one"
        except Exception as error:  # noqa: BLE001 - whatever this version of Spark raises
            broken[name] = str(error).strip().partition("\n")[0] or type(error).__name__
    return broken


def _settings_work(spark: SparkSession) -> bool:
    return session_settings(spark).get("spark.app.name") == spark.conf.get("spark.app.name")


def _hadoop_works(spark: SparkSession) -> bool:
    return (
        bool(file_name_encoding(spark))
        and has_file_system(spark, "file")
        and not has_file_system(spark, "deltalakedb")
        and hadoop_version(spark)[:1].isdigit()
    )


def _plans_work(spark: SparkSession) -> bool:
    rows = spark.range(1).alias("t")
    plan = filter_plan(rows.where("id < 3"))
    joined = rows.join(spark.range(1).alias("s"), rows["id"] < 3)
    return (
        alias_of(rows.where("id < 3")) == "t"
        and plan.deterministic()
        and same_expression(plan.condition(), lambda: filter_plan(rows.where("3 > id")).condition())
        and "3" in str(join_condition(joined).sql())
    )


def _current_time_works(spark: SparkSession) -> bool:
    rows = spark.range(1)
    timed, asks = with_current_time(
        spark, filter_plan(rows.where("date_from_unix_date(id) < now()"))
    )
    _, other = with_current_time(spark, filter_plan(rows.where("id < 3")))
    subquery = has_subquery(spark, filter_plan(rows.where("id IN (SELECT 1)")))
    return asks and not other and subquery and "TIMESTAMP" in str(timed.condition().sql())


def _clones_work(spark: SparkSession) -> bool:
    rows = spark.range(1)
    zoned = in_clone(rows.selectExpr("current_timezone() AS zone"), {_ZONE: "Asia/Tokyo"})
    return (
        in_clone(rows, {}).count() == 1
        and zoned.collect()[0].zone == "Asia/Tokyo"
        and spark.conf.get(_ZONE) != "Asia/Tokyo"
        and not is_observed(rows)
    )


def _checkpoints_work(spark: SparkSession) -> bool:
    rows = spark.range(1).localCheckpoint()
    analyzed_plan(rows).rdd().unpersist(False)  # noqa: FBT003
    return True


def _readers_and_writers_work(spark: SparkSession) -> bool:
    reader = spark.read.format("x").option("anOption", "1").schema("id long")
    writer = spark.range(1).write.format("x").option("anOption", "1").mode("append")
    read = reader_state(reader)
    written = writer_state(writer.partitionBy("id"))
    return (
        (read.format, dict(read.options)) == ("x", {"anOption": "1"})
        and read.schema is not None
        and (written.format, dict(written.options)) == ("x", {"anOption": "1"})
        and (written.mode, written.partition_by) == ("append", ["id"])
        and (written.cluster_by, written.is_bucketed) == (None, False)
        and reader_session(reader) is spark
        and written_frame(writer).count() == 1
    )


def _parser_works(spark: SparkSession) -> bool:
    view = created_with(spark, "CREATE TEMPORARY VIEW v USING parquet OPTIONS (path 'x')")
    table = created_with(spark, "CREATE TABLE t (id BIGINT) USING parquet")
    return (
        view == ("CREATE TEMPORARY VIEW", "parquet")
        and table == ("CREATE TABLE", "parquet")
        and created_with(spark, "SELECT 1") is None
    )


def _expressions_work(spark: SparkSession) -> bool:
    parse_expression(spark, "t.id = s.id")
    try:
        parse_expression(spark, "t.id = = s.id")
    except ParseException:
        return True
    return False


_ZONE: Final = "spark.sql.session.timeZone"
_PROBES: Final[Mapping[str, Callable[[SparkSession], bool]]] = {
    "settings of a session": _settings_work,
    "Hadoop and file names": _hadoop_works,
    "conditions and aliases of DataFrames": _plans_work,
    "conditions with the current time": _current_time_works,
    "scans and writes with settings of their own": _clones_work,
    "local checkpoints of a merge": _checkpoints_work,
    "readers and writers after enable": _readers_and_writers_work,
    "CREATE … USING after enable": _parser_works,
    "conditions of a merge": _expressions_work,
}
