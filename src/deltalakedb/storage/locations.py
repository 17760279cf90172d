"""Locations of tables and files.

Guarantees:

- Each location has one spelling.
- Files lie below the location of their table or below a root that is allowed for that table. Other
  folders, buckets, hosts and schemes are refused before a file is opened.
- On a disk links are resolved: a path through a symbolic link is below a root if its target is. A
  relative path lies below the table, whatever links are there.
- In an object store keys are compared as they are: `a//b` is not `a/b`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from deltalakedb.actions.file_paths import (
    ODD_PATH,
    SAME_STORE,
    check_segments,
    split_uri,
    vector_path,
)
from deltalakedb.actions.partition import decode_path
from deltalakedb.actions.values import DeletionVectorDescriptor
from deltalakedb.arguments import require_names
from deltalakedb.errors import ConfigurationError, InvalidArgumentError, PathNotAllowedError

SCHEMES: Final = frozenset({"file", "s3", "gs", "az", "abfs", "abfss", *SAME_STORE})
"""The stores that files can be read from."""


def normalise_location(location: object) -> str:
    """Return a location as an absolute URI without a slash at its end."""
    text = location.strip() if isinstance(location, str) else ""
    if not text:
        raise InvalidArgumentError(
            f"The location of the table is {'empty' if location == '' else repr(location)}",
            fix="Give a folder or an object store prefix, e.g. file:///data/orders or s3://b/orders",
        )
    parts = urlsplit(text)
    if "://" not in text and not text.startswith("file:"):
        return _file_uri(str(Path(text).expanduser()))
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"The location {text[:200]!r} has the scheme {scheme!r}, which is not supported",
            fix=f"Use one of {', '.join(sorted(SCHEMES))}, or a plain path",
        )
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"The location {text[:200]!r} names the host {parts.netloc!r}",
                fix="Write file:/// with three slashes before an absolute path",
            )
        return _file_uri("/" + unquote(parts.path))
    if not parts.netloc:
        raise ConfigurationError(
            f"The location {text[:200]!r} names no bucket", fix=f"Write {scheme}://bucket/prefix"
        )
    return f"{SAME_STORE.get(scheme, scheme)}://{parts.netloc}{parts.path.rstrip('/')}"


def table_location(location: object) -> str:
    """Check and normalise the location of a table that is added to the catalog."""
    place = normalise_location(location)
    odd = next((char for char in "%#?" if char in str(location)), None)
    if odd is not None and not place.startswith("file:"):
        raise ConfigurationError(
            f"The location {str(location)[:200]!r} has a {odd!r} in it",
            why="Engines do not agree on which keys of an object store that means",
            fix="Write keys as they are, not percent-encoded, and put the table under a prefix "
            "without %, # and ?",
        )
    return place


def root_locations(roots: Iterable[str]) -> tuple[str, ...]:
    """Normalise the allowed roots of a table; each is listed once."""
    return tuple(dict.fromkeys(map(table_location, require_names("roots", roots))))


def _file_uri(path: str) -> str:
    # abspath takes out '.', '..' and doubled slashes, but keeps two at the beginning.
    # Path.resolve would follow links, and the table would move with them.
    return "file://" + quote("/" + os.path.abspath(path).lstrip("/"))  # noqa: PTH100


def local_path(location: str) -> Path | None:
    """Return the local folder of a normalised location; None for an object store."""
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


# --- files of a table -----------------------------------------------------------------

_is_odd: Final = re.compile(ODD_PATH).search
_AZURE: Final = frozenset({"az", "abfs", "abfss"})


class Place(NamedTuple):
    """A file: its path is decoded, and begins with a slash."""

    scheme: str
    authority: str
    path: str

    @property
    def store(self) -> str:
        """The URL of the store that it lies in."""
        return f"{self.scheme}://{self.authority}"


class FilePlaces:
    """The places of the files of the table at `location`, a URI or a local path."""

    def __init__(self, location: str, allowed_roots: Sequence[str] = ()) -> None:
        self.location = location.rstrip("/") or "/"
        self.allowed_roots = tuple(allowed_roots)
        self._own = _place_of_root(self.location)
        self._allowed = [_place_of_root(root) for root in self.allowed_roots]
        self._real: dict[str, str] = {}

    @property
    def is_local(self) -> bool:
        """Whether the table lies on a disk, and not in an object store."""
        return self._own.scheme == "file"

    def resolve(self, path: str) -> Place:
        """Return the file of a log path; raises PathNotAllowedError outside the allowed roots."""
        if _is_odd(path) is None:
            return self.place(path)
        check_segments(path, strictly=False)
        place = self.place(path)
        if split_uri(path) is None and not path.startswith("/"):
            return place
        if self.is_own(place) or any(self._lies_in(place, root) for root in self._allowed):
            return place
        raise PathNotAllowedError(
            f"The file {path[:200]!r} does not lie in the table at {self.location}",
            why="A log could name any file of this machine and of its network otherwise"
            + (
                f"; allowed beside the table: {', '.join(self.allowed_roots)}"
                if self._allowed
                else ""
            ),
            fix="If its files belong to the table, as those of a shallow clone do, allow the "
            "folder that they lie in: table.allow_roots([…]), or allowed_roots=[…] when the "
            "table is imported",
        )

    def is_own(self, place: Place) -> bool:
        """Whether a file lies below the table itself."""
        return self._lies_in(place, self._own)

    def check_new(self, path: str) -> None:
        """Check a path that is written to the log: it must have its one valid spelling."""
        check_segments(path, strictly=True)
        place = self.resolve(path)
        if split_uri(path) is None and not path.startswith("/"):
            return
        own = self.is_own(place) and not any(self._lies_in(place, root) for root in self._allowed)
        if own or path.startswith("/"):
            raise PathNotAllowedError(
                f"The path {path[:200]!r} cannot be added",
                why="engines disagree on what a leading slash is relative to"
                if path.startswith("/")
                else f"the file lies in the table at {self.location}, and would have two names",
                fix="Write the path relative to the table",
            )

    def check_vector(self, vector: DeletionVectorDescriptor) -> None:
        """Check the location of the file of a deletion vector."""
        path = vector_path(vector)
        if path is not None:
            self.resolve(path)

    # --- identity -------------------------------------------------------------------------

    def identities(self, path: str, *, of: FilePlaces | None = None) -> Iterator[str]:
        """What the file of a path is known by, among `identity_of_key` of the table's objects.

        The path is one of this table's log, or `of` another's. A link to a file has two identities:
        its own, and that of its target. Nothing is refused here.
        """
        try:
            place = (of or self).place(path)
        except PathNotAllowedError:
            # No supported store.
            return
        if place.scheme != "file":
            yield self._below(place)
            return
        folder, _, name = place.path.rpartition("/")
        own = f"{self._real_folder(folder)}/{name}"
        yield self._below(Place("file", "", own))
        if os.path.islink(own):  # noqa: PTH114 - called for every file
            yield self._below(Place("file", "", os.path.realpath(own)))

    def identity_of_key(self, key: str) -> str:
        """What the object of a key below the table is known by."""
        if not self.is_local:
            return key
        folder, _, name = f"{self._own.path}/{key}".rpartition("/")
        return self._below(Place("file", "", f"{self._real_folder(folder)}/{name}"))

    def overlaps(self, location: str) -> bool:
        """Whether files below another location may be files below this one."""
        other = _place_of_root(location)
        return self._lies_in(other, self._own) or self._lies_in(self._own, other)

    def key_of_location(self, location: str) -> str | None:
        """Another location below this one as the beginning of `identity_of_key`; None elsewhere."""
        other = _place_of_root(location)
        if not self._lies_in(other, self._own):
            return None
        if other.scheme == "file":
            other = Place("file", "", self._real_folder(other.path))
        return self._below(other)

    def _below(self, place: Place) -> str:
        """A place as a key of the table, or all of it where it is elsewhere."""
        root = self._own.path
        if place.scheme == "file" and self.is_local:
            root = self._real_folder(root)
        if _same_store(place, self._own) and (f"{place.path}/").startswith(f"{root.rstrip('/')}/"):
            return place.path[len(root.rstrip("/")) + 1 :]
        return f"{place.store}{place.path}"

    # --- places ---------------------------------------------------------------------------

    def place(self, path: str) -> Place:
        """Return the file of a log path, without checking the roots."""
        parts = split_uri(path)
        if parts is None:
            decoded = decode_path(path)
            own = self._own
            whole = decoded if path.startswith("/") else f"{own.path.rstrip('/')}/{decoded}"
            return Place(own.scheme, own.authority, whole)
        scheme, authority, rest = parts
        scheme = SAME_STORE.get(scheme, scheme)
        if scheme not in SCHEMES or (scheme == "file" and authority not in ("", "localhost")):
            named = f"the host {authority!r}" if scheme == "file" else f"the scheme {scheme!r}"
            raise PathNotAllowedError(
                f"The file {path[:200]!r} cannot be read",
                why=f"It is at {named}",
                fix=f"Files lie on a disk or in an object store: {', '.join(sorted(SCHEMES))}",
            )
        return Place(scheme, "" if scheme == "file" else authority, decode_path(rest))

    def _lies_in(self, place: Place, root: Place) -> bool:
        if place.scheme != root.scheme or place.authority.lower() != root.authority.lower():
            return False
        if _is_below(place.path, root.path):
            return True
        if place.scheme != "file":
            return False
        folder, _, name = place.path.rstrip("/").rpartition("/")
        real = f"{self._real_folder(folder)}/{name}"
        return _is_below(real, self._real_folder(root.path)) or _is_below(
            self._real_folder(real), self._real_folder(root.path)
        )

    def _real_folder(self, folder: str) -> str:
        """The folder behind any links; folders are few, and files many."""
        real = self._real.get(folder)
        if real is None:
            real = self._real[folder] = os.path.realpath(folder or "/")
            if real == "/":
                real = self._real[folder] = ""
        return real


def _place_of_root(location: str) -> Place:
    if location.startswith("memory:"):
        return Place("memory", "", location.removeprefix("memory:").removeprefix("//"))
    parts = split_uri(normalise_location(location))
    assert parts is not None  # noqa: S101 - a normalised location is a URI
    scheme, authority, path = parts
    return Place(scheme, authority, unquote(path) if scheme == "file" else path)


def _is_below(path: str, root: str) -> bool:
    return f"{path}/".startswith(f"{root.rstrip('/')}/")


def _same_store(a: Place, b: Place) -> bool:
    """Whether two places can be in one store; a URI may not name the account of its container."""
    if a.scheme in _AZURE and b.scheme in _AZURE:
        return a.authority.partition("@")[0].lower() == b.authority.partition("@")[0].lower()
    return a.scheme == b.scheme and a.authority.lower() == b.authority.lower()
