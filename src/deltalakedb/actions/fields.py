"""The names, types and order of the protocol fields: the tables of the codec.

One `Layout` per action gives the fields in the order of the value's constructor, each with the
function that checks an input and returns the stored value. A check raises `WrongType` with a
description of the expected value; the codec adds the action and the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from deltalakedb.actions import jsonvalue, values
from deltalakedb.errors import InvalidActionError

_INT32: Final = 2**31
_INT64: Final = 2**63


class WrongType(Exception):  # noqa: N818 -- never leaves this package; the codec rewords it
    """A field does not have the type of the protocol."""


def read_string(value: Any) -> str:
    """Accept text that UTF-8 can store."""
    if not isinstance(value, str):
        raise WrongType("a string")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise WrongType("text without lone surrogates") from error
    return value if type(value) is str else str.__str__(value)


def read_path(value: Any) -> str:
    """Accept a path or URI; NUL, also percent-encoded, cannot name a file."""
    path = read_string(value)
    if not path or "\0" in path or "%00" in path:
        raise WrongType("a non-empty path without NUL")
    return path


def read_identifier(value: Any) -> str:
    """Accept text that is part of a key: it is there, and no engine cuts it short."""
    text = read_string(value)
    if not text or "\0" in text:
        raise WrongType("a non-empty string without NUL")
    return text


def read_stats(value: Any) -> str:
    """Accept statistics only as JSON text: readers reject the object form."""
    if isinstance(value, Mapping):
        raise WrongType("statistics as a JSON string, not as an object (use json.dumps)")
    return read_string(value)


def read_int64(value: Any) -> int:
    """Accept a 64-bit signed integer; a boolean is not one."""
    number = value if type(value) is int else _subclassed_int(value)
    if not -_INT64 <= number < _INT64:
        raise WrongType("an integer that fits 64 bits")
    return number


def read_size(value: Any) -> int:
    """Accept a count or a number of bytes."""
    number = read_int64(value)
    if number < 0:
        raise WrongType("an integer that is not negative")
    return number


def read_int32(value: Any) -> int:
    """Accept a 32-bit signed integer; a boolean is not one."""
    number = value if type(value) is int else _subclassed_int(value)
    if not -_INT32 <= number < _INT32:
        raise WrongType("an integer that fits 32 bits")
    return number


def read_bool(value: Any) -> bool:
    """Accept true or false only."""
    if value is True or value is False:
        return value
    raise WrongType("true or false")


def read_nullable_map(value: Any) -> dict[str, str | None]:
    """Accept a map from string to string or null."""
    if not value and type(value) is dict:
        return {}
    return {
        read_string(key): None if item is None else read_string(item)
        for key, item in _mapping(value).items()
    }


def read_map(value: Any) -> dict[str, str]:
    """Accept a map from string to string."""
    return {read_string(key): read_string(item) for key, item in _mapping(value).items()}


def read_names(value: Any) -> tuple[str, ...]:
    """Accept a list of strings."""
    if not isinstance(value, (list, tuple)):
        raise WrongType("a list of strings")
    return tuple(read_string(item) for item in value)


def read_deletion_vector(value: Any) -> values.DeletionVectorDescriptor:
    """Accept a descriptor, as a value or in the protocol's form."""
    if isinstance(value, values.DeletionVectorDescriptor):
        check_value(DELETION_VECTOR, value)
        return value
    if not isinstance(value, Mapping):
        raise WrongType("a deletion vector descriptor (an object)")
    built, extra = split(DELETION_VECTOR, value)
    built.append(extra)
    return values.DeletionVectorDescriptor(*built)


def _mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise WrongType("an object with string values")
    return value


def _subclassed_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongType("an integer")
    return int(value)


def _write_map(value: Mapping[str, Any]) -> dict[str, Any]:
    return dict(value) if len(value) < 2 else dict(sorted(value.items()))


def write_extra(out: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Append what the value keeps beside its typed fields; a typed field that is set wins."""
    for key in sorted(extra):
        if key not in out:
            out[key] = jsonvalue.canonical(extra[key])


def write_deletion_vector(value: values.DeletionVectorDescriptor) -> dict[str, Any]:
    """Give the descriptor in the protocol's form, fields in protocol order."""
    return write_fields(DELETION_VECTOR, value)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an action: its spelling, its attribute, its check, whether it must be there."""

    name: str
    attribute: str
    read: Callable[[Any], Any]
    required: bool = False


class Layout:
    """The fields of one action in constructor order, and the order in which they are written."""

    __slots__ = ("checks", "known", "name", "rows", "values_of", "written")

    def __init__(self, name: str, fields: tuple[Field, ...], *, order: tuple[str, ...]) -> None:
        self.name = name
        self.rows = tuple((f.name, f.read, f.required) for f in fields)
        self.checks = tuple((f.name, f.attribute, f.read, f.required) for f in fields)
        self.known = frozenset(order)
        named = {f.name: f for f in fields}
        ordered = tuple(named[key] for key in order)
        self.values_of = attrgetter(*(f.attribute for f in ordered))
        self.written = tuple((f.name, _WRITERS.get(f.read)) for f in ordered)


_WRITERS: Final[dict[Any, Callable[[Any], Any]]] = {
    read_nullable_map: _write_map,
    read_map: _write_map,
    read_names: list,
    read_deletion_vector: write_deletion_vector,
}


def split(layout: Layout, content: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Check the known fields of a protocol-shaped object; the rest is its `extra`."""
    built: list[Any] = []
    get = content.get
    present = 0
    for name, read, required in layout.rows:
        item = get(name)
        if item is not None:
            present += 1
            try:
                built.append(read(item))
            except WrongType as error:
                raise wrong_field(layout.name, name, item, str(error)) from None
        elif required:
            raise _missing_field(layout.name, name, content)
        else:
            built.append(None)
    if present == len(content):
        return built, {}
    # The rest is unknown, or a known optional field written as null.
    known = layout.known
    extra = {key: item for key, item in content.items() if item is None or key not in known}
    return built, jsonvalue.freeze(extra, path=layout.name) if extra else extra


def check_value(layout: Layout, value: Any) -> None:
    """Check the fields of a value that a user built."""
    for name, attribute, read, required in layout.checks:
        item = getattr(value, attribute)
        if item is not None:
            try:
                read(item)
            except WrongType as error:
                raise wrong_field(layout.name, name, item, str(error)) from None
        elif required:
            raise _missing_field(layout.name, name, {})
    if value.extra:
        check_extra(layout, value.extra)


def is_plain_add(value: Any) -> bool:
    """Whether it is certainly valid, as nearly every added file is; else use `check_value`."""
    path, stats, size, time = value.path, value.stats, value.size, value.modification_time
    return (
        type(path) is str
        and path.isascii()
        and path != ""
        and "\0" not in path
        and "%00" not in path
        and (stats is None or (type(stats) is str and stats.isascii()))
        and type(size) is int
        and 0 <= size < _INT64
        and type(time) is int
        and 0 <= time < _INT64
        and (value.data_change is True or value.data_change is False)
        and type(value.partition_values) is dict
        and all(
            type(key) is str and key.isascii() and (item is None or _is_ascii(item))
            for key, item in value.partition_values.items()
        )
        and value.tags is None
        and value.deletion_vector is None
        and value.base_row_id is None
        and value.default_row_commit_version is None
        and value.clustering_provider is None
        and not value.extra
        and type(value.extra) is dict
    )


def _is_ascii(value: object) -> bool:
    return type(value) is str and value.isascii()


def check_extra(layout: Layout, extra: Any) -> None:
    """Refuse an `extra` that JSON cannot hold, or that hides a value for a typed field."""
    if not isinstance(extra, Mapping):
        raise wrong_field(layout.name, "extra", extra, "a mapping")
    jsonvalue.freeze(extra, path=f"{layout.name}.extra")
    for key, item in extra.items():
        if item is not None and key in layout.known:
            raise wrong_field(
                layout.name, key, item, "its own typed field of the value instead of extra"
            )


def write_fields(layout: Layout, value: Any) -> dict[str, Any]:
    """Give the protocol-shaped object: known fields in protocol order, then `extra` sorted."""
    out: dict[str, Any] = {}
    for (name, write), item in zip(layout.written, layout.values_of(value), strict=True):
        if item is not None:
            out[name] = item if write is None else write(item)
    if value.extra:
        write_extra(out, value.extra)
    return out


def write_add(value: values.AddFile) -> dict[str, Any]:
    """Like `write_fields`, twice as fast, for the most frequent action."""
    out: dict[str, Any] = {
        "path": value.path,
        "partitionValues": _write_map(value.partition_values),
        "size": value.size,
        "modificationTime": value.modification_time,
        "dataChange": value.data_change,
    }
    if value.stats is not None:
        out["stats"] = value.stats
    if value.tags is not None:
        out["tags"] = _write_map(value.tags)
    if value.deletion_vector is not None:
        out["deletionVector"] = write_deletion_vector(value.deletion_vector)
    if value.base_row_id is not None:
        out["baseRowId"] = value.base_row_id
    if value.default_row_commit_version is not None:
        out["defaultRowCommitVersion"] = value.default_row_commit_version
    if value.clustering_provider is not None:
        out["clusteringProvider"] = value.clustering_provider
    if value.extra:
        write_extra(out, value.extra)
    return out


def wrong_field(action: str, name: str, value: Any, expected: str) -> InvalidActionError:
    """Say which field of which action is wrong, and what it should be."""
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return InvalidActionError(
        f"The field {name!r} of the action {action!r} is not valid",
        why=f"it is {text} ({type(value).__name__})",
        fix=f"Pass {expected}",
    )


def _missing_field(action: str, name: str, content: Mapping[str, Any]) -> InvalidActionError:
    why = "it is null" if name in content else "it is missing"
    return InvalidActionError(
        f"The action {action!r} needs the field {name!r}",
        why=f"{why}, and the Delta protocol requires it",
        fix=f"Give {name!r} a value",
    )


DELETION_VECTOR: Final = Layout(
    "deletionVector",
    (
        Field("storageType", "storage_type", read_identifier, required=True),
        Field("pathOrInlineDv", "path_or_inline_dv", read_identifier, required=True),
        Field("sizeInBytes", "size_in_bytes", read_int32, required=True),
        Field("cardinality", "cardinality", read_size, required=True),
        Field("offset", "offset", read_int32),
    ),
    order=("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality"),
)
_FILE_TAIL: Final = (
    Field("stats", "stats", read_stats),
    Field("tags", "tags", read_nullable_map),
    Field("deletionVector", "deletion_vector", read_deletion_vector),
    Field("baseRowId", "base_row_id", read_int64),
    Field("defaultRowCommitVersion", "default_row_commit_version", read_int64),
)
_FILE_TAIL_NAMES: Final = tuple(f.name for f in _FILE_TAIL)
ADD: Final = Layout(
    "add",
    (
        Field("path", "path", read_path, required=True),
        Field("partitionValues", "partition_values", read_nullable_map, required=True),
        Field("size", "size", read_size, required=True),
        Field("modificationTime", "modification_time", read_int64, required=True),
        Field("dataChange", "data_change", read_bool, required=True),
        *_FILE_TAIL,
        Field("clusteringProvider", "clustering_provider", read_string),
    ),
    order=(
        *("path", "partitionValues", "size", "modificationTime", "dataChange"),
        *_FILE_TAIL_NAMES,
        "clusteringProvider",
    ),
)
REMOVE: Final = Layout(
    "remove",
    (
        Field("path", "path", read_path, required=True),
        Field("dataChange", "data_change", read_bool, required=True),
        Field("deletionTimestamp", "deletion_timestamp", read_int64),
        Field("extendedFileMetadata", "extended_file_metadata", read_bool),
        Field("partitionValues", "partition_values", read_nullable_map),
        Field("size", "size", read_size),
        *_FILE_TAIL,
    ),
    order=(
        *("path", "deletionTimestamp", "dataChange", "extendedFileMetadata"),
        *("partitionValues", "size"),
        *_FILE_TAIL_NAMES,
    ),
)
CDC: Final = Layout(
    "cdc",
    (
        Field("path", "path", read_path, required=True),
        Field("partitionValues", "partition_values", read_nullable_map, required=True),
        Field("size", "size", read_size, required=True),
        Field("dataChange", "data_change", read_bool, required=True),
        Field("tags", "tags", read_nullable_map),
    ),
    order=("path", "partitionValues", "size", "dataChange", "tags"),
)
PROTOCOL: Final = Layout(
    "protocol",
    (
        Field("minReaderVersion", "min_reader_version", read_int32, required=True),
        Field("minWriterVersion", "min_writer_version", read_int32, required=True),
        Field("readerFeatures", "reader_features", read_names),
        Field("writerFeatures", "writer_features", read_names),
    ),
    order=("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"),
)
TXN: Final = Layout(
    "txn",
    (
        Field("appId", "app_id", read_string, required=True),
        Field("version", "version", read_int64, required=True),
        Field("lastUpdated", "last_updated", read_int64),
    ),
    order=("appId", "version", "lastUpdated"),
)
DOMAIN_METADATA: Final = Layout(
    "domainMetadata",
    (
        Field("domain", "domain", read_string, required=True),
        Field("configuration", "configuration", read_string, required=True),
        Field("removed", "removed", read_bool, required=True),
    ),
    order=("domain", "configuration", "removed"),
)
CHECKPOINT_METADATA: Final = Layout(
    "checkpointMetadata",
    (
        Field("version", "version", read_int64, required=True),
        Field("tags", "tags", read_nullable_map),
    ),
    order=("version", "tags"),
)
SIDECAR: Final = Layout(
    "sidecar",
    (
        Field("path", "path", read_path, required=True),
        Field("sizeInBytes", "size_in_bytes", read_size, required=True),
        Field("modificationTime", "modification_time", read_int64, required=True),
        Field("tags", "tags", read_nullable_map),
    ),
    order=("path", "sizeInBytes", "modificationTime", "tags"),
)
