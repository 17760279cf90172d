"""The path of a file as the log, Spark and Hadoop write it."""

from __future__ import annotations

import unicodedata
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.actions.file_paths import ODD_PATH, split_uri
from deltalakedb.storage.locations import FilePlaces

# Names of the same store: Hadoop's connector for S3 answers to s3a only.
_HADOOP: Final = {"s3": "s3a", "s3n": "s3a", "gcs": "gs", "az": "abfss", "azure": "abfss"}
# ASCII that Java does not escape in the path of a URI; beyond ASCII, all but spaces and controls.
_LEGAL: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-!.~'()*:@&=+$,;/"
)
_NOT_LEGAL: Final = frozenset({"Cc", "Zs", "Zl", "Zp"})


def hadoop_uri(location: str, log_path: str) -> str:
    """The percent-encoded URI of a file of a table, for a file list."""
    if split_uri(log_path) is not None:
        scheme, _, rest = log_path.partition(":")
        return f"{_HADOOP.get(scheme.lower(), scheme)}:{rest}"
    scheme, _, rest = location.partition(":")
    if log_path.startswith("/"):
        # In the store that the table lies in.
        store = rest[: rest.find("/", 2)] if scheme != "file" else "//"
        return f"{_HADOOP.get(scheme, scheme)}:{store}{log_path}"
    if scheme != "file":
        # Locations of object stores are written by users, encoded or not.
        rest = quote(unquote(rest), safe="/:@!$&'()*+,;=~")
    return f"{_HADOOP.get(scheme, scheme)}:{rest}/{log_path}"


def hadoop_uris(places: FilePlaces, paths: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The URIs of many files, by Arrow's functions; PathNotAllowedError outside allowed roots."""
    texts = paths.cast(pa.string())
    if pc.any(pc.match_substring_regex(texts, ODD_PATH)).as_py():
        known = texts.to_pylist()
        for path in known:
            places.resolve(path)
        return pa.array((hadoop_uri(places.location, path) for path in known), pa.string())
    return pc.binary_join_element_wise(hadoop_uri(places.location, ""), texts, "")


def metadata_path(uri: str) -> str:
    """The `_metadata.file_path` of the file at a percent-encoded URI."""
    parts = urlsplit(uri)
    # Hadoop's paths have no double slashes and no dots.
    segments = [part for part in unquote(parts.path).split("/") if part not in ("", ".")]
    path = java_encoded("/" + "/".join(segments))
    return f"{parts.scheme}://{parts.netloc}{path}" if parts.netloc else f"{parts.scheme}:{path}"


def java_encoded(path: str) -> str:
    """A path as Java writes it in a URI: characters beyond ASCII stay as they are."""
    return "".join(
        char
        if char in _LEGAL or (char > "\x7f" and unicodedata.category(char) not in _NOT_LEGAL)
        else _escaped(char)
        for char in path
    )


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8"))
