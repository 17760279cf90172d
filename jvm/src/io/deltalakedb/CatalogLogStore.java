package io.deltalakedb;

import io.delta.storage.AzureLogStore;
import io.delta.storage.CloseableIterator;
import io.delta.storage.GCSLogStore;
import io.delta.storage.HDFSLogStore;
import io.delta.storage.LogStore;
import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A log store of Delta that lets a catalog decide which commit becomes a version.
 *
 * <ul>
 *   <li>The catalog decides about its own tables only. For the others, and for files that are no
 *       commits, this is Delta's own store of the scheme.
 *   <li>No commit file is written because the service does not answer.
 *   <li>A conflict is reported only if the file of the other commit is there. Delta looks for it,
 *       and would try the same version again without end.
 * </ul>
 */
public final class CatalogLogStore extends LogStore {
  private static final Pattern COMMIT = Pattern.compile("([0-9]{20})\\.json");
  private static final String LOG = "_delta_log";
  private static final String STAGED = "_staged_commits";

  private final Map<String, LogStore> stores = new ConcurrentHashMap<>();

  public CatalogLogStore(Configuration settings) {
    super(settings);
  }

  @Override
  public CloseableIterator<String> read(Path path, Configuration settings) throws IOException {
    return store(path, settings).read(path, settings);
  }

  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration settings)
      throws IOException {
    LogStore store = store(path, settings);
    Matcher commit = COMMIT.matcher(path.getName());
    Optional<CatalogClient> client =
        overwrite || !isInLog(path) || !commit.matches()
            ? Optional.empty()
            : CatalogClient.of(settings::get);
    if (client.isEmpty()) {
      store.write(path, actions, overwrite, settings);
      return;
    }
    List<String> lines = new ArrayList<>();
    actions.forEachRemaining(lines::add);
    long version = Long.parseLong(commit.group(1));
    boolean decides;
    try {
      decides = isCommitted(client.get(), path, version, content(lines), settings);
    } catch (IOException error) {
      if (version == 0) {
        Path log = path.getParent();
        removeEmpty(List.of(new Path(log, STAGED), log, table(path)), settings);
      }
      throw error;
    }
    if (!decides) {
      store.write(path, lines.iterator(), overwrite, settings);
    }
  }

  /** Commit by the catalog; false if it does not have the table. */
  private static boolean isCommitted(
      CatalogClient client, Path path, long version, byte[] content, Configuration settings)
      throws IOException {
    return switch (client.commit(table(path), version, content)) {
      case COMMITTED -> true;
      case UNKNOWN_TABLE -> false;
      case CONFLICT -> {
        if (path.getFileSystem(settings).exists(path)) {
          throw new FileAlreadyExistsException(path.toString());
        }
        throw new IOException(
            "deltalakedb: the catalog has another commit as version " + version + " of "
                + table(path) + ", and " + path + " is not there. Check that Spark and the service"
                + " see the same store, and verify the table: lake.verify()");
      }
    };
  }

  /**
   * Remove the folders that Delta has made for a first commit, where nothing is in them: CREATE
   * TABLE could not be repeated, since Delta refuses a place that is not empty.
   */
  private static void removeEmpty(List<Path> folders, Configuration settings) {
    try {
      for (Path folder : folders) {
        FileSystem files = folder.getFileSystem(settings);
        if ("file".equals(files.getUri().getScheme())) {
          // Hadoop's own would also delete what has just been written there.
          Files.deleteIfExists(java.nio.file.Path.of(folder.toUri().getPath()));
        } else {
          files.delete(folder, false);
        }
      }
    } catch (IOException error) {
      // They are not empty, or stay, as after a crash: the error of the commit is what matters.
    }
  }

  /** The lines as Delta's own stores write them. */
  private static byte[] content(List<String> lines) {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    for (String line : lines) {
      bytes.writeBytes(line.getBytes(StandardCharsets.UTF_8));
      bytes.write('\n');
    }
    return bytes.toByteArray();
  }

  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration settings) throws IOException {
    if (isInLog(path)) {
      Optional<CatalogClient> client = CatalogClient.of(settings::get);
      if (client.isPresent()) {
        client.get().published(table(path));
      }
    }
    return store(path, settings).listFrom(path, settings);
  }

  @Override
  public Path resolvePathOnPhysicalStorage(Path path, Configuration settings) throws IOException {
    return store(path, settings).resolvePathOnPhysicalStorage(path, settings);
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration settings) throws IOException {
    return store(path, settings).isPartialWriteVisible(path, settings);
  }

  private static boolean isInLog(Path path) {
    Path folder = path.getParent();
    return folder != null && folder.getName().equals(LOG) && folder.getParent() != null;
  }

  private static Path table(Path file) {
    return file.getParent().getParent();
  }

  private LogStore store(Path path, Configuration settings) throws IOException {
    String scheme = path.toUri().getScheme();
    if (scheme == null) {
      scheme = path.getFileSystem(settings).getScheme();
    }
    return stores.computeIfAbsent(scheme.toLowerCase(Locale.ROOT), this::newStore);
  }

  /** The store that Delta itself has for a scheme. */
  LogStore newStore(String scheme) {
    return switch (scheme) {
      case "s3", "s3a", "s3n" -> new S3SingleDriverLogStore(initHadoopConf());
      case "gs" -> new GCSLogStore(initHadoopConf());
      case "abfs", "abfss", "adl", "wasb", "wasbs" -> new AzureLogStore(initHadoopConf());
      default -> new HDFSLogStore(initHadoopConf());
    };
  }
}
