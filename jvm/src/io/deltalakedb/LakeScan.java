package io.deltalakedb;

import java.util.Map;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** Scans of tables of a lake, with Spark's own reader of Parquet; Python creates them. */
public final class LakeScan {
  private static final String DELETED = "__deltalakedb_deleted";

  private final FileLister lister;

  /** Scans whose files the service at an address lists. */
  public LakeScan(String address, String token) {
    this.lister = new FileLister(address, token);
  }

  /** Whether Spark reads such rows in vectors, so that the values of a file are not copied. */
  public boolean isVectorised(SparkSession reader, String schema) {
    return new ParquetFileFormat().supportBatch(reader, (StructType) DataType.fromJson(schema));
  }

  /**
   * The rows of a table at a version, with the columns of its files and its partition columns.
   *
   * @param session the session of the result
   * @param reader the session whose settings the files are read with
   * @param scan what the service needs to know; scans of the same text are equal
   * @param table the name of the table, for errors
   * @param dataSchema the columns of the files, as JSON
   * @param partitionSchema the partition columns, as JSON
   * @param options the options of the reader
   * @param hasDeletedRows whether files can have deleted rows
   * @param size the size of all files in bytes
   */
  public Dataset<Row> open(
      SparkSession session,
      SparkSession reader,
      String scan,
      String table,
      String dataSchema,
      String partitionSchema,
      Map<String, String> options,
      boolean hasDeletedRows,
      long size) {
    StructType partitions = (StructType) DataType.fromJson(partitionSchema);
    if (hasDeletedRows) {
      partitions = partitions.add(DELETED, DataTypes.BinaryType);
    }
    HadoopFsRelation relation =
        new HadoopFsRelation(
            new LakeFileIndex(scan, table, partitions, hasDeletedRows, size, lister),
            partitions,
            (StructType) DataType.fromJson(dataSchema),
            Option.empty(),
            new ParquetFileFormat(),
            scala.collection.immutable.Map.from(CollectionConverters.asScala(options)),
            reader);
    Dataset<Row> rows = session.baseRelationToDataFrame(relation);
    return hasDeletedRows
        ? rows.filter(
            DeletedRows.isLive(functions.col(DELETED), functions.col("_metadata.row_index")))
        : rows;
  }
}
