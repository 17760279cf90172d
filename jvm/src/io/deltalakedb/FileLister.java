package io.deltalakedb;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;

/**
 * Asks the process of the driver for the files of a scan, over loopback.
 *
 * <p>The answer is a stream of Arrow. The token is in no error, and in no text of this class.
 */
final class FileLister {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final HttpClient HTTP =
      HttpClient.newBuilder()
          .version(HttpClient.Version.HTTP_1_1)
          .followRedirects(HttpClient.Redirect.NEVER)
          .build();

  private final URI address;
  private final String token;

  FileLister(String address, String token) {
    this.address = URI.create(address);
    this.token = token;
  }

  /** The files of a scan that can hold rows for all of the filters, which are in SQL. */
  InputStream list(String scan, List<String> filters) throws IOException {
    byte[] body = JSON.writeValueAsBytes(Map.of("scan", scan, "filters", filters));
    HttpRequest request =
        HttpRequest.newBuilder(address)
            .header("Authorization", "Bearer " + token)
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofByteArray(body))
            .build();
    HttpResponse<InputStream> response;
    try {
      response = HTTP.send(request, HttpResponse.BodyHandlers.ofInputStream());
    } catch (InterruptedException error) {
      throw new InterruptedIOException("the thread was interrupted");
    } catch (IOException error) {
      String why = error.getMessage() == null ? error.getClass().getSimpleName() : error.getMessage();
      throw new IOException("the process that opened the table does not answer: " + why, error);
    }
    if (response.statusCode() != 200) {
      try (InputStream text = response.body()) {
        throw new IOException(new String(text.readAllBytes(), StandardCharsets.UTF_8));
      }
    }
    return response.body();
  }
}
