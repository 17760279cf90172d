package io.deltalakedb;

import io.deltalakedb.CatalogClient.LakeTable;
import io.deltalakedb.SessionTables.Entry;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.delta.catalog.DeltaCatalog;

/**
 * Delta's catalog of a session, with the tables of a lake under their names.
 *
 * <ul>
 *   <li>Each lookup asks the lake: what was created, renamed or dropped there is seen at once. The
 *       session catalog has an entry for each table that was looked up or listed.
 *   <li>DROP and RENAME are done in the lake first, and refused if it refuses.
 *   <li>A table that is not of the lake behaves as with Delta's own catalog, and so do all of them
 *       if the session names no service.
 *   <li>A name that the session and the lake have for different tables is refused.
 * </ul>
 */
public class LakeCatalog extends DeltaCatalog {
  /** An operation of Delta's catalog, with its exceptions: Java knows them as checked ones. */
  private interface Work<T> {
    T run() throws Exception;
  }

  private SessionTables session() {
    return new SessionTables(SparkSession.active());
  }

  private static <T> T run(Work<T> work) {
    try {
      return work.run();
    } catch (IOException error) {
      throw new UncheckedIOException(error.getMessage(), error);
    } catch (Exception error) {
      throw SessionTables.<RuntimeException>rethrown(error);
    }
  }

  private static Optional<CatalogClient> client(SessionTables session) {
    return run(() -> CatalogClient.of(session::setting));
  }

  // --- names and places ---------------------------------------------------------------------

  /** Whether a name can be one of the lake: `schema.table`, and not a path. */
  private boolean isLakeName(Identifier table) {
    return table.namespace().length == 1 && !isPathIdentifier(table);
  }

  private static String nameOf(SessionTables session, Identifier table) {
    String database = session.spelled(table.namespace()[0]);
    String name = session.spelled(table.name());
    return database.equals(SessionTables.DEFAULT_DATABASE) ? name : database + "." + name;
  }

  /** The name that is looked up: with its database, so that `default` is no part of a name. */
  private static String qualified(Identifier table) {
    return table.namespace()[0] + "." + table.name();
  }

  /** The database and name of Spark for a name of the lake; none for names with more dots. */
  private static Optional<Identifier> identifierOf(SessionTables session, String name) {
    String[] parts = name.split("\\.", -1);
    if (parts.length > 2 || Arrays.stream(parts).anyMatch(String::isEmpty)) {
      return Optional.empty();
    }
    String database = parts.length == 1 ? SessionTables.DEFAULT_DATABASE : parts[0];
    return Optional.of(
        Identifier.of(
            new String[] {session.spelled(database)}, session.spelled(parts[parts.length - 1])));
  }

  // --- entries ------------------------------------------------------------------------------

  /** Whether this thread is changing the location of a table: its lookups refresh nothing. */
  private final ThreadLocal<Boolean> isMoving = ThreadLocal.withInitial(() -> false);

  /** Make the entry of a name in the session catalog that of the lake's table, if it has one. */
  private void refresh(Identifier table) {
    if (isMoving.get()) {
      return;
    }
    SessionTables session = session();
    Optional<CatalogClient> client = isLakeName(table) ? client(session) : Optional.empty();
    if (client.isPresent()) {
      Optional<LakeTable> known = run(() -> client.get().table(qualified(table)));
      refresh(session, client.get(), table, known, true);
    }
  }

  private static void refresh(
      SessionTables session,
      CatalogClient client,
      Identifier table,
      Optional<LakeTable> known,
      boolean refuses) {
    Optional<Entry> entry = session.find(table);
    Optional<String> id = entry.flatMap(Entry::tableId);
    if (known.isEmpty()) {
      if (id.isPresent()) {
        session.forget(table);
      }
      return;
    }
    Path location = known.get().location();
    if (refuses) {
      requireLogStore(session, table, location);
    }
    boolean samePlace =
        entry.flatMap(Entry::location).map(p -> SessionTables.samePlace(p, location)).orElse(false);
    if (entry.isPresent() && samePlace) {
      if (!id.equals(Optional.of(known.get().id()))) {
        session.mark(entry.get(), known.get().id());
      }
      return;
    }
    if (entry.isPresent() && id.isEmpty()) {
      if (refuses) {
        throw new IllegalStateException(
            "deltalakedb: the name " + qualified(table) + " has two meanings: a table of the lake"
                + " at " + location + ", and another one in the catalog of this session. Rename"
                + " one of them: lake.table(...).rename(...), or ALTER TABLE ... RENAME in a"
                + " session without the lake.");
      }
      return;
    }
    session.forget(table);
    ensureDatabase(session, client, session.spelled(table.namespace()[0]));
    session.add(table, location, known.get().id(), isOwnPlace(session, client, table, location));
  }

  private static void requireLogStore(SessionTables session, Identifier table, Path location) {
    if (!session.hasLogStore(location)) {
      throw new IllegalStateException(
          "deltalakedb: the table " + qualified(table) + " cannot be used: this session would"
              + " commit to it without asking the lake. Start Spark with "
              + SessionTables.logStoreSetting(location) + "=" + CatalogLogStore.class.getName());
    }
  }

  /** Whether a new table of this name would lie here: dropping it in Spark deletes its files. */
  private static boolean isOwnPlace(
      SessionTables session, CatalogClient client, Identifier table, Path location) {
    return session.isDefaultPlace(table, location)
        || placeOf(session, client, table)
            .map(place -> SessionTables.samePlace(place, location))
            .orElse(false);
  }

  /** The place of a name in the warehouse of the lake; none without a warehouse. */
  private static Optional<Path> placeOf(
      SessionTables session, CatalogClient client, Identifier table) {
    String[] parts = nameOf(session, table).split("\\.", 2);
    String below = parts.length == 1 ? parts[0] : parts[0] + ".db/" + parts[1];
    return run(client::warehouse).map(root -> new Path(root, below));
  }

  /**
   * Make the entries of all databases those of the lake.
   *
   * <p>SHOW TABLE EXTENDED and the metadata of JDBC read them without asking this class.
   */
  private void refreshAll() {
    SessionTables session = session();
    Optional<CatalogClient> client = client(session);
    if (client.isEmpty()) {
      return;
    }
    Map<Identifier, LakeTable> missing = new LinkedHashMap<>();
    for (LakeTable table : run(client.get()::tables)) {
      // The lake may have names that are the same for Spark: a lookup reports them.
      identifierOf(session, table.name()).ifPresent(one -> missing.putIfAbsent(one, table));
    }
    for (String database : session.databases()) {
      for (Entry entry : session.entries(database)) {
        Identifier one =
            Identifier.of(new String[] {database}, entry.table().identifier().table());
        LakeTable table = missing.get(one);
        if (table == null) {
          entry.tableId().ifPresent(id -> session.forget(one));
        } else if (isEntryOf(entry, table)) {
          missing.remove(one);
        }
      }
    }
    missing.forEach((one, table) -> refresh(session, client.get(), one, Optional.of(table), false));
  }

  private static boolean isEntryOf(Entry entry, LakeTable table) {
    Path location = table.location();
    return entry.tableId().equals(Optional.of(table.id()))
        && entry.location().map(one -> SessionTables.samePlace(one, location)).orElse(false);
  }

  private static void ensureDatabase(
      SessionTables session, CatalogClient client, String database) {
    if (!session.databaseExists(database)) {
      session.createDatabase(database, databasePlace(client, database));
    }
  }

  /** The folder in the warehouse that tables of a database lie in; none without a warehouse. */
  private static Optional<Path> databasePlace(CatalogClient client, String database) {
    return run(client::warehouse).map(root -> new Path(root, database + ".db"));
  }

  // --- lookups ------------------------------------------------------------------------------

  @Override
  public Table loadTable(Identifier table) {
    refresh(table);
    return super.loadTable(table);
  }

  @Override
  public boolean tableExists(Identifier table) {
    refresh(table);
    return super.tableExists(table);
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    refreshAll();
    return super.listTables(namespace);
  }

  @Override
  public String[][] listNamespaces() throws NoSuchNamespaceException {
    refreshAll();
    return super.listNamespaces();
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    refreshAll();
    return super.listNamespaces(namespace);
  }

  @Override
  public boolean namespaceExists(String[] namespace) {
    refreshAll();
    return super.namespaceExists(namespace);
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace)
      throws NoSuchNamespaceException {
    refreshAll();
    return super.loadNamespaceMetadata(namespace);
  }

  // --- new tables ---------------------------------------------------------------------------

  /** A table that is about to be created or replaced. */
  private final class Creation {
    private final Identifier table;
    private final SessionTables session = session();
    private final Optional<CatalogClient> client;
    private final Map<String, String> properties;
    private final boolean isNew;

    Creation(Identifier table, Map<String, String> properties) {
      this.table = table;
      this.properties = new HashMap<>(properties);
      boolean delta = "delta".equalsIgnoreCase(
          properties.getOrDefault(TableCatalog.PROP_PROVIDER, session.defaultFormat()));
      client = delta && isLakeName(table) ? client(session) : Optional.empty();
      client.ifPresent(one -> refresh(table));
      client.ifPresent(this::choosePlace);
      isNew = client.isPresent() && session.find(table).isEmpty() && !isKnown();
    }

    /** The properties, with a place in the warehouse if the statement names none. */
    private void choosePlace(CatalogClient client) {
      if (properties.containsKey(TableCatalog.PROP_LOCATION)
          || !session.databaseExists(table.namespace()[0])
          || session.find(table).isPresent()) {
        return;
      }
      Optional<Path> place = placeOf(session, client, table);
      place.ifPresent(path -> requireLogStore(session, table, path));
      if (place.isPresent() && !session.isDefaultPlace(table, place.get())) {
        properties.put(TableCatalog.PROP_LOCATION, place.get().toUri().toString());
        properties.put(TableCatalog.PROP_IS_MANAGED_LOCATION, "true");
      }
    }

    /** Whether the lake has a table at the place already: it keeps its name. */
    private boolean isKnown() {
      String location = properties.get(TableCatalog.PROP_LOCATION);
      return location != null
          && run(() -> client.get().published(session.qualified(new Path(location)))).isPresent();
    }

    /** Give the table, if it is one of the lake now, the name that it has in Spark. */
    void finish() {
      Optional<Path> location = session.find(table).flatMap(Entry::location);
      if (client.isEmpty() || location.isEmpty()) {
        return;
      }
      String name = nameOf(session, table);
      Optional<String> known = run(() -> client.get().published(location.get()));
      if (isNew && known.isPresent() && !known.get().equals(name)) {
        run(
            () -> {
              client.get().setName(location.get(), name);
              return null;
            });
      }
      refresh(table);
    }

    /** The staged table; its commit names it. */
    StagedTable named(StagedTable staged) {
      return client.isEmpty() ? staged : new StagedLakeTable(staged, this::finish);
    }
  }

  @Override
  public Table createTable(
      Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    Creation creation = new Creation(table, properties);
    Table created = super.createTable(table, columns, partitions, creation.properties);
    creation.finish();
    return created;
  }

  @Override
  public StagedTable stageCreate(
      Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    Creation creation = new Creation(table, properties);
    return creation.named(super.stageCreate(table, columns, partitions, creation.properties));
  }

  @Override
  public StagedTable stageReplace(
      Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    Creation creation = new Creation(table, properties);
    return creation.named(super.stageReplace(table, columns, partitions, creation.properties));
  }

  @Override
  public StagedTable stageCreateOrReplace(
      Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    Creation creation = new Creation(table, properties);
    return creation.named(
        super.stageCreateOrReplace(table, columns, partitions, creation.properties));
  }

  // --- changes ------------------------------------------------------------------------------

  /** The entry of a table of the lake; none for tables of other origins. */
  private Optional<Entry> lakeEntry(SessionTables session, Identifier table) {
    refresh(table);
    return isLakeName(table)
        ? session.find(table).filter(entry -> entry.tableId().isPresent())
        : Optional.empty();
  }

  @Override
  public Table alterTable(Identifier table, TableChange[] changes) {
    boolean moves =
        Arrays.stream(changes)
            .filter(TableChange.SetProperty.class::isInstance)
            .map(change -> ((TableChange.SetProperty) change).property())
            .anyMatch(property -> property.toLowerCase(Locale.ROOT).equals("location"));
    SessionTables session = session();
    if (!moves || lakeEntry(session, table).isEmpty()) {
      return super.alterTable(table, changes);
    }
    // Delta compares the columns of the two tables, and changes the entry. Then it looks the table
    // up, by which the entry would become that of the lake's location again.
    isMoving.set(true);
    try {
      super.alterTable(table, changes);
    } finally {
      isMoving.remove();
    }
    moveName(session, table);
    return run(() -> loadTable(table));
  }

  /** Give the name of a table to the one at the location of its entry; the old one is dropped. */
  private void moveName(SessionTables session, Identifier table) {
    CatalogClient client = client(session).orElseThrow();
    Entry entry = session.find(table).orElseThrow();
    Path location = entry.location().orElseThrow();
    run(() -> client.drop(qualified(table)));
    if (run(() -> client.published(location)).isEmpty()) {
      session.unmark(entry); // a table that the lake does not have
      return;
    }
    run(
        () -> {
          client.setName(location, nameOf(session, table));
          return null;
        });
    refresh(table);
  }

  @Override
  public boolean dropTable(Identifier table) {
    return dropInLake(table) && super.dropTable(table);
  }

  @Override
  public boolean purgeTable(Identifier table) {
    return dropInLake(table) && super.purgeTable(table);
  }

  /** Drop the table in the lake, if it is one of it; false if it has been dropped there. */
  private boolean dropInLake(Identifier table) {
    SessionTables session = session();
    if (lakeEntry(session, table).isEmpty()) {
      return true;
    }
    CatalogClient client = client(session).orElseThrow();
    if (run(() -> client.drop(qualified(table)))) {
      return true;
    }
    session.forget(table);
    return false;
  }

  @Override
  public void renameTable(Identifier table, Identifier to)
      throws NoSuchTableException, TableAlreadyExistsException {
    SessionTables session = session();
    if (lakeEntry(session, table).isEmpty()) {
      super.renameTable(table, to);
      return;
    }
    if (!isLakeName(to) || !namespaceExists(to.namespace())) {
      throw new IllegalArgumentException(
          "deltalakedb: " + to + " is no name for a table: its database does not exist");
    }
    if (tableExists(to)) {
      throw new TableAlreadyExistsException(to);
    }
    CatalogClient client = client(session).orElseThrow();
    run(
        () -> {
          client.rename(qualified(table), nameOf(session, to));
          return null;
        });
    // Spark would move the files; they stay where the lake has them.
    session.forget(table);
    refresh(to);
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata)
      throws NamespaceAlreadyExistsException {
    refreshAll(); // it exists if tables of the lake are in it
    Map<String, String> all = new HashMap<>(metadata);
    Optional<CatalogClient> client = client(session());
    if (client.isPresent() && namespace.length == 1 && !all.containsKey(SupportsNamespaces.PROP_LOCATION)) {
      String database = session().spelled(namespace[0]);
      databasePlace(client.get(), database)
          .ifPresent(place -> all.put(SupportsNamespaces.PROP_LOCATION, place.toUri().toString()));
    }
    super.createNamespace(namespace, all);
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade)
      throws NoSuchNamespaceException, NonEmptyNamespaceException {
    SessionTables session = session();
    Optional<CatalogClient> client = client(session);
    if (client.isEmpty() || namespace.length != 1 || !namespaceExists(namespace)) {
      return super.dropNamespace(namespace, cascade);
    }
    refuseOthersBelow(session, client.get(), namespace[0]);
    if (cascade) {
      for (Entry entry : session.entries(namespace[0])) {
        if (entry.tableId().isPresent()) {
          dropTable(Identifier.of(namespace, entry.table().identifier().table()));
        }
      }
    }
    return super.dropNamespace(namespace, cascade);
  }

  /** Refuse to drop a database whose folder, which Spark deletes, holds tables of other names. */
  private static void refuseOthersBelow(
      SessionTables session, CatalogClient client, String database) {
    Path folder = session.databaseLocation(database);
    for (LakeTable table : run(client::tables)) {
      boolean own =
          identifierOf(session, table.name())
              .filter(one -> one.namespace()[0].equals(session.spelled(database)))
              .isPresent();
      if (!own && SessionTables.isBelow(table.location(), folder)) {
        throw new IllegalStateException(
            "deltalakedb: the database " + database + " cannot be dropped: its folder " + folder
                + " holds the files of the table " + table.name() + ", and Spark would delete"
                + " them. Nothing was changed.");
      }
    }
  }
}
