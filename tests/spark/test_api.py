"""The names, arguments and answers of `delta.tables`, which may not be installed here."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

import deltalakedb
from deltalakedb.errors import ConfigurationError, TableNotFoundError, UnsupportedFeatureError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.api.merge_builder import DeltaMergeBuilder
from deltalakedb.spark.api.optimize_builder import DeltaOptimizeBuilder
from deltalakedb.spark.api.table_builder import DeltaTableBuilder
from deltalakedb.spark.io.hadoop import storage_options_of

from support.store import Catalogs

# Of Delta 4: the arguments by position, those with a default in brackets.
DELTA: dict[type, dict[str, str]] = {
    DeltaTable: {
        "toDF": "",
        "alias": "aliasName",
        "generate": "mode",
        "delete": "[condition]",
        "update": "[condition] [set]",
        "merge": "source condition",
        "vacuum": "[retentionHours]",
        "history": "[limit]",
        "detail": "",
        "convertToDelta": "sparkSession identifier [partitionSchema]",
        "forPath": "sparkSession path [hadoopConf]",
        "forName": "sparkSession tableOrViewName",
        "create": "[sparkSession]",
        "createIfNotExists": "[sparkSession]",
        "replace": "[sparkSession]",
        "createOrReplace": "[sparkSession]",
        "isDeltaTable": "sparkSession identifier",
        "upgradeTableProtocol": "readerVersion writerVersion",
        "addFeatureSupport": "featureName",
        "dropFeatureSupport": "featureName [truncateHistory]",
        "restoreToVersion": "version",
        "restoreToTimestamp": "timestamp",
        "optimize": "",
        "clone": "target [isShallow] [replace] [properties]",
        "cloneAtVersion": "version target [isShallow] [replace] [properties]",
        "cloneAtTimestamp": "timestamp target [isShallow] [replace] [properties]",
    },
    DeltaMergeBuilder: {
        "whenMatchedUpdate": "[condition] [set]",
        "whenMatchedUpdateAll": "[condition]",
        "whenMatchedDelete": "[condition]",
        "whenNotMatchedInsert": "[condition] [values]",
        "whenNotMatchedInsertAll": "[condition]",
        "whenNotMatchedBySourceUpdate": "[condition] [set]",
        "whenNotMatchedBySourceDelete": "[condition]",
        "withSchemaEvolution": "",
        "execute": "",
    },
    DeltaTableBuilder: {
        "tableName": "identifier",
        "location": "location",
        "comment": "comment",
        "addColumn": "colName dataType [nullable] [generatedAlwaysAs] [generatedByDefaultAs] "
        "[comment]",
        "addColumns": "cols",
        "partitionedBy": "*cols",
        "clusterBy": "*cols",
        "property": "key value",
        "execute": "",
    },
    DeltaOptimizeBuilder: {
        "where": "partitionFilter",
        "executeCompaction": "",
        "executeZOrderBy": "*cols",
    },
}
METHODS = [(kind, name) for kind, methods in DELTA.items() for name in methods]


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        yield lake


@pytest.mark.parametrize(("kind", "name"), METHODS, ids=[f"{k.__name__}.{n}" for k, n in METHODS])
def test_a_method_takes_the_arguments_of_deltas(kind: type, name: str) -> None:
    """By position and by name; what it takes beside them has a default."""
    wanted = DELTA[kind][name].split()
    method = getattr(kind, name)
    given = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    shown = [
        f"*{p.name}"
        if p.kind is p.VAR_POSITIONAL
        else (p.name if p.default is p.empty else f"[{p.name}]")
        for p in given
        if p.kind is not p.KEYWORD_ONLY
    ]
    assert shown[: len(wanted)] == wanted
    assert all(one.startswith("[") for one in shown[len(wanted) :])
    assert all(p.default is not p.empty for p in given if p.kind is p.KEYWORD_ONLY)
    of_class = bool(wanted) and wanted[0].strip("[]") == "sparkSession"
    assert isinstance(inspect.getattr_static(kind, name), classmethod) == of_class


COUNT = "struct<num_affected_rows:bigint{}>"
SIZES = "struct<min:bigint,max:bigint,avg:double,totalFiles:bigint,totalSize:bigint>"
CUBE, CLUSTER = "struct<num:bigint,size:bigint>", "struct<numFiles:bigint,size:bigint>"
OPTIMIZED = (
    f"struct<path:string,metrics:struct<numFilesAdded:bigint,numFilesRemoved:bigint,"
    f"filesAdded:{SIZES},filesRemoved:{SIZES},partitionsOptimized:bigint,"
    f"zOrderStats:struct<strategyName:string,inputCubeFiles:{CUBE},inputOtherFiles:{CUBE},"
    f"inputNumCubes:bigint,mergedFiles:{CUBE},numOutputCubes:bigint,mergedNumCubes:bigint>,"
    f"clusteringStats:struct<inputZCubeFiles:{CLUSTER},inputOtherFiles:{CLUSTER},"
    f"inputNumZCubes:bigint,mergedFiles:{CLUSTER},numOutputZCubes:bigint>,numBins:bigint,"
    "numBatches:bigint,totalConsideredFiles:bigint,totalFilesSkipped:bigint,"
    "preserveInsertionOrder:boolean,numFilesSkippedToReduceWriteAmplification:bigint,"
    "numBytesSkippedToReduceWriteAmplification:bigint,startTimeMs:bigint,endTimeMs:bigint,"
    "totalClusterParallelism:bigint,totalScheduledTasks:bigint,"
    "autoCompactParallelismStats:struct<maxClusterActiveParallelism:bigint,"
    "minClusterActiveParallelism:bigint,maxSessionActiveParallelism:bigint,"
    "minSessionActiveParallelism:bigint>,deletionVectorStats:"
    "struct<numDeletionVectorsRemoved:bigint,numDeletionVectorRowsRemoved:bigint>,"
    "numTableColumns:bigint,numTableColumnsWithStats:bigint>>"
)
RESTORED = (
    "struct<table_size_after_restore:bigint,num_of_files_after_restore:bigint,"
    "num_removed_files:bigint,num_restored_files:bigint,removed_files_size:bigint,"
    "restored_files_size:bigint>"
)
DETAIL = (
    "struct<format:string,id:string,name:string,description:string,location:string,"
    "createdAt:timestamp,lastModified:timestamp,partitionColumns:array<string>,"
    "clusteringColumns:array<string>,numFiles:bigint,sizeInBytes:bigint,"
    "properties:map<string,string>,minReaderVersion:int,minWriterVersion:int,"
    "tableFeatures:array<string>>"
)
HISTORY = (
    "struct<version:bigint,timestamp:timestamp,userId:string,userName:string,operation:string,"
    "operationParameters:map<string,string>,job:struct<jobId:string,jobName:string,"
    "jobRunId:string,runId:string,jobOwnerId:string,triggerType:string>,"
    "notebook:struct<notebookId:string>,clusterId:string,readVersion:bigint,"
    "isolationLevel:string,isBlindAppend:boolean,operationMetrics:map<string,string>,"
    "userMetadata:string,engineInfo:string>"
)


def test_answers_have_the_columns_of_deltas(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("part", pa.string())])
    table = lake.create_table(
        "answers",
        location=str(tmp_path / "t"),
        schema=schema,
        partition_by=["part"],
        properties={"delta.enableDeletionVectors": "true"},
    )
    for i in range(3):
        table.append(pa.table({"id": [i, i + 10, i + 20], "part": ["a", "b", "a"]}))
    target = DeltaTable.forName(spark, "answers", catalog=lake)

    def columns(frame: Any) -> str:
        return str(frame.schema.simpleString())

    assert columns(target.delete("id = 20")) == COUNT.format("")
    assert columns(target.update("id = 10", {"id": "100"})) == COUNT.format("")
    source = spark.sql("SELECT 1L AS id, 'a' AS part").alias("s")
    merged = target.alias("t").merge(source, "t.id = s.id").whenMatchedUpdateAll().execute()
    more = ",num_updated_rows:bigint,num_deleted_rows:bigint,num_inserted_rows:bigint"
    assert columns(merged) == COUNT.format(more)
    before = table.snapshot()
    optimized = target.optimize().executeCompaction()
    assert columns(optimized) == OPTIMIZED
    (row,) = optimized.collect()
    after = table.snapshot()
    told = row.metrics
    assert told.numFilesRemoved - told.numFilesAdded == before.num_files - after.num_files
    assert told.filesRemoved.totalFiles == told.numFilesRemoved
    assert told.filesAdded.min <= told.filesAdded.avg <= told.filesAdded.max
    assert (told.partitionsOptimized, told.numBins, told.numBatches) == (2, 2, 1)
    assert told.deletionVectorStats.numDeletionVectorRowsRemoved == 2
    assert (told.zOrderStats, told.clusteringStats) == (None, None)
    assert told.startTimeMs <= told.endTimeMs
    nothing = target.optimize().executeCompaction()
    assert columns(nothing) == OPTIMIZED
    assert nothing.collect()[0].metrics.filesAdded.min is None
    ordered = target.optimize().executeZOrderBy("id")
    assert columns(ordered) == OPTIMIZED
    assert ordered.collect()[0].metrics.zOrderStats.strategyName == "all"
    assert columns(target.restoreToVersion(1)) == RESTORED
    assert columns(target.detail()) == DETAIL
    assert columns(target.history()) == HISTORY
    assert (columns(target.vacuum()), target.vacuum().count()) == ("struct<>", 0)


def test_a_session_need_not_be_named(spark: SparkSession, url: str, tmp_path: Path) -> None:
    assert SparkSession.getActiveSession() is not None
    spark.conf.set("spark.deltalakedb.catalog", url)
    try:
        made = (
            DeltaTable.create()
            .tableName("built")
            .location(str(tmp_path / "t"))
            .addColumn("id", "BIGINT", nullable=False)
            .addColumn("m", "map<string, struct<a: INT>>")
            .addColumn("twice", "long", True, "id * 2", None, "of the id")
            .addColumns([StructField("s", StructType().add("a", "integer"))])
            .execute()
        )
        again = DeltaTable.createIfNotExists().tableName("built").execute()
        assert repr(again) == repr(made)
        replaced = DeltaTable.createOrReplace().tableName("built").addColumn("n", "int").execute()
        assert replaced.toDF().columns == ["n"]
        again = DeltaTable.replace().tableName("built").addColumn("m", "int").execute()
        assert again.toDF().columns == ["m"]
        # By its location, as Spark writes it, and with settings of Hadoop.
        path = f"delta.`{tmp_path / 't'}`"
        assert DeltaTable.isDeltaTable(spark, path)
        assert repr(DeltaTable.forName(spark, path)) == repr(made)
        conf = {"fs.s3a.access.key": "me", "fs.s3a.secret.key": "mine"}
        assert repr(DeltaTable.forPath(spark, str(tmp_path / "t"), conf)) == repr(made)
        with pytest.raises(ConfigurationError, match=r"fs\.azure"):
            DeltaTable.forPath(spark, str(tmp_path / "t"), {"fs.azure.key": "x"})
        with pytest.raises(ConfigurationError, match="catalog="):
            DeltaTable.forPath(spark, str(tmp_path / "t"), url)  # type: ignore[arg-type]
        with pytest.raises(TableNotFoundError):
            DeltaTable.forName(spark, "delta.`/no/such`")
        builder = DeltaTable.create().tableName("identity")
        with pytest.raises(ConfigurationError, match=r"'n'.*'no type'"):
            builder.addColumn("n", "no type")
        identity = SimpleNamespace(start=1, step=1)
        for wrong in ({"generatedAlwaysAs": identity}, {"generatedByDefaultAs": identity}):
            with pytest.raises(ConfigurationError, match="identity"):
                builder.addColumn("id", "long", **wrong)  # type: ignore[arg-type]
    finally:
        spark.conf.unset("spark.deltalakedb.catalog")
    with deltalakedb.connect(url) as lake:
        comments = lake.table("built").snapshot(version=0).schema.field("twice").metadata
    assert comments["comment"] == "of the id"


def test_settings_of_hadoop_are_options_of_the_store() -> None:
    assert storage_options_of(
        {
            "fs.s3a.access.key": "me",
            "fs.s3a.endpoint": "localhost:9000",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.endpoint.region": "eu-central-1",
        }
    ) == {
        "access_key_id": "me",
        "endpoint_url": "http://localhost:9000",
        "allow_http": "true",
        "virtual_hosted_style_request": "false",
        "region": "eu-central-1",
    }


def manifests(folder: Path) -> dict[str, list[str]]:
    root = folder / "_symlink_format_manifest"
    return {
        str(path.parent.relative_to(root)): path.read_text().splitlines()
        for path in sorted(root.rglob("manifest"))
    }


def test_manifests_name_the_files_of_each_partition(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    folder = tmp_path / "my tables" / "t"
    table = lake.create_table(
        "listed",
        location=str(folder),
        schema=pa.schema([("id", pa.int64()), ("part", pa.string())]),
        partition_by=["part"],
    )
    table.append(pa.table({"id": [1, 2, 3, 4], "part": ["a b", "c/d", None, "%"]}))
    table.append(pa.table({"id": [5], "part": ["a b"]}))
    target = DeltaTable.forName(spark, "listed", catalog=lake)
    target.generate("symlink_format_manifest")
    found = manifests(folder)
    assert set(found) == {"part=a b", "part=c%2Fd", "part=__HIVE_DEFAULT_PARTITION__", "part=%25"}
    assert len(found["part=a b"]) == 2
    for paths in found.values():
        for path in paths:
            # As Hadoop takes it: nothing is encoded, and the file is there.
            assert path.startswith("file:/")
            assert Path(path.removeprefix("file:")).is_file()
    rows = spark.read.parquet(*(path for paths in found.values() for path in paths))
    assert sorted(row.id for row in rows.collect()) == [1, 2, 3, 4, 5]
    # A partition that is gone has no manifest any more; vacuum leaves manifests alone.
    target.delete("part = 'c/d'")
    target.generate("SYMLINK_FORMAT_MANIFEST")
    assert set(manifests(folder)) == {"part=a b", "part=__HIVE_DEFAULT_PARTITION__", "part=%25"}
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        target.vacuum(0)
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    after = manifests(folder)
    assert len(after) == 3
    assert all(Path(p.removeprefix("file:")).is_file() for paths in after.values() for p in paths)
    assert target.toDF().count() == 4
    with pytest.raises(ConfigurationError, match="symlink_format_manifest"):
        target.generate("no_such")


def test_a_manifest_of_a_table_without_partitions(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64())])
    table = lake.create_table("one", location=str(tmp_path / "one"), schema=schema)
    target = DeltaTable.forName(spark, "one", catalog=lake)
    target.generate("symlink_format_manifest")
    assert manifests(tmp_path / "one") == {".": []}
    table.append(pa.table({"id": [1]}))
    target.generate("symlink_format_manifest")
    assert len(manifests(tmp_path / "one")["."]) == 1
    # A clone names the files of its source.
    clone = target.clone(str(tmp_path / "clone"), isShallow=True, name="clone_of_one")
    clone.generate("symlink_format_manifest")
    assert manifests(tmp_path / "clone") == manifests(tmp_path / "one")


@pytest.mark.parametrize("properties", ["delta.enableDeletionVectors", "delta.columnMapping.mode"])
def test_what_readers_of_manifests_would_get_wrong_is_refused(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: str
) -> None:
    value = "true" if properties.endswith("Vectors") else "name"
    table = lake.create_table(
        f"no {properties}",
        location=str(tmp_path / "t"),
        schema=pa.schema([("id", pa.int64())]),
        properties={properties: value},
    )
    table.append(pa.table({"id": [1, 2]}))
    target = DeltaTable.forName(spark, table.name, catalog=lake)
    target.delete("id = 1")
    with pytest.raises(UnsupportedFeatureError, match="manifest"):
        target.generate("symlink_format_manifest")
    assert not (tmp_path / "t" / "_symlink_format_manifest").exists()
