"""Paths of files as a log writes them.

Guarantees:

- Pure: no I/O. A path is percent-encoded once, and is decoded once.
- A path is absolute only by what the log writes: a scheme, or a slash at its beginning.
- `file_key` is the same for all spellings that Delta's readers take for one file: percent-encoded
  more or less, with doubled slashes, with segments `.`, with another name of the same scheme.
- A segment `..` is never resolved: `check_segments` refuses it, encoded or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from deltalakedb.actions.partition import decode_path, encode_path
from deltalakedb.actions.values import DeletionVectorDescriptor
from deltalakedb.errors import PathNotAllowedError

SAME_STORE: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az"}
"""Schemes that name the same store as another one."""
_URI: Final = re.compile(
    r"(file:(?=/)|[A-Za-z][A-Za-z0-9+.-]*:(?=//))(?://([^/]*))?(.*)", re.DOTALL
)
# A scheme with one slash: a URI for one engine, a folder with a colon for another.
_HALF_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_DOTS: Final = frozenset({".", ".."})
# What a path has to have in it for another spelling of it, or for a place elsewhere.
ODD_PATH: Final = r"^[./]|//|/\.|:/|%2[EeFf]|%00|/$|^$"
"""A path that this does not match lies below its table, and has no `.`, `..` or empty segment."""


def split_uri(path: str) -> tuple[str, str, str] | None:
    """Scheme, authority and encoded path of an absolute URI; None for any other path."""
    match = _URI.fullmatch(path)
    return None if match is None else (match[1].rstrip(":").lower(), match[2] or "", match[3])


def is_absolute(path: str) -> bool:
    """Whether a path of a log names a file wherever the table lies."""
    return path.startswith("/") or _URI.match(path) is not None


def absolute_path(location: str, path: str) -> str:
    """A path of the log of the table at `location`, as any other log can name it."""
    if split_uri(path) is not None:
        return path
    parts = urlsplit(location)
    root = f"{parts.scheme}://{parts.netloc}"
    if path.startswith("/"):
        return f"{root}{path}"
    # Locations on a disk are encoded already, keys of object stores are as they are.
    folder = parts.path if parts.scheme == "file" else encode_path(parts.path)
    return f"{root}{folder}/{path}"


def plain_uri(uri: str) -> str:
    """An absolute URI on a disk without doubled slashes and segments `.`; others as they are."""
    parts = split_uri(uri)
    if parts is None or parts[0] != "file":
        return uri
    segments = [part for part in parts[2].split("/") if unquote(part) not in ("", ".")]
    return f"file:///{'/'.join(segments)}"


def file_key(path: str) -> str:
    """The file that a path of a log names, in one spelling."""
    decoded = unquote(path) if "%" in path else path
    if "/." not in decoded and "//" not in decoded and ":/" not in decoded and decoded[:1] != ".":
        return decoded
    parts = split_uri(path)
    if parts is None:
        root, rest = "", decoded
    else:
        scheme, authority, encoded = parts
        root, rest = f"{SAME_STORE.get(scheme, scheme)}://{authority.lower()}", unquote(encoded)
    segments = "/".join(part for part in rest.split("/") if part not in ("", "."))
    return f"{root}/{segments}" if rest.startswith("/") else segments


def vector_path(vector: DeletionVectorDescriptor) -> str | None:
    """The file of a deletion vector as a path of the log; None where the vector is inline."""
    file = vector.file_path()
    # Type p is a URI, as paths are; type u is the key itself.
    return encode_path(file) if file is not None and vector.storage_type == "u" else file


def spellings(path: str, location: str | None = None) -> Iterator[str]:
    """Ways to write one path: as it is, and percent-encoded as different writers do.

    With `location` also those that are absolute, of a path below the table there, and the other
    way round.
    """
    yield path
    if location is not None:
        yield from _other_form(path, location)
    parts = split_uri(path)
    before = path[: len(path) - len(parts[2])] if parts else ""
    decoded = unquote(path.removeprefix(before))
    for spelled in (decoded, quote(decoded, safe="/="), encode_path(decoded)):
        yield before + spelled


def _other_form(path: str, location: str) -> Iterator[str]:
    full = absolute_path(location, path)
    parts = split_uri(full)
    if parts is None:
        return
    scheme, authority, rest = parts
    if scheme == "file":
        yield from (f"file://{rest}", f"file:{rest}", rest)
    elif scheme in ("s3", "s3a"):
        yield from (f"s3://{authority}{rest}", f"s3a://{authority}{rest}")
    for root in (location, absolute_path(location, "").rstrip("/")):
        if full.startswith(f"{root}/"):
            yield full.removeprefix(f"{root}/")


def check_segments(path: str, *, strictly: bool) -> None:
    """Refuse a path that leads out of where it begins, or that engines read differently.

    `strictly`, also refuse `.` and empty segments: they name one file in two ways.
    """
    parts = split_uri(path)
    decoded = decode_path(path if parts is None else parts[2])
    segments = decoded.split("/")
    if not path:
        why = "it is empty"
    elif "\0" in decoded:
        why = "it has a character NUL in it"
    elif ".." in segments:
        why = "its segment '..' leads out of the folder it begins in"
    elif parts is None and _HALF_URI.match(path):
        why = "engines disagree: it is a URI, or a folder below the table"
    elif parts is None and decoded.startswith("/") and not path.startswith("/"):
        why = "decoded, it begins with a slash, so that engines disagree on where it begins"
    elif strictly and not _DOTS.isdisjoint(segments):
        why = "its segment '.' names one file in two ways"
    elif strictly and "" in segments[1 if is_absolute(path) else 0 :]:
        why = "its empty segment names one file in two ways, or another key of an object store"
    else:
        return
    raise PathNotAllowedError(
        f"The path {path[:200]!r} cannot be used",
        why=why,
        fix="Write it relative to the table, without '.', '..' and empty segments, or as an "
        "absolute URI with its scheme",
    )
