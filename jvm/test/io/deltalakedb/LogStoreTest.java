package io.deltalakedb;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.delta.storage.DelegatingLogStore;

/** What the log store does with every answer of a service, also with nonsense. */
public final class LogStoreTest {
  private static final String TOKEN = "a-secret-that-no-error-has";
  private static final String LINE = "{\"commitInfo\":{\"txnId\":\"é\"}}";
  private static final String CONFLICT = "{\"error\":\"It is taken.\",\"code\":\"conflict\"}";
  private static final String UNKNOWN = "{\"error\":\"No.\",\"code\":\"unknown-table\"}";
  private static final String DOWN = "{\"error\":\"Later.\",\"code\":\"unavailable\"}";
  private static final String DONE =
      "{\"table\":\"t\",\"version\":0,\"outcome\":\"committed\"}";

  /** A test; it gets a table of its own, and a server. */
  private interface Test {
    void run(Fixture fixture) throws Exception;
  }

  private interface Handler {
    void handle(HttpExchange exchange) throws IOException;
  }

  private static final class Fixture {
    final List<String> requests = new ArrayList<>();
    final AtomicReference<String> body = new AtomicReference<>();
    final AtomicReference<String> sent = new AtomicReference<>();
    final Configuration settings = new Configuration();
    final java.nio.file.Path folder;
    final HttpServer server;
    volatile Handler handler = exchange -> answer(exchange, 200, DONE);

    Fixture() throws IOException {
      folder = Files.createTempDirectory("a table");
      Files.createDirectory(folder.resolve("_delta_log"));
      server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
      server.setExecutor(Executors.newCachedThreadPool(Fixture::daemon));
      server.createContext("/", this::handle);
      server.start();
      settings.set("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem");
      settings.set("deltalakedb.uri", "http://127.0.0.1:" + server.getAddress().getPort());
      settings.set("deltalakedb.token", TOKEN);
      settings.set("deltalakedb.timeout", "60");
    }

    private static Thread daemon(Runnable work) {
      Thread thread = new Thread(work);
      thread.setDaemon(true);
      return thread;
    }

    private void handle(HttpExchange exchange) throws IOException {
      synchronized (requests) {
        requests.add(exchange.getRequestMethod() + " " + exchange.getRequestURI());
      }
      body.set(new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8));
      sent.set(exchange.getRequestHeaders().getFirst("Authorization"));
      handler.handle(exchange);
      exchange.close();
    }

    Path commit(int version) {
      return new Path(
          new Path(folder.toUri()), String.format("_delta_log/%020d.json", version));
    }

    boolean exists(int version) {
      return Files.exists(folder.resolve(String.format("_delta_log/%020d.json", version)));
    }

    void write(int version) throws IOException {
      new CatalogLogStore(settings).write(commit(version), lines(), false, settings);
    }

    /** The error of a write, which wrote nothing and has no secret in it. */
    String refused(int version) {
      try {
        write(version);
      } catch (FileAlreadyExistsException error) {
        throw new AssertionError("a conflict is reported", error);
      } catch (IOException error) {
        for (Throwable one = error; one != null; one = one.getCause()) {
          expect(!String.valueOf(one.getMessage()).contains(TOKEN), "a secret in " + one);
        }
        expect(!exists(version), "nothing is written");
        return error.getMessage();
      }
      throw new AssertionError("the write was not refused");
    }
  }

  private static Iterator<String> lines() {
    return List.of(LINE, "{\"protocol\":{}}").iterator();
  }

  private static void answer(HttpExchange exchange, int status, String text) throws IOException {
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    exchange.sendResponseHeaders(status, bytes.length == 0 ? -1 : bytes.length);
    exchange.getResponseBody().write(bytes);
  }

  private static void expect(boolean right, String what) {
    if (!right) {
      throw new AssertionError(what);
    }
  }

  private static void has(String text, String... parts) {
    for (String part : parts) {
      expect(text.contains(part), "no '" + part + "' in: " + text);
    }
  }

  private static final Map<String, Test> TESTS =
      Map.ofEntries(
          Map.entry("the service gets the lines of a commit", LogStoreTest::sendsLines),
          Map.entry("without an address it is Delta's own store", LogStoreTest::withoutService),
          Map.entry("each scheme has the store that Delta has for it", LogStoreTest::schemes),
          Map.entry("a table of others is written as Delta does", LogStoreTest::unknownTable),
          Map.entry("other files are written as Delta does", LogStoreTest::otherFiles),
          Map.entry("a visible conflict is one", LogStoreTest::conflict),
          Map.entry("an invisible conflict is an error", LogStoreTest::invisibleConflict),
          Map.entry("an unavailable service is asked again", LogStoreTest::asksAgain),
          Map.entry("a broken connection is asked again", LogStoreTest::brokenConnection),
          Map.entry("an unavailable service ends in time", LogStoreTest::unavailable),
          Map.entry("a service that is not there ends in time", LogStoreTest::notThere),
          Map.entry("a slow service ends in time", LogStoreTest::slow),
          Map.entry("a slow answer ends in time", LogStoreTest::slowBody),
          Map.entry("nonsense is an error at once", LogStoreTest::nonsense),
          Map.entry("an interrupt ends it", LogStoreTest::interrupt),
          Map.entry("a listing asks first", LogStoreTest::listing),
          Map.entry("a listing needs the service", LogStoreTest::listingWithoutAnswer),
          Map.entry("no folders are left of a first commit", LogStoreTest::emptyFolders),
          Map.entry("an answer has a limit", LogStoreTest::largeBody),
          Map.entry("a token in a file", LogStoreTest::tokenFile),
          Map.entry("a staged table is Delta's", LogStoreTest::stagedTable),
          Map.entry("settings that are no settings", LogStoreTest::settings));

  /** Run every test; the exit code is the number of failures. */
  public static void main(String[] names) {
    int failures = 0;
    for (Map.Entry<String, Test> test : TESTS.entrySet()) {
      try {
        Fixture fixture = new Fixture();
        test.getValue().run(fixture);
        fixture.server.stop(0);
        System.out.println("passed: " + test.getKey());
      } catch (Exception | AssertionError error) {
        failures++;
        System.out.println("failed: " + test.getKey());
        error.printStackTrace(System.out);
      }
    }
    System.exit(failures);
  }

  private static void sendsLines(Fixture f) throws Exception {
    f.write(0);
    String request = f.requests.get(0);
    has(request, "POST /api/v1/delta/commits?location=file%3A%2F", "a%2520table", "&version=0");
    expect(f.body.get().equals(LINE + "\n{\"protocol\":{}}\n"), f.body.get());
    expect(f.sent.get().equals("Bearer " + TOKEN), "the token");
    expect(!f.exists(0), "the service writes the file");
  }

  private static void withoutService(Fixture f) throws Exception {
    f.settings.unset("deltalakedb.uri");
    f.write(0);
    expect(f.exists(0) && f.requests.isEmpty(), "it writes the file");
    try {
      f.write(0);
      throw new AssertionError("written twice");
    } catch (FileAlreadyExistsException error) {
      // As Delta's own.
    }
  }

  private static void schemes(Fixture f) {
    CatalogLogStore store = new CatalogLogStore(f.settings);
    for (String scheme : List.of("file", "hdfs", "s3", "s3a", "s3n", "gs", "abfs", "abfss")) {
      scala.Option<String> own = DelegatingLogStore.getDefaultLogStoreClassName(scheme);
      String expected =
          own.isDefined() ? own.get() : DelegatingLogStore.defaultHDFSLogStoreClassName();
      String found = store.newStore(scheme).getClass().getName();
      expect(found.equals(expected), scheme + ": " + found + ", and not " + expected);
    }
  }

  private static void unknownTable(Fixture f) throws Exception {
    f.handler = exchange -> answer(exchange, 404, UNKNOWN);
    f.write(0);
    String text = Files.readString(f.folder.resolve("_delta_log/00000000000000000000.json"));
    expect(text.equals(LINE + "\n{\"protocol\":{}}\n"), text);
  }

  private static void otherFiles(Fixture f) throws Exception {
    CatalogLogStore store = new CatalogLogStore(f.settings);
    Path log = new Path(new Path(f.folder.toUri()), "_delta_log");
    for (String name : List.of("_last_checkpoint", "00000000000000000000.crc", "1.json")) {
      store.write(new Path(log, name), lines(), true, f.settings);
      expect(Files.exists(f.folder.resolve("_delta_log/" + name)), name);
    }
    store.write(f.commit(7), lines(), true, f.settings);
    store.write(
        new Path(new Path(f.folder.toUri()), "00000000000000000000.json"),
        lines(), false, f.settings);
    expect(f.exists(7) && f.requests.isEmpty(), "the service is not asked");
  }

  private static void conflict(Fixture f) throws Exception {
    f.handler = exchange -> answer(exchange, 409, CONFLICT);
    Files.writeString(f.folder.resolve("_delta_log/00000000000000000000.json"), "other");
    try {
      f.write(0);
      throw new AssertionError("the write was not refused");
    } catch (FileAlreadyExistsException error) {
      expect(f.requests.size() == 1, "it is asked once");
    }
  }

  private static void invisibleConflict(Fixture f) {
    f.handler = exchange -> answer(exchange, 409, CONFLICT);
    has(f.refused(0), "has another commit as version 0", "is not there", "lake.verify()");
    expect(f.requests.size() == 1, "it is asked once");
  }

  private static void asksAgain(Fixture f) throws Exception {
    AtomicInteger count = new AtomicInteger();
    f.handler =
        exchange -> {
          boolean last = count.incrementAndGet() == 3;
          answer(exchange, last ? 200 : 503, last ? DONE.replace("committed", "repeated") : DOWN);
        };
    f.write(0);
    expect(count.get() == 3, "three requests");
    expect(f.requests.stream().distinct().count() == 1, "the same request");
  }

  private static void brokenConnection(Fixture f) throws Exception {
    AtomicInteger count = new AtomicInteger();
    f.handler =
        exchange -> {
          if (count.incrementAndGet() < 3) {
            exchange.close();
          } else {
            answer(exchange, 200, DONE);
          }
        };
    f.write(0);
    expect(count.get() >= 3, "it is asked again");
  }

  private static void unavailable(Fixture f) {
    f.settings.set("deltalakedb.timeout", "3");
    f.handler = exchange -> answer(exchange, 503, DOWN);
    String error = f.refused(3);
    has(error, "cannot commit version 3", "within 3.0 seconds", "Later.", "DESCRIBE HISTORY");
    expect(f.requests.size() > 1 && f.requests.size() < 30, "with pauses: " + f.requests.size());
  }

  private static void notThere(Fixture f) throws Exception {
    f.settings.set("deltalakedb.timeout", "3");
    try (ServerSocket free = new ServerSocket(0)) {
      f.settings.set("deltalakedb.uri", "http://127.0.0.1:" + free.getLocalPort());
    }
    has(f.refused(0), "within 3.0 seconds", "ConnectException", "DESCRIBE HISTORY");
  }

  private static void slow(Fixture f) {
    f.settings.set("deltalakedb.timeout", "0.5");
    f.handler = exchange -> pause(60_000);
    has(f.refused(0), "within 0.5 seconds", "deltalakedb.timeout");
  }

  private static void slowBody(Fixture f) {
    f.settings.set("deltalakedb.timeout", "0.5");
    f.handler =
        exchange -> {
          exchange.sendResponseHeaders(200, 100);
          exchange.getResponseBody().write("{".getBytes(StandardCharsets.UTF_8));
          exchange.getResponseBody().flush();
          pause(60_000);
        };
    has(f.refused(0), "within 0.5 seconds");
  }

  private static void pause(long millis) throws IOException {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException error) {
      throw new InterruptedIOException();
    }
  }

  private static void nonsense(Fixture f) {
    record Nonsense(int status, String text) {}
    List<Nonsense> all =
        List.of(
            new Nonsense(200, ""),
            new Nonsense(200, "<html>Welcome</html>"),
            new Nonsense(200, "[]"),
            new Nonsense(200, "{}"),
            new Nonsense(200, DONE.replace("0", "1")),
            new Nonsense(200, DONE.replace("0", "0.5")),
            new Nonsense(200, DONE.replace("0", "\"0\"")),
            new Nonsense(200, DONE.replace("committed", "considered")),
            new Nonsense(201, DONE),
            new Nonsense(302, DONE),
            new Nonsense(404, "<html>not here</html>"),
            new Nonsense(404, "{\"error\":\"There is no such page\"}"),
            new Nonsense(409, "conflict"),
            new Nonsense(409, "{\"error\":\"no code\"}"),
            new Nonsense(500, CONFLICT),
            new Nonsense(200, CONFLICT),
            new Nonsense(409, UNKNOWN),
            new Nonsense(403, UNKNOWN),
            new Nonsense(500, DOWN),
            new Nonsense(200, DONE + "</html>"),
            new Nonsense(200, DONE + DONE),
            new Nonsense(200, DONE.replace("{", "{\"version\":1,")),
            new Nonsense(422, "{\"error\":\"Refused.\",\"code\":\"rejected\",\"rule\":\"x-y\"}"),
            new Nonsense(401, "{\"error\":\"The token is wrong\"}"),
            new Nonsense(500, "{\"error\":\"Something went wrong here\"}"),
            new Nonsense(502, "<html>Bad gateway</html>"),
            new Nonsense(200, "x".repeat(100_000)));
    for (Nonsense one : all) {
      f.requests.clear();
      f.handler =
          exchange -> {
            exchange.getResponseHeaders().add("Location", "/elsewhere");
            answer(exchange, one.status(), one.text());
          };
      String error = f.refused(0);
      has(error, "deltalakedb: cannot commit version 0");
      expect(error.length() < 1_000, "its length");
      expect(f.requests.size() == 1, one + " is asked once, not " + f.requests.size());
      if (one.text().contains("rule")) {
        has(error, "Refused.", "[rule x-y]", "422");
      }
    }
  }

  private static void interrupt(Fixture f) throws Exception {
    f.handler = exchange -> pause(60_000);
    AtomicReference<Throwable> result = new AtomicReference<>();
    Thread writer =
        new Thread(
            () -> {
              try {
                f.write(0);
              } catch (Throwable error) {
                result.set(error);
              }
            });
    writer.start();
    while (f.requests.isEmpty()) {
      Thread.sleep(5);
    }
    writer.interrupt();
    writer.join(20_000);
    expect(result.get() instanceof InterruptedIOException, String.valueOf(result.get()));
    has(result.get().getMessage(), "interrupted", "DESCRIBE HISTORY");
  }

  private static void listing(Fixture f) throws Exception {
    CatalogLogStore store = new CatalogLogStore(f.settings);
    f.handler =
        exchange -> {
          Files.writeString(f.folder.resolve("_delta_log/00000000000000000000.json"), LINE);
          answer(exchange, 200, "{\"table\":\"t\",\"version\":0}");
        };
    Iterator<FileStatus> files = store.listFrom(f.commit(0), f.settings);
    expect(files.next().getPath().getName().equals("00000000000000000000.json"), "it is listed");
    expect(!files.hasNext(), "nothing else is listed");
    has(f.requests.get(0), "POST /api/v1/delta/published?location=file%3A%2F");
    f.handler = exchange -> answer(exchange, 404, UNKNOWN);
    expect(store.listFrom(f.commit(0), f.settings).hasNext(), "a table of others");
    int asked = f.requests.size();
    store.listFrom(new Path(new Path(f.folder.toUri()), "a"), f.settings);
    expect(f.requests.size() == asked, "only for logs");
  }

  private static void listingWithoutAnswer(Fixture f) {
    f.settings.set("deltalakedb.timeout", "3");
    f.handler = exchange -> answer(exchange, 503, DOWN);
    try {
      new CatalogLogStore(f.settings).listFrom(f.commit(0), f.settings);
      throw new AssertionError("listed without the service");
    } catch (IOException error) {
      has(error.getMessage(), "cannot list the log of", "Later.");
      expect(!error.getMessage().contains("DESCRIBE HISTORY"), "nothing was decided");
    }
  }

  private static void emptyFolders(Fixture f) throws Exception {
    f.handler = exchange -> answer(exchange, 500, "<html>");
    java.nio.file.Path log = f.folder.resolve("_delta_log");
    Files.createDirectory(log.resolve("_staged_commits"));
    f.refused(1);
    expect(Files.exists(log), "the log of a table that is there stays");
    java.nio.file.Path other = Files.createFile(log.resolve("other"));
    f.refused(0);
    expect(Files.exists(other), "files stay");
    Files.delete(other);
    java.nio.file.Path data = Files.createFile(f.folder.resolve("data"));
    f.refused(0);
    expect(!Files.exists(log) && Files.exists(data), "the empty log goes");
    Files.delete(data);
    Files.createDirectory(log);
    f.refused(0);
    expect(!Files.exists(f.folder), "an empty table goes");
  }

  private static void largeBody(Fixture f) throws Exception {
    f.handler =
        exchange -> {
          exchange.sendResponseHeaders(200, 0);
          byte[] spaces = " ".repeat(1024 * 1024).getBytes(StandardCharsets.UTF_8);
          while (true) {
            exchange.getResponseBody().write(spaces);
          }
        };
    has(f.refused(0), "larger than");
    expect(f.requests.size() == 1, "it is asked once");
  }

  private static void tokenFile(Fixture f) throws Exception {
    java.nio.file.Path file = Files.createTempFile("token", "");
    f.settings.set("deltalakedb.token", "@" + file);
    has(f.refused(0), "deltalakedb.token has no token");
    for (String token : List.of(TOKEN, "another-token-that-is-long")) {
      Files.writeString(file, token + "\n");
      f.write(0);
      expect(f.sent.get().equals("Bearer " + token), "the token of the file");
    }
    Files.delete(file);
    f.write(0);
    f.settings.set("deltalakedb.token", "@" + file + "2");
    has(f.refused(0), "the file of the token, " + file + "2, cannot be read", "deltalakedb.token");
  }

  private static void stagedTable(Fixture f) throws Exception {
    for (Class<?> type : List.of(StagedTable.class, SupportsWrite.class)) {
      for (Method method : type.getMethods()) {
        Method own = StagedLakeTable.class.getMethod(method.getName(), method.getParameterTypes());
        expect(own.getDeclaringClass() == StagedLakeTable.class, method + " is not passed on");
      }
    }
  }

  private static void settings(Fixture f) {
    String uri = f.settings.get("deltalakedb.uri");
    for (String bad :
        List.of("x", "ftp://a", "http://", "http://u:" + TOKEN + "@h", "http://a b", "http://a?q")) {
      f.settings.set("deltalakedb.uri", bad);
      has(f.refused(0), "deltalakedb.uri is not the address");
    }
    f.settings.set("deltalakedb.uri", uri);
    for (String bad : List.of("0", "-1", "x", "NaN", "1e99")) {
      f.settings.set("deltalakedb.timeout", bad);
      has(f.refused(0), "deltalakedb.timeout");
    }
    f.settings.set("deltalakedb.timeout", "1");
    f.settings.set("deltalakedb.token", TOKEN + "\r\nX: y");
    has(f.refused(0), "deltalakedb.token has no token");
    f.settings.unset("deltalakedb.token");
    has(f.refused(0), "deltalakedb.token has no token");
    expect(f.requests.isEmpty(), "the service is not asked");
  }
}
