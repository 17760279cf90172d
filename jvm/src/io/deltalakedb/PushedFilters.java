package io.deltalakedb;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.FileSourceMetadataAttribute$;
import org.apache.spark.sql.catalyst.expressions.Predicate;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractPartialFunction;

/** The filters that Spark hands to a scan. */
final class PushedFilters {
  // Longer ones, such as lists of 100,000 values, take longer to read than they save.
  private static final int LONGEST_TEXT = 1_000_000;

  private PushedFilters() {}

  /**
   * Filters as SQL, with timestamps in UTC: an hour of the session's zone may occur twice.
   *
   * <p>Filters on hidden metadata columns, which may be called as columns of the table, are left
   * out; Spark applies them to the rows.
   */
  static List<String> texts(Seq<Expression> filters) {
    SQLConf settings = SQLConf.get().clone();
    settings.setConfString(SQLConf.SESSION_LOCAL_TIMEZONE().key(), "UTC");
    return SQLConf.withExistingConf(
        settings,
        new AbstractFunction0<List<String>>() {
          @Override
          public List<String> apply() {
            List<String> texts = new ArrayList<>();
            for (Expression filter : CollectionConverters.asJava(filters)) {
              if (filter.deterministic() && namesColumns(filter)) {
                String text = withoutQualifiers(filter).sql();
                if (text.length() <= LONGEST_TEXT) {
                  texts.add(text);
                }
              }
            }
            return texts;
          }
        });
  }

  /** Whether all that a filter names are columns of the table. */
  private static boolean namesColumns(Expression filter) {
    for (Attribute one : CollectionConverters.asJava(filter.references().toSeq())) {
      if (!(one instanceof AttributeReference named)
          || FileSourceMetadataAttribute$.MODULE$.unapply(named).isDefined()) {
        return false;
      }
    }
    return true;
  }

  private static Expression withoutQualifiers(Expression filter) {
    return filter.transform(
        new AbstractPartialFunction<Expression, Expression>() {
          @Override
          public boolean isDefinedAt(Expression part) {
            return part instanceof AttributeReference;
          }

          @Override
          public Expression apply(Expression part) {
            return ((AttributeReference) part)
                .withQualifier(CollectionConverters.asScala(List.<String>of()).toSeq());
          }
        });
  }

  /** Filters that are evaluated with the values of partition columns. */
  static List<BasePredicate> bound(Seq<Expression> filters, StructType partitions) {
    List<BasePredicate> predicates = new ArrayList<>();
    for (Expression filter : CollectionConverters.asJava(filters)) {
      Expression bound =
          filter.transform(
              new AbstractPartialFunction<Expression, Expression>() {
                @Override
                public boolean isDefinedAt(Expression part) {
                  return part instanceof AttributeReference;
                }

                @Override
                public Expression apply(Expression part) {
                  int place = partitions.fieldIndex(((AttributeReference) part).name());
                  return new BoundReference(place, part.dataType(), true);
                }
              });
      predicates.add(Predicate.createInterpreted(bound));
    }
    return predicates;
  }

  static boolean allHold(List<BasePredicate> predicates, InternalRow values) {
    return predicates.stream().allMatch(one -> one.eval(values));
  }
}
