package io.deltalakedb;

import java.io.IOException;
import java.io.InputStream;
import java.lang.ref.SoftReference;
import java.net.URI;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.collection.immutable.ArraySeq;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;

/**
 * The files of a table at one version: each scan asks the catalog with the filters that Spark has.
 *
 * <ul>
 *   <li>It has no root path: what would write to the folder of a relation fails.
 *   <li>Spark does not apply filters on partition columns again; here they are exact.
 *   <li>The last answer is kept while there is memory for it: actions are often repeated.
 * </ul>
 */
final class LakeFileIndex implements FileIndex {
  private static final long BLOCK = 128L << 20;
  // The columns of an answer: these, then the partition columns.
  private static final int URI_COLUMN = 0;
  private static final int SIZE = 1;
  private static final int TIME = 2;
  private static final int DELETED = 3;
  private static final int FIRST_VALUE = 4;

  private final String scan;
  private final String table;
  private final StructType partitions;
  private final boolean hasDeletedRows;
  private final long size;
  private final FileLister lister;
  private volatile SoftReference<Listing> last = new SoftReference<>(null);
  private volatile long nanoseconds;

  /** The last of the partition columns is the bitmap of deleted rows, if the table can have any. */
  LakeFileIndex(
      String scan,
      String table,
      StructType partitions,
      boolean hasDeletedRows,
      long size,
      FileLister lister) {
    this.scan = scan;
    this.table = table;
    this.partitions = partitions;
    this.hasDeletedRows = hasDeletedRows;
    this.size = size;
    this.lister = lister;
  }

  private record Listing(List<String> filters, List<PartitionDirectory> directories) {}

  @Override
  public Seq<PartitionDirectory> listFiles(
      Seq<Expression> partitionFilters, Seq<Expression> dataFilters) {
    List<String> filters =
        Stream.of(partitionFilters, dataFilters)
            .flatMap(some -> PushedFilters.texts(some).stream())
            .toList();
    List<BasePredicate> exact = PushedFilters.bound(partitionFilters, partitions);
    return seq(
        listed(filters).stream()
            .filter(directory -> PushedFilters.allHold(exact, directory.values()))
            .toArray());
  }

  private List<PartitionDirectory> listed(List<String> filters) {
    Listing known = last.get();
    if (known == null || !known.filters().equals(filters)) {
      long start = System.nanoTime();
      try (InputStream answer = lister.list(scan, filters)) {
        known = new Listing(filters, directories(answer));
      } catch (IOException error) {
        throw new IllegalStateException(
            "deltalakedb: the files of the table " + table + " cannot be listed: "
                + error.getMessage(),
            error);
      }
      nanoseconds = System.nanoTime() - start;
      last = new SoftReference<>(known);
    }
    return known.directories();
  }

  /** The files of an answer by partition; a file with deleted rows is one of its own. */
  private List<PartitionDirectory> directories(InputStream answer) throws IOException {
    Map<InternalRow, List<Object>> plain = new LinkedHashMap<>();
    List<PartitionDirectory> directories = new ArrayList<>();
    try (BufferAllocator memory = new RootAllocator();
        ArrowStreamReader reader = new ArrowStreamReader(answer, memory)) {
      VectorSchemaRoot root = reader.getVectorSchemaRoot();
      ColumnVector[] columns =
          root.getFieldVectors().stream()
              .map((FieldVector one) -> new ArrowColumnVector(one))
              .toArray(ColumnVector[]::new);
      int values = partitions.length() - (hasDeletedRows ? 1 : 0);
      while (reader.loadNextBatch()) {
        ColumnarBatch batch = new ColumnarBatch(columns, root.getRowCount());
        for (int i = 0; i < root.getRowCount(); i++) {
          InternalRow file = batch.getRow(i);
          InternalRow row = values(file, values);
          FileStatusWithMetadata status = status(file);
          if (file.isNullAt(DELETED)) {
            plain.computeIfAbsent(row, any -> new ArrayList<>()).add(status);
          } else {
            row.update(values, DeletedRows.bitmap(file.getBinary(DELETED)));
            directories.add(PartitionDirectory.apply(row, seq(status)));
          }
        }
      }
    }
    plain.forEach((row, files) -> directories.add(PartitionDirectory.apply(row, seq(files.toArray()))));
    return directories;
  }

  private InternalRow values(InternalRow file, int count) {
    Object[] values = new Object[partitions.length()];
    for (int i = 0; i < count; i++) {
      if (!file.isNullAt(FIRST_VALUE + i)) {
        values[i] = InternalRow.copyValue(file.get(FIRST_VALUE + i, partitions.apply(i).dataType()));
      }
    }
    return new GenericInternalRow(values);
  }

  private static FileStatusWithMetadata status(InternalRow file) {
    Path path = new Path(URI.create(file.getUTF8String(URI_COLUMN).toString()));
    return new FileStatusWithMetadata(
        new FileStatus(file.getLong(SIZE), false, 1, BLOCK, file.getLong(TIME), path),
        Map$.MODULE$.empty());
  }

  @SuppressWarnings("unchecked")
  private static <T> Seq<T> seq(Object... values) {
    return (Seq<T>) ArraySeq.unsafeWrapArray(values);
  }

  @Override
  public Seq<Path> rootPaths() {
    return seq();
  }

  @Override
  public String[] inputFiles() {
    List<String> files = new ArrayList<>();
    for (PartitionDirectory directory : listed(List.of())) {
      directory.files().foreach(file -> files.add(file.getPath().toUri().toString()));
    }
    return files.toArray(String[]::new);
  }

  @Override
  public void refresh() {
    // A version of a table has the same files for ever.
  }

  @Override
  public long sizeInBytes() {
    return size;
  }

  @Override
  public StructType partitionSchema() {
    return partitions;
  }

  @Override
  public Option<Object> metadataOpsTimeNs() {
    return Option.apply(nanoseconds);
  }

  /** Spark runs equal scans once, and finds cached rows by them. */
  @Override
  public boolean equals(Object other) {
    return other instanceof LakeFileIndex index && index.scan.equals(scan);
  }

  @Override
  public int hashCode() {
    return scan.hashCode();
  }

  @Override
  public String toString() {
    return "LakeFileIndex(" + table + ")";
  }
}
