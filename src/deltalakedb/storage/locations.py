"""Locations: one spelling for each place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from deltalakedb.actions.file_paths import SAME_STORE
from deltalakedb.arguments import require_names
from deltalakedb.errors import ConfigurationError, InvalidArgumentError

SCHEMES: Final = frozenset({"file", "s3", "gs", "az", "abfs", "abfss", *SAME_STORE})
"""The stores that files can be read from."""


def normalise_location(location: object) -> str:
    """One spelling for a table's location: an absolute URI without a slash at its end."""
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
    """The location of a table that is to be taken into the catalog, in one spelling."""
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
    """Locations below which files of a table may lie, each in one spelling, each once."""
    return tuple(dict.fromkeys(map(table_location, require_names("roots", roots))))


def _file_uri(path: str) -> str:
    # abspath takes out '.', '..' and doubled slashes, but keeps two at the beginning.
    # Path.resolve would follow links, and the table would move with them.
    return "file://" + quote("/" + os.path.abspath(path).lstrip("/"))  # noqa: PTH100


def local_path(location: str) -> Path | None:
    """The folder of a normalised location on this machine; None for an object store."""
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
