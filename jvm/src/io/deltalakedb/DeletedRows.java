package io.deltalakedb;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.List;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.ObjectType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The deleted rows of a file as a bitmap that an expression of Spark looks rows up in.
 *
 * <p>The bits of 4,096 rows are a page. The bitmap begins with the number of pages n, and where the
 * page of each of them begins; where the bits of later rows are comes last. Pages without a deleted
 * row are all the same one. Executors need no class of ours: the expression calls Java's own.
 */
final class DeletedRows {
  private static final int PAGE_BITS = 12;
  private static final int PAGE_ROWS = 1 << PAGE_BITS;
  private static final int PAGE_BYTES = PAGE_ROWS / 8;

  private DeletedRows() {}

  /** The bitmap of row numbers: sorted, each as eight bytes, the lowest one first. */
  static byte[] bitmap(byte[] numbers) {
    LongBuffer rows = ByteBuffer.wrap(numbers).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
    int last = rows.limit() - 1;
    int pages = last < 0 ? 0 : Math.toIntExact(rows.get(last) >> PAGE_BITS) + 1;
    int used = 0;
    for (int i = 0; i <= last; i++) {
      used += i == 0 || page(rows.get(i)) != page(rows.get(i - 1)) ? 1 : 0;
    }
    int empty = 4 * (pages + 2);
    ByteBuffer bitmap =
        ByteBuffer.allocate(Math.addExact(empty, Math.multiplyExact(PAGE_BYTES, used + 1)));
    bitmap.putInt(0, pages);
    for (int page = 0; page <= pages; page++) {
      bitmap.putInt(4 * (page + 1), empty);
    }
    int next = empty;
    for (int i = 0; i <= last; i++) {
      long row = rows.get(i);
      int entry = 4 * (page(row) + 1);
      if (bitmap.getInt(entry) == empty) {
        next += PAGE_BYTES;
        bitmap.putInt(entry, next);
      }
      int at = bitmap.getInt(entry) + (int) (row & (PAGE_ROWS - 1)) / 8;
      bitmap.put(at, (byte) (bitmap.get(at) | 1 << (row & 7)));
    }
    return bitmap.array();
  }

  private static int page(long row) {
    return (int) (row >> PAGE_BITS);
  }

  /** Whether a row of a file is live: the file has no bitmap, or no bit for the row. */
  static Column isLive(Column bitmap, Column row) {
    Column page = functions.least(functions.shiftright(row, PAGE_BITS), number(bitmap, functions.lit(0)));
    Column start = number(bitmap, page.plus(1).multiply(4).cast(DataTypes.IntegerType));
    Column inPage = functions.shiftright(row.bitwiseAND(PAGE_ROWS - 1), 3).cast(DataTypes.IntegerType);
    Column bits = called(bitmap, "get", DataTypes.ByteType, start.plus(inPage));
    Column bit = functions.getbit(bits, row.bitwiseAND(7).cast(DataTypes.IntegerType));
    return bitmap.isNull().or(bit.equalTo(0));
  }

  private static Column number(Column bytes, Column index) {
    return called(bytes, "getInt", DataTypes.IntegerType, index);
  }

  /** A method of a buffer over bytes; null where they are null. */
  private static Column called(Column bytes, String method, DataType type, Column index) {
    Expression buffer =
        new StaticInvoke(
            ByteBuffer.class,
            new ObjectType(ByteBuffer.class),
            "wrap",
            seq(List.of(ExpressionUtils.expression(bytes))),
            seq(List.of()),
            true,
            true,
            true,
            Option.empty());
    return ExpressionUtils.column(
        new Invoke(
            buffer,
            method,
            type,
            seq(List.of(ExpressionUtils.expression(index))),
            seq(List.of()),
            true,
            true,
            true));
  }

  private static <T> Seq<T> seq(List<T> values) {
    return CollectionConverters.asScala(values).toSeq();
  }
}
