package io.deltalakedb;

import java.io.IOException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.URI;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkConf;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogDatabase;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTableType;
import org.apache.spark.sql.catalyst.catalog.SessionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The entries for tables of a lake in Spark's session catalog; all that is used of Spark's internals.
 *
 * <p>An entry has a property with the id of its table, which tells it from the tables of other
 * origins. An entry is only ever taken out as one of an external table: Spark deletes the files of
 * others.
 */
final class SessionTables {
  static final String TABLE_ID = "deltalakedb.table_id";
  static final String DEFAULT_DATABASE = "default";

  private final SparkSession spark;

  SessionTables(SparkSession spark) {
    this.spark = spark;
  }

  /** A setting of the session or else of Hadoop, as in the configuration that log stores get. */
  String setting(String name) {
    Option<String> own = spark.conf().getOption(name);
    return own.isDefined() ? own.get() : spark.sparkContext().hadoopConfiguration().get(name);
  }

  boolean isCaseSensitive() {
    return spark.sessionState().conf().caseSensitiveAnalysis();
  }

  /** The format of tables that name none. */
  String defaultFormat() {
    return spark.sessionState().conf().defaultDataSourceName();
  }

  /** Whether Delta asks the lake about commits to a table that lies here. */
  boolean hasLogStore(Path location) {
    String name = logStoreSetting(location);
    SparkConf settings = spark.sparkContext().getConf();
    String other = settings.get(name.replaceFirst("^spark\\.", ""), "");
    return settings.get(name, other).equals(CatalogLogStore.class.getName());
  }

  /** The setting that names the log store for a location. */
  static String logStoreSetting(Path location) {
    String scheme = location.toUri().getScheme();
    return "spark.delta.logStore." + (scheme == null ? "file" : scheme) + ".impl";
  }

  /** A name as the session catalog spells it. */
  String spelled(String name) {
    return isCaseSensitive() ? name : name.toLowerCase(Locale.ROOT);
  }

  private SessionCatalog catalog() {
    return spark.sessionState().catalog();
  }

  private static TableIdentifier identifier(Identifier table) {
    return new TableIdentifier(table.name(), Option.apply(table.namespace()[0]));
  }

  // --- entries ------------------------------------------------------------------------------

  /** An entry of the session catalog. */
  record Entry(CatalogTable table) {
    /** The id of the table of a lake that this is the entry of. */
    Optional<String> tableId() {
      return Optional.ofNullable(table.properties().get(TABLE_ID).getOrElse(() -> null));
    }

    Optional<Path> location() {
      Option<URI> location = table.storage().locationUri();
      return location.isDefined() ? Optional.of(new Path(location.get())) : Optional.empty();
    }

    boolean isManaged() {
      return table.tableType().equals(CatalogTableType.MANAGED());
    }
  }

  Optional<Entry> find(Identifier table) {
    TableIdentifier name = identifier(table);
    if (!catalog().databaseExists(table.namespace()[0]) || !catalog().tableExists(name)) {
      return Optional.empty();
    }
    try {
      return Optional.of(new Entry(catalog().getTableMetadata(name)));
    } catch (Exception error) { // checked for Java, and not declared by Scala
      if (!catalog().tableExists(name)) {
        return Optional.empty();
      }
      throw rethrown(error);
    }
  }

  List<Entry> entries(String database) {
    if (!catalog().databaseExists(database)) {
      return List.of();
    }
    List<TableIdentifier> names =
        CollectionConverters.asJava(catalog().listTables(database)).stream()
            .filter(name -> name.database().isDefined()) // otherwise it is a temporary view
            .toList();
    try {
      // At once: a metastore takes milliseconds for each call.
      return CollectionConverters.asJava(
              catalog().getTablesByName(CollectionConverters.asScala(names).toSeq()))
          .stream()
          .map(Entry::new)
          .toList();
    } catch (Exception error) { // checked for Java, as above
      throw rethrown(error);
    }
  }

  /** Whether Spark would create a table of this name here. */
  boolean isDefaultPlace(Identifier table, Path location) {
    return samePlace(new Path(catalog().defaultTablePath(identifier(table))), location);
  }

  /** Add the entry of a table. */
  void add(Identifier table, Path location, String tableId, boolean managed) {
    CatalogStorageFormat empty = CatalogStorageFormat.empty();
    CatalogStorageFormat storage =
        new CatalogStorageFormat(
            Option.apply(location.toUri()),
            empty.inputFormat(),
            empty.outputFormat(),
            empty.serde(),
            empty.compressed(),
            empty.properties(),
            Option.empty());
    CatalogTable entry =
        with(
            plainTable(identifier(table), storage),
            Map.of(
                "tableType", managed ? CatalogTableType.MANAGED() : CatalogTableType.EXTERNAL(),
                "provider", Option.apply("delta"),
                "properties", scalaMap(Map.of(TABLE_ID, tableId))));
    // Another thread may have been faster, with the same entry.
    catalog().createTable(entry, true, false);
  }

  /** Write the id of its table into an entry. */
  void mark(Entry entry, String tableId) {
    Map<String, String> properties =
        new HashMap<>(CollectionConverters.asJava(entry.table().properties()));
    properties.put(TABLE_ID, tableId);
    catalog().alterTable(with(entry.table(), Map.of("properties", scalaMap(properties))));
  }

  /** Make an entry that of a table which the lake does not have; its files are not managed. */
  void unmark(Entry entry) {
    Map<String, String> properties =
        new HashMap<>(CollectionConverters.asJava(entry.table().properties()));
    properties.remove(TABLE_ID);
    catalog()
        .alterTable(
            with(
                entry.table(),
                Map.of(
                    "properties", scalaMap(properties),
                    "tableType", CatalogTableType.EXTERNAL())));
  }

  /** Take an entry out. The files of its table stay. */
  void forget(Identifier table) {
    Optional<Entry> entry = find(table);
    if (entry.isEmpty()) {
      return;
    }
    if (entry.get().isManaged()) {
      catalog()
          .alterTable(with(entry.get().table(), Map.of("tableType", CatalogTableType.EXTERNAL())));
      if (find(table).map(Entry::isManaged).orElse(false)) {
        throw new IllegalStateException(
            "deltalakedb: the catalog of this session does not let the table " + table
                + " become external, and Spark would delete its files. Nothing was changed.");
      }
    }
    catalog().invalidateCachedTable(identifier(table));
    catalog().dropTable(identifier(table), true, false);
  }

  // --- databases ----------------------------------------------------------------------------

  List<String> databases() {
    return CollectionConverters.asJava(catalog().listDatabases());
  }

  boolean databaseExists(String database) {
    return catalog().databaseExists(database);
  }

  /** Create a database at a location, or where Spark would; it may exist. */
  void createDatabase(String database, Optional<Path> location) {
    URI place = location.map(Path::toUri).orElseGet(() -> catalog().getDefaultDBPath(database));
    catalog().createDatabase(new CatalogDatabase(database, "", place, scalaMap(Map.of())), true);
  }

  Path databaseLocation(String database) {
    return new Path(catalog().getDatabaseMetadata(database).locationUri());
  }

  /** A location with the scheme of its file system. */
  Path qualified(Path location) throws IOException {
    return location.getFileSystem(spark.sessionState().newHadoopConf()).makeQualified(location);
  }

  static boolean samePlace(Path one, Path other) {
    return spelled(one).equals(spelled(other));
  }

  /** Whether a location lies in a folder. */
  static boolean isBelow(Path location, Path folder) {
    return spelled(location).startsWith(spelled(folder) + "/");
  }

  private static String spelled(Path path) {
    URI uri = path.toUri();
    String scheme = uri.getScheme() == null ? "file" : uri.getScheme();
    String authority = uri.getAuthority() == null ? "" : uri.getAuthority();
    return scheme + "://" + authority + uri.getPath().replaceAll("/+$", "");
  }

  // --- classes of Scala ---------------------------------------------------------------------
  // The fields of CatalogTable differ between versions of Spark: those that are not ours keep
  // their value, or their default.

  private static CatalogTable plainTable(TableIdentifier name, CatalogStorageFormat storage) {
    Method apply = widest("apply");
    Object[] values = new Object[apply.getParameterCount()];
    values[0] = name;
    values[1] = CatalogTableType.EXTERNAL();
    values[2] = storage;
    values[3] = new StructType();
    for (int i = 4; i < values.length; i++) {
      values[i] = called("apply$default$" + (i + 1));
    }
    return invoked(apply, null, values);
  }

  private static CatalogTable with(CatalogTable table, Map<String, Object> fields) {
    Method copy = widest("copy");
    Object[] values = new Object[copy.getParameterCount()];
    int replaced = 0;
    for (int i = 0; i < values.length; i++) {
      String name = table.productElementName(i);
      values[i] = fields.getOrDefault(name, table.productElement(i));
      replaced += fields.containsKey(name) ? 1 : 0;
    }
    if (replaced != fields.size()) {
      throw new IllegalStateException(
          "deltalakedb: this version of Spark has other fields of a table than "
              + String.join(", ", fields.keySet()));
    }
    return invoked(copy, table, values);
  }

  private static Method widest(String name) {
    return Arrays.stream(CatalogTable.class.getMethods())
        .filter(method -> method.getName().equals(name))
        .filter(method -> method.getReturnType() == CatalogTable.class)
        .max((one, other) -> Integer.compare(one.getParameterCount(), other.getParameterCount()))
        .orElseThrow();
  }

  private static Object called(String name) {
    try {
      Method method = CatalogTable.class.getMethod(name);
      assert Modifier.isStatic(method.getModifiers());
      return method.invoke(null);
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException("deltalakedb: this Spark has no default " + name, error);
    }
  }

  private static CatalogTable invoked(Method method, Object target, Object[] values) {
    try {
      return (CatalogTable) method.invoke(target, values);
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException("deltalakedb: this Spark has no " + method, error);
    }
  }

  private static scala.collection.immutable.Map<String, String> scalaMap(Map<String, String> map) {
    return scala.collection.immutable.Map.from(CollectionConverters.asScala(map));
  }

  /** An error as it was thrown: exceptions of Spark are checked ones for Java. */
  @SuppressWarnings("unchecked")
  static <E extends Throwable> RuntimeException rethrown(Throwable error) throws E {
    throw (E) error;
  }
}
