package io.deltalakedb;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/**
 * A table that Delta has staged, with work to do after its commit.
 *
 * <p>Everything else is Delta's own: a test fails if Spark adds a method that this does not pass on.
 * (A proxy would need no methods, but wraps the errors of Scala, which are checked ones for Java.)
 */
final class StagedLakeTable implements StagedTable, SupportsWrite {
  private final StagedTable staged;
  private final Runnable committed;

  StagedLakeTable(StagedTable staged, Runnable committed) {
    this.staged = staged;
    this.committed = committed;
  }

  @Override
  public void commitStagedChanges() {
    staged.commitStagedChanges();
    committed.run();
  }

  @Override
  public void abortStagedChanges() {
    staged.abortStagedChanges();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return staged.reportDriverMetrics();
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return ((SupportsWrite) staged).newWriteBuilder(info);
  }

  @Override
  public String name() {
    return staged.name();
  }

  @Override
  public String id() {
    return staged.id();
  }

  @Override
  @SuppressWarnings("deprecation")
  public StructType schema() {
    return staged.schema();
  }

  @Override
  public Column[] columns() {
    return staged.columns();
  }

  @Override
  public Transform[] partitioning() {
    return staged.partitioning();
  }

  @Override
  public Map<String, String> properties() {
    return staged.properties();
  }

  @Override
  public Set<TableCapability> capabilities() {
    return staged.capabilities();
  }

  @Override
  public Constraint[] constraints() {
    return staged.constraints();
  }

  @Override
  public String version() {
    return staged.version();
  }
}
