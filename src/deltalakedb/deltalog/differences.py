"""The differences of two states of a table, as texts for a user.

`Sides` names the two states: "catalog" and "log", or "commits" and "checkpoint".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple

from deltalakedb.actions import Metadata, Protocol
from deltalakedb.actions.features import reader_features, writer_features
from deltalakedb.deltalog.replay import ControlState, described_differences

_UNCOMPARED: Final = {"extra"}


class Sides(NamedTuple):
    """The names of the state that is expected and of the one that is compared with it."""

    expected: str
    actual: str


CATALOG_AND_LOG: Final = Sides("catalog", "log")


def format_file(file: str) -> str:
    """A file id as text for a user."""
    path, _, dv_id = file.rpartition("\0")
    return f"{path!r} with the deletion vector {dv_id!r}" if dv_id else repr(path)


def file_differences(
    expected: Iterable[tuple[str, bytes]],
    actual: dict[str, bytes],
    sides: Sides = CATALOG_AND_LOG,
    *,
    stats: bool = True,
) -> Iterator[str]:
    """Differences of files by their descriptions; `actual` loses each file that was compared."""
    for file, description in expected:
        other = actual.pop(file, None)
        if other is None:
            yield (
                f"the live file {format_file(file)} is in the {sides.expected} and not in the "
                f"{sides.actual}"
            )
        elif other != description and (
            names := described_differences(description, other, stats=stats)
        ):
            yield f"the live file {format_file(file)} differs in {', '.join(names)}"


def unexpected_files(actual: Iterable[str], sides: Sides = CATALOG_AND_LOG) -> Iterator[str]:
    """The files that `file_differences` has left."""
    for file in actual:
        yield (
            f"the live file {format_file(file)} is in the {sides.actual} and not in the "
            f"{sides.expected}"
        )


def control_differences(
    expected: ControlState,
    actual: ControlState,
    sides: Sides = CATALOG_AND_LOG,
    *,
    txns_expire: bool = False,
) -> Iterator[str]:
    """Differences of everything but files. With `txns_expire`, `actual` may lack transactions."""
    if expected.protocol is not None:
        yield from protocol_differences(expected.protocol, actual.protocol, sides)
    if expected.metadata is not None:
        yield from metadata_differences(expected.metadata, actual.metadata, sides)
    txns = {app: txn.version for app, txn in actual.txns.items()}
    yield from _map_differences(
        "app transaction",
        {
            app: txn.version
            for app, txn in expected.txns.items()
            if not txns_expire or app in actual.txns
        },
        txns,
        sides,
    )
    yield from _map_differences(
        "metadata domain",
        {name: domain.configuration for name, domain in expected.domains.items()},
        {name: domain.configuration for name, domain in actual.domains.items()},
        sides,
    )


def _map_differences(
    kind: str, expected: Mapping[str, Any], actual: Mapping[str, Any], sides: Sides
) -> Iterator[str]:
    for key in sorted({*expected, *actual}):
        a, b = expected.get(key), actual.get(key)
        if a != b:
            yield (
                f"the {kind} {key!r} is {'absent' if a is None else repr(a)} in the "
                f"{sides.expected} and {'absent' if b is None else repr(b)} in the {sides.actual}"
            )


def protocol_differences(
    expected: Protocol, actual: Protocol | None, sides: Sides = CATALOG_AND_LOG
) -> Iterator[str]:
    """Differences of the protocol."""
    if actual is None:
        yield f"the {sides.actual} has no protocol"
        return
    for name in ("min_reader_version", "min_writer_version"):
        a, b = getattr(expected, name), getattr(actual, name)
        if a != b:
            yield (
                f"the protocol has {name} {a} in the {sides.expected} and {b} in the {sides.actual}"
            )
    for kind, features in (("reader", reader_features), ("writer", writer_features)):
        a, b = features(expected), features(actual)
        if a != b:
            yield f"the {kind} features of the protocol differ in {', '.join(sorted(a ^ b))}"


def metadata_differences(
    expected: Metadata, actual: Metadata | None, sides: Sides = CATALOG_AND_LOG
) -> Iterator[str]:
    """Differences of the metaData."""
    if actual is None:
        yield f"the {sides.actual} has no metaData"
        return
    for column in fields(Metadata):
        a, b = getattr(expected, column.name), getattr(actual, column.name)
        if column.name in _UNCOMPARED or a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            keys = sorted(key for key in {*a, *b} if a.get(key) != b.get(key))
            yield f"the {column.name} of the metaData differs in {', '.join(keys)}"
        else:
            yield f"the {column.name} of the metaData differs"
