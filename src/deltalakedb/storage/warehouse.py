"""The warehouse of a lake: the places of tables by their names, and the names by their places.

- `sales.orders` lies at `<warehouse>/sales.db/orders`, and `orders` at `<warehouse>/orders`: the
  layout of Spark's own warehouse. Dots after the first one belong to the last folder.
- `name_of` returns the name for every place that `place_of` returns. It also names the tables of
  other layouts: each folder below the warehouse is a part of the name.
- A name that is no folder for every disk, object store and engine has no place.
- Pure: nothing is read, and links are not followed.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote, urlsplit

from deltalakedb.errors import ConfigurationError, InvalidArgumentError
from deltalakedb.storage.locations import normalise_location, table_location

_DATABASE: Final = ".db"
# S3 advises against them, Windows and Hadoop refuse them, or Spark reads them as a glob pattern or
# as the value of a partition column.
_UNSAFE: Final = frozenset('\\/:*?"<>|#%[]{}^`~=')
_LOG: Final = "_delta_log"
_MOST_BYTES: Final = 255
"""The longest name of a file on common disks."""


def warehouse_location(location: object) -> str:
    """Check and normalise the location of a warehouse."""
    place = table_location(location)
    if ".." in urlsplit(place).path.split("/"):
        raise ConfigurationError(
            f"The warehouse {place} has '..' in it",
            why="In an object store that is a part of a key, and not the folder above",
            fix="Write the location without it",
        )
    return place


def place_of(warehouse: str, name: str) -> str:
    """The location of a table without one of its own; ConfigurationError if its name allows none.

    `warehouse` is normalised.
    """
    schema, dot, table = name.partition(".")
    folders = [f"{schema}{_DATABASE}", table] if dot else [name]
    for part, folder in zip([schema, table] if dot else [name], folders, strict=True):
        why = _why_unsafe(part, folder)
        if why is not None:
            raise ConfigurationError(
                f"Table {name[:200]!r} has no place in the warehouse {warehouse}",
                why=f"{part[:200]!r} cannot be the name of a folder there: {why}",
                fix="Pass a location, or choose another name",
            )
    on_disk = urlsplit(warehouse).scheme == "file"
    path = "/".join(quote(folder) if on_disk else folder for folder in folders)
    return f"{warehouse.removesuffix('/')}/{path}"


def name_of(warehouse: str, location: str) -> str | None:
    """The name of the table at a location; None if that does not lie below the warehouse.

    `warehouse` is normalised, and `location` may have any spelling. One below the warehouse that no
    table can have raises ConfigurationError.
    """
    try:
        place = normalise_location(location)
    except InvalidArgumentError:
        raise
    except ConfigurationError:
        # A store that has no tables of a lake.
        return None
    root, there = urlsplit(warehouse), urlsplit(place)
    same_store = (root.scheme, root.netloc.lower()) == (there.scheme, there.netloc.lower())
    above = f"{root.path.rstrip('/')}/"
    if not same_store or not there.path.startswith(above) or there.path == above:
        return None
    table_location(location)
    below = there.path[len(above) :]
    folders = (unquote(below) if there.scheme == "file" else below).split("/")
    if not all(folder.strip(".") for folder in folders):
        raise ConfigurationError(
            f"The location {place[:200]} has an empty folder or only dots in it",
            why="Engines do not agree on which keys of an object store that means",
            fix="Write it without them",
        )
    first, *others = folders
    if others and first.endswith(_DATABASE) and first != _DATABASE:
        first = first.removesuffix(_DATABASE)
    return ".".join([first, *others])


def _why_unsafe(part: str, folder: str) -> str | None:
    if not part:
        return "it is empty"
    if part != part.strip() or not part.isprintable():
        return "it has spaces around it, or control characters"
    if part.startswith(".") or part.endswith("."):
        return "it begins or ends with a dot"
    if part.lower() == _LOG:
        return "that is the folder of the log of a table"
    unsafe = sorted(_UNSAFE.intersection(part))
    if unsafe:
        return f"engines disagree on {' '.join(unsafe)}"
    if len(folder.encode()) > _MOST_BYTES:
        return f"it has more than {_MOST_BYTES} bytes"
    return None
