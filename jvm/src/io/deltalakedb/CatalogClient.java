package io.deltalakedb;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Flow;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.UnaryOperator;
import org.apache.hadoop.fs.Path;

/**
 * Calls the service of a catalog.
 *
 * <ul>
 *   <li>A call ends within its timeout. Until then it is repeated if the service cannot be reached,
 *       or answers that it is unavailable; the service takes repeated requests as one.
 *   <li>An answer that is not one of its route is an error, and no decision.
 *   <li>The token is in no error, and in no text of this class.
 * </ul>
 */
final class CatalogClient {
  /** The settings of Hadoop that name the service. */
  static final String URI_SETTING = "deltalakedb.uri";

  static final String TOKEN_SETTING = "deltalakedb.token";
  static final String TIMEOUT_SETTING = "deltalakedb.timeout";

  private static final String PREFIX = "/api/v1/delta/";
  private static final int LARGEST_ANSWER = 64 * 1024 * 1024;
  private static final double DEFAULT_SECONDS = 60;
  private static final double MOST_SECONDS = 24 * 60 * 60;
  private static final long FIRST_PAUSE = 50;
  private static final long LONGEST_PAUSE = 2_000;
  private static final ObjectMapper JSON =
      new ObjectMapper()
          .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
          .enable(DeserializationFeature.FAIL_ON_READING_DUP_TREE_KEY);
  // The status that each code of an error comes with.
  private static final Map<String, Integer> STATUSES =
      Map.of("conflict", 409, "unknown-table", 404, "unavailable", 503);

  // One for all sessions: its connections are used again. It follows no redirect.
  private static final HttpClient HTTP =
      HttpClient.newBuilder()
          .version(HttpClient.Version.HTTP_1_1)
          .followRedirects(HttpClient.Redirect.NEVER)
          .connectTimeout(Duration.ofSeconds(10))
          .build();

  // What each file of a token has had last.
  private static final Map<String, String> TOKENS = new ConcurrentHashMap<>();

  private final String uri;
  private final String token;
  private final Duration timeout;

  private CatalogClient(String uri, String token, Duration timeout) {
    this.uri = uri;
    this.token = token;
    this.timeout = timeout;
  }

  /** The client that settings describe; none if they name no service. */
  static Optional<CatalogClient> of(UnaryOperator<String> settings) throws IOException {
    String uri = settings.apply(URI_SETTING);
    if (uri == null || uri.isBlank()) {
      return Optional.empty();
    }
    String token = token(settings.apply(TOKEN_SETTING));
    if (token == null || token.isEmpty() || !token.chars().allMatch(c -> c > ' ' && c < 127)) {
      throw new IOException(
          "deltalakedb: the setting "
              + TOKEN_SETTING
              + " has no token. Set it to the one that the service was started with.");
    }
    return Optional.of(
        new CatalogClient(checkedUri(uri.strip()), token, seconds(settings.apply(TIMEOUT_SETTING))));
  }

  /** The token of a setting: itself, or `@` and the file that has it. */
  private static String token(String setting) throws IOException {
    if (setting == null || !setting.startsWith("@")) {
      return setting;
    }
    String file = setting.substring(1);
    try {
      String token = Files.readString(java.nio.file.Path.of(file)).strip();
      TOKENS.put(file, token);
      return token;
    } catch (IOException | InvalidPathException error) {
      if (TOKENS.containsKey(file)) { // what cleans the folder of temporary files ends no session
        return TOKENS.get(file);
      }
      throw new IOException(
          "deltalakedb: the file of the token, " + file + ", cannot be read ("
              + error.getClass().getSimpleName() + "). The setting " + TOKEN_SETTING
              + " names it after an @.");
    }
  }

  private static String checkedUri(String text) throws IOException {
    try {
      URI uri = new URI(text);
      boolean http = "http".equals(uri.getScheme()) || "https".equals(uri.getScheme());
      boolean plain =
          uri.getRawUserInfo() == null && uri.getRawQuery() == null && uri.getRawFragment() == null;
      if (http && plain && uri.getHost() != null) {
        return text.replaceAll("/+$", "");
      }
    } catch (URISyntaxException error) {
      // Its text would repeat the setting, which may hold a password.
    }
    throw new IOException(
        "deltalakedb: the setting "
            + URI_SETTING
            + " is not the address of a service. Set it to https://host:port, and the token to "
            + TOKEN_SETTING
            + ".");
  }

  private static Duration seconds(String text) throws IOException {
    if (text == null || text.isBlank()) {
      return Duration.ofMillis((long) (DEFAULT_SECONDS * 1000));
    }
    try {
      double seconds = Double.parseDouble(text);
      if (seconds > 0 && seconds <= MOST_SECONDS) {
        return Duration.ofMillis(Math.max(1, (long) (seconds * 1000)));
      }
    } catch (NumberFormatException error) {
      // Refused below.
    }
    throw new IOException(
        "deltalakedb: the setting " + TIMEOUT_SETTING + " is no number of seconds above 0");
  }

  @Override
  public String toString() {
    return "CatalogClient(" + uri + ")";
  }

  // --- routes -------------------------------------------------------------------------------

  /** What became of a proposed commit. */
  enum Outcome {
    /** It is the version that was proposed, and its file is in the log. */
    COMMITTED,
    /** Another commit is that version. */
    CONFLICT,
    /** The catalog does not have the table. */
    UNKNOWN_TABLE
  }

  /** A table of the lake, and where it lies as Spark reads it. */
  record LakeTable(String name, Path location, String id) {}

  /** Propose the content of a commit file as a version of the table at a location. */
  Outcome commit(Path table, long version, byte[] content) throws IOException {
    Request request =
        new Request("POST", "commits", content, "commit version " + version + " of " + table)
            .with("location", location(table))
            .with("version", Long.toString(version));
    Answer answer = call(request, Set.of("conflict", "unknown-table"));
    if (answer.code().equals("conflict")) {
      return Outcome.CONFLICT;
    }
    if (answer.code().equals("unknown-table")) {
      return Outcome.UNKNOWN_TABLE;
    }
    String outcome = answer.text("outcome");
    boolean known = outcome.equals("committed") || outcome.equals("repeated");
    if (!known || answer.number("version") != version) {
      throw request.nonsense("its answer is for another request: " + answer.excerpt());
    }
    return Outcome.COMMITTED;
  }

  /** Have everything that is committed to the table at a location in its log; its name. */
  Optional<String> published(Path table) throws IOException {
    Request request =
        new Request("POST", "published", null, "list the log of " + table)
            .with("location", location(table));
    Answer answer = call(request, Set.of("unknown-table"));
    if (!answer.isOk()) {
      return Optional.empty();
    }
    answer.number("version");
    return Optional.of(answer.text("table"));
  }

  /** The location below which new tables lie, if the lake has one. */
  Optional<Path> warehouse() throws IOException {
    Answer answer =
        call(new Request("GET", "config", null, "read the settings of the lake"), Set.of());
    JsonNode warehouse = answer.body().get("warehouse");
    boolean none = warehouse != null && warehouse.isNull();
    return none ? Optional.empty() : Optional.of(answer.path("warehouse"));
  }

  /** Every table of the lake. */
  List<LakeTable> tables() throws IOException {
    Answer answer =
        call(new Request("GET", "tables", null, "list the tables of the lake"), Set.of());
    JsonNode tables = answer.body().get("tables");
    if (tables == null || !tables.isArray()) {
      throw answer.request().nonsense("its answer has no list of tables");
    }
    List<LakeTable> result = new ArrayList<>();
    for (JsonNode table : tables) {
      result.add(new Answer(answer.request(), 200, table).table());
    }
    return result;
  }

  /** The table that Spark calls by a name. */
  Optional<LakeTable> table(String name) throws IOException {
    Request request = new Request("GET", "table", null, "look up the table " + name);
    Answer answer = call(request.with("name", name), Set.of("unknown-table"));
    return answer.isOk() ? Optional.of(answer.table(name)) : Optional.empty();
  }

  /** Name the table at a location. */
  void setName(Path table, String name) throws IOException {
    Request request =
        new Request("POST", "names", null, "name the table at " + table + " " + name)
            .with("location", location(table))
            .with("name", name);
    call(request, Set.of()).table(name);
  }

  /** Rename a table. */
  void rename(String name, String to) throws IOException {
    Request request = new Request("POST", "rename", null, "rename the table " + name + " to " + to);
    call(request.with("name", name).with("to", to), Set.of()).table(to);
  }

  /** Drop a table from the catalog; whether it was there. Its files stay. */
  boolean drop(String name) throws IOException {
    Request request = new Request("POST", "drop", null, "drop the table " + name);
    Answer answer = call(request.with("name", name), Set.of("unknown-table"));
    if (answer.isOk()) {
      answer.requireName("table", name);
    }
    return answer.isOk();
  }

  /** A name as Spark compares it: without case, and without its default database. */
  private static String spelled(String name) {
    return name.toLowerCase(Locale.ROOT).replaceFirst("^default\\.", "");
  }

  /** A location as the service reads it: encoded on a disk, and keys of object stores as they are. */
  private static String location(Path table) {
    URI uri = table.toUri();
    return "file".equals(uri.getScheme()) ? uri.toString() : table.toString();
  }

  // --- requests and answers -----------------------------------------------------------------

  /** A request, and the words for what it does. */
  private final class Request {
    private final String method;
    private final StringBuilder target;
    private final byte[] content;
    private final String purpose;

    Request(String method, String route, byte[] content, String purpose) {
      this.method = method;
      this.target = new StringBuilder(uri).append(PREFIX).append(route);
      this.content = content;
      this.purpose = purpose;
    }

    Request with(String name, String value) {
      target.append(target.indexOf("?") < 0 ? '?' : '&').append(name).append('=');
      // Form encoding, but for the space: %20 means one everywhere.
      target.append(URLEncoder.encode(value, StandardCharsets.UTF_8).replace("+", "%20"));
      return this;
    }

    HttpRequest toHttp(Duration limit) {
      var body =
          content == null
              ? HttpRequest.BodyPublishers.noBody()
              : HttpRequest.BodyPublishers.ofByteArray(content);
      return HttpRequest.newBuilder(URI.create(target.toString()))
          .method(method, body)
          .timeout(limit)
          .header("Authorization", "Bearer " + token)
          .header("Content-Type", "application/octet-stream")
          .build();
    }

    String cannot() {
      return "deltalakedb: cannot " + purpose;
    }

    IOException nonsense(String why) {
      return new IOException(
          cannot() + ": what answers at " + uri + " is not the service of a catalog, or not this"
              + " release of it: " + why + "." + advice());
    }

    String advice() {
      boolean decides = content != null;
      return decides
          ? " It may have been committed nevertheless: look at DESCRIBE HISTORY before you repeat"
              + " the statement."
          : "";
    }
  }

  /** A JSON answer. */
  private record Answer(Request request, int status, JsonNode body) {
    boolean isOk() {
      return status == 200;
    }

    /** The code of an error; empty if it has another status than that of the code. */
    String code() {
      String code = isOk() ? "" : body.path("code").asText("");
      return STATUSES.getOrDefault(code, status) == status ? code : "";
    }

    String text(String field) throws IOException {
      JsonNode value = body.get(field);
      if (value == null || !value.isTextual()) {
        throw request.nonsense("its answer has no " + field);
      }
      return value.textValue();
    }

    long number(String field) throws IOException {
      JsonNode value = body.get(field);
      if (value == null || !value.isIntegralNumber() || !value.canConvertToLong()) {
        throw request.nonsense("its answer has no " + field);
      }
      return value.longValue();
    }

    LakeTable table() throws IOException {
      return new LakeTable(text("name"), path("location"), text("table_id"));
    }

    /** The table, which has to be the one that Spark calls by a name. */
    LakeTable table(String name) throws IOException {
      requireName("name", name);
      return table();
    }

    void requireName(String field, String name) throws IOException {
      if (!spelled(text(field)).equals(spelled(name))) {
        throw request.nonsense("its answer is for another table: " + excerpt());
      }
    }

    /** A location of the lake as Spark reads it. */
    Path path(String field) throws IOException {
      String location = text(field);
      try {
        // Keys of object stores are not encoded.
        boolean onDisk = location.startsWith("file:");
        Path path =
            onDisk
                ? new Path(URI.create(location))
                : new Path(location.replaceFirst("^s3://", "s3a://"));
        URI uri = path.toUri();
        if (onDisk ? path.isAbsolute() : uri.getScheme() != null && uri.getAuthority() != null) {
          return path;
        }
      } catch (IllegalArgumentException error) {
        // Refused below.
      }
      throw request.nonsense("its answer has a " + field + " that is none: " + excerpt());
    }

    String excerpt() {
      return CatalogClient.excerpt(body.toString());
    }
  }

  /** The answer to a request: success, or an error with one of the codes. */
  private Answer call(Request request, Set<String> codes) throws IOException {
    long deadline = System.nanoTime() + timeout.toNanos();
    long pause = FIRST_PAUSE;
    while (true) {
      String problem;
      try {
        Answer answer = attempt(request, deadline - System.nanoTime());
        if (answer.isOk() || codes.contains(answer.code())) {
          return answer;
        }
        problem = answer.body().path("error").asText("");
        if (!answer.code().equals("unavailable")) {
          throw refusal(answer, problem);
        }
      } catch (UnreachableException error) {
        problem = error.getMessage();
      }
      long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
      if (left <= pause) { // too little for another answer
        throw new IOException(
            request.cannot() + ": the service at " + uri + " did not do it within "
                + timeout.toMillis() / 1000.0 + " seconds: " + problem
                + " Look at its log, and at the setting " + TIMEOUT_SETTING + "."
                + request.advice());
      }
      sleep(request, ThreadLocalRandom.current().nextLong(pause / 2, pause + 1));
      pause = Math.min(2 * pause, LONGEST_PAUSE);
    }
  }

  private IOException refusal(Answer answer, String error) {
    if (error.isEmpty()) {
      return answer.request().nonsense("status " + answer.status() + ", " + answer.excerpt());
    }
    String rule = answer.body().path("rule").asText("");
    return new IOException(
        answer.request().cannot()
            + ": "
            + error
            + (rule.isEmpty() ? "" : " [rule " + rule + "]")
            + " (status " + answer.status() + " from " + uri + ")");
  }

  private Answer attempt(Request request, long nanos)
      throws IOException, UnreachableException {
    Duration limit = Duration.ofNanos(Math.max(nanos, 1_000_000));
    // Its own timeout ends with the first byte of the answer; that of get() with the last.
    CompletableFuture<HttpResponse<byte[]>> future =
        HTTP.sendAsync(request.toHttp(limit), head -> new Content());
    HttpResponse<byte[]> response;
    try {
      response = future.get(limit.toMillis() + 1, TimeUnit.MILLISECONDS);
    } catch (InterruptedException error) {
      future.cancel(true);
      throw interrupted(request);
    } catch (TimeoutException error) {
      future.cancel(true);
      throw new UnreachableException("there is no answer.");
    } catch (ExecutionException error) {
      if (error.getCause() instanceof TooLargeException) {
        throw request.nonsense("its answer is larger than " + LARGEST_ANSWER + " bytes");
      }
      if (error.getCause() instanceof IOException) {
        throw new UnreachableException(described(error.getCause()) + ".");
      }
      throw new IOException(request.cannot() + ": " + error.getCause(), error.getCause());
    }
    return parsed(request, response);
  }

  private static String described(Throwable error) {
    String text = error.getMessage();
    return error.getClass().getSimpleName() + (text == null ? "" : ", " + excerpt(text));
  }

  private static Answer parsed(Request request, HttpResponse<byte[]> response) throws IOException {
    try {
      JsonNode body = JSON.readTree(response.body());
      if (body != null && body.isObject()) {
        return new Answer(request, response.statusCode(), body);
      }
    } catch (JsonProcessingException error) {
      // Described below, without the position in a text that is not JSON.
    }
    String text = new String(response.body(), StandardCharsets.UTF_8);
    throw request.nonsense("status " + response.statusCode() + ", no JSON: " + excerpt(text));
  }

  private static String excerpt(String text) {
    String line = text.replaceAll("[\\s\\p{Cntrl}]+", " ").strip();
    return line.length() <= 200 ? line : line.substring(0, 200) + "…";
  }

  private static void sleep(Request request, long millis) throws IOException {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException error) {
      throw interrupted(request);
    }
  }

  private static IOException interrupted(Request request) {
    return new InterruptedIOException(
        request.cannot() + ": the thread was interrupted." + request.advice());
  }

  /** The service cannot be reached, or breaks the connection. */
  private static final class UnreachableException extends Exception {
    private static final long serialVersionUID = 1;

    UnreachableException(String message) {
      super(message);
    }
  }

  private static final class TooLargeException extends IOException {
    private static final long serialVersionUID = 1;
  }

  /** The bytes of an answer, up to a limit. */
  private static final class Content implements HttpResponse.BodySubscriber<byte[]> {
    private final CompletableFuture<byte[]> result = new CompletableFuture<>();
    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private Flow.Subscription subscription;

    @Override
    public CompletionStage<byte[]> getBody() {
      return result;
    }

    @Override
    public void onSubscribe(Flow.Subscription subscription) {
      this.subscription = subscription;
      subscription.request(Long.MAX_VALUE);
    }

    @Override
    public void onNext(List<ByteBuffer> buffers) {
      for (ByteBuffer buffer : buffers) {
        byte[] part = new byte[buffer.remaining()];
        buffer.get(part);
        bytes.writeBytes(part);
      }
      if (bytes.size() > LARGEST_ANSWER) {
        subscription.cancel();
        result.completeExceptionally(new TooLargeException());
      }
    }

    @Override
    public void onError(Throwable error) {
      result.completeExceptionally(error);
    }

    @Override
    public void onComplete() {
      result.complete(bytes.toByteArray());
    }
  }
}
