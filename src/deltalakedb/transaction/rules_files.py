"""Rules for the files of a commit: added, removed, and files of changes."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from deltalakedb.actions.datatypes import DecimalType
from deltalakedb.actions.file_paths import check_segments, file_key, spellings
from deltalakedb.actions.partition import (
    NULL_DIRECTORY,
    decode_partition_value,
    encode_partition_value,
)
from deltalakedb.actions.values import Action, AddFile, CdcFile, RemoveFile
from deltalakedb.errors import CommitRejectedError, DeltaLakeDbError, PathNotAllowedError
from deltalakedb.storage.locations import FilePlaces
from deltalakedb.transaction.rulebook import Rule, reject, reject_for

if TYPE_CHECKING:
    from deltalakedb.store import TableRecord
    from deltalakedb.transaction.rules import PartitionColumn, TableRules

_CHANGE_DATA: Final = "_change_data/"
_RESERVED: Final = ("_delta_log/", _CHANGE_DATA)
# Statistics as most writers put them: the count comes first, and nothing else needs a look.
_COUNT_FIRST: Final = re.compile(r'\{"numRecords":\s?(\d{1,18})[,}]', re.ASCII).match

# What every writer spells alike.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_\-./=]*").fullmatch

_File = TypeVar("_File", AddFile, RemoveFile)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_decode: Final = json.JSONDecoder(parse_constant=_no_constant).decode


# --- paths --------------------------------------------------------------------------------


def check_each_path_once(adds: Sequence[AddFile], removes: Sequence[RemoveFile]) -> None:
    """One add and one remove for each path, and both only for different deletion vectors."""
    if not removes and len(adds) == 1 and "%" not in adds[0].path:
        return
    added = _by_file(adds, Rule.ONE_ADD, "adds")
    if not removes:
        return
    removed = _by_file(removes, Rule.ONE_REMOVE, "removes")
    for key in sorted(added.keys() & removed.keys()):
        if added[key].dv_id == removed[key].dv_id:
            raise reject(
                Rule.ADD_AND_REMOVE,
                f"The commit adds and removes {added[key].path!r}",
                why="both have the same deletion vector, so only their order would count",
                fix="Keep one of them; to refresh the metadata of a live file only add it",
            )


def _by_file(files: Sequence[_File], rule: Rule, verb: str) -> dict[str, _File]:
    by_key = {file_key(file.path): file for file in files}
    if len(by_key) == len(files):
        return by_key
    twice = next(file for file in files if by_key[file_key(file.path)] is not file)
    other = by_key[file_key(twice.path)].path
    spelled = "" if other == twice.path else f" (also written {other!r})"
    raise reject(
        rule,
        f"The commit {verb} {twice.path!r}{spelled} more than once",
        why="a file is in the table once, whatever its deletion vector",
        fix="Name each path once",
    )


def _check_path(path: str) -> None:
    try:
        check_segments(path, strictly=True)
    except DeltaLakeDbError as error:
        raise reject_for(Rule.PATH, error) from error
    if path.startswith("/"):
        why = "engines disagree on what a leading slash is relative to"
    elif file_key(path).startswith(_RESERVED):
        why = "that directory is not for data files"
    else:
        return
    raise reject(
        Rule.PATH,
        f"The path {path!r} cannot be added",
        why=why,
        fix="Write it relative to the table, or as an absolute URI with its scheme",
    )


def check_places(
    adds: Iterable[AddFile], removes: Iterable[RemoveFile], table: TableRecord
) -> None:
    """Added files lie below their table, or where its operator has allowed it.

    A path that is removed too only gets another deletion vector: the table has it already.
    """
    odd = [
        add
        for add in adds
        if add.deletion_vector is not None or ":/" in add.path or add.path[:1] == "/"
    ]
    if not odd:
        return
    places = FilePlaces(table.location, table.allowed_roots)
    known = {remove.path for remove in removes}
    for add in odd:
        try:
            if add.path not in known:
                places.check_new(add.path)
            if add.deletion_vector is not None:
                places.check_vector(add.deletion_vector)
        except PathNotAllowedError as error:
            raise reject_for(Rule.PATH, error) from error


# --- added files --------------------------------------------------------------------------


def check_adds(
    adds: Iterable[AddFile], rules: TableRules, removes: Collection[RemoveFile] = ()
) -> None:
    """Paths, numbers, partition values, statistics and deletion vectors of added files.

    Each line here runs for every file of a large commit: rare cases have functions of their own.
    """
    partitions = rules.partitions
    expected = partitions.keys()
    sound: set[tuple[tuple[str, str | None], ...]] = set()
    needs_records = rules.needs_records
    # A path that is removed too is in the table already, however it is spelled.
    known = {remove.path for remove in removes}
    odd_first = ("", "/", ".", "_")
    for add in adds:
        path = add.path
        if path[:1] in odd_first or "/." in path or "//" in path or "%2" in path or ":/" in path:
            if path not in known:
                _check_path(path)
        elif "%" in path or path[-1] == "/":
            _check_path(path)
        if add.size < 0 or add.modification_time < 0:
            raise _negative("add", path, {"size": add.size, "time": add.modification_time})
        values = add.partition_values
        if values.keys() != expected:
            raise _wrong_partitions(path, values, partitions)
        if values:
            key = tuple(values.items())
            if key not in sound:
                _check_partition_values(path, values, partitions)
                sound.add(key)
        stats = add.stats
        if stats is not None and (stats[-1:] != "}" or _COUNT_FIRST(stats) is None):
            num_records(add)
        if needs_records and add.base_row_id is None and num_records(add) is None:
            raise _records_missing(path, "the table has a feature that relies on row counts")
        if add.deletion_vector is not None:
            _check_vector(add, rules)


def num_records(add: AddFile) -> int | None:
    """The row count in the statistics of a file; None where there is none."""
    stats = add.stats
    if stats is None:
        return None
    match = _COUNT_FIRST(stats)
    if match is not None and stats.endswith("}"):
        return int(match[1])
    try:
        document = _decode(stats)
    except (ValueError, RecursionError) as error:
        raise _bad_stats(add.path, f"they are not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _bad_stats(add.path, "they are not a JSON object")
    count = document.get("numRecords")
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise _bad_stats(add.path, f"numRecords is {count!r}")
    return count


def _bad_stats(path: str, why: str) -> CommitRejectedError:
    return reject(
        Rule.STATISTICS,
        f"The statistics of {path!r} are not valid",
        why=why,
        fix="Write them as the text of a JSON object with numRecords, or leave them out",
    )


def _records_missing(path: str, why: str) -> CommitRejectedError:
    return reject(
        Rule.STATISTICS,
        f"The statistics of {path!r} have no numRecords",
        why=why,
        fix="Add statistics with the number of rows in the file",
    )


def _check_vector(add: AddFile, rules: TableRules) -> None:
    vector = add.deletion_vector
    assert vector is not None  # noqa: S101 -- the caller looked
    why = ""
    if "deletionVectors" not in rules.features:
        raise reject(
            Rule.DELETION_VECTOR,
            f"The file {add.path!r} cannot be added with a deletion vector",
            why="the table does not have the feature 'deletionVectors'",
            fix="Set the table property 'delta.enableDeletionVectors' to 'true' first",
        )
    if vector.storage_type not in ("u", "p", "i"):
        why = f"its storage type is {vector.storage_type!r}, not u, p or i"
    elif vector.cardinality < 0 or vector.size_in_bytes < 0 or (vector.offset or 0) < 0:
        why = "its size, offset or cardinality is negative"
    elif not vector.path_or_inline_dv:
        why = "it has neither a path nor data"
    elif vector.storage_type == "i" and vector.offset is not None:
        why = "a vector that is stored inline has no offset"
    else:
        try:
            vector.file_path()
        except (DeltaLakeDbError, ValueError) as error:
            why = str(error)
    if why:
        raise _bad_vector(add.path, why)
    rows = num_records(add)
    if rows is None:
        raise _records_missing(add.path, "with a deletion vector the count of rows is mandatory")
    if vector.cardinality > rows:
        raise _bad_vector(add.path, f"it hides {vector.cardinality} rows of {rows}")


def _bad_vector(path: str, why: str) -> CommitRejectedError:
    return reject(
        Rule.DELETION_VECTOR,
        f"The deletion vector of {path!r} is not valid",
        why=why,
        fix="Correct the descriptor",
    )


def _negative(kind: str, path: str, numbers: Mapping[str, int | None]) -> CommitRejectedError:
    negative = ", ".join(f"{name} {n}" for name, n in numbers.items() if n is not None and n < 0)
    return reject(
        Rule.NON_NEGATIVE,
        f"The {kind} of {path!r} has a negative number: {negative}",
        fix="Write sizes in bytes and times in milliseconds since 1970",
    )


# --- partition values ---------------------------------------------------------------------


def _wrong_partitions(
    path: str, values: Mapping[str, str | None], partitions: Mapping[str, PartitionColumn]
) -> CommitRejectedError:
    missing = [name for name in partitions if name not in values]
    unknown = sorted(name for name in values if name not in partitions)
    why = []
    if missing:
        columns = ", ".join(_column(name, partitions[name]) for name in missing)
        why.append(f"no value for {columns}")
    if unknown:
        logical = {column.name: name for name, column in partitions.items()}
        names = ", ".join(
            f"{name!r} (its name in files is {logical[name]!r})" if name in logical else repr(name)
            for name in unknown
        )
        why.append(f"a value for {names}")
    listed = ", ".join(map(repr, partitions)) or "none"
    return reject(
        Rule.PARTITION_VALUES,
        f"The partition values of {path!r} do not match the partition columns",
        why=f"there is {' and '.join(why)}",
        fix=f"Give a value (or null) for each of these, and no other: {listed}",
    )


def _column(physical: str, column: PartitionColumn) -> str:
    return repr(physical) if physical == column.name else f"{physical!r} (column {column.name!r})"


def _check_partition_values(
    path: str, values: Mapping[str, str | None], partitions: Mapping[str, PartitionColumn]
) -> None:
    for name, text in values.items():
        column = partitions[name]
        try:
            value = decode_partition_value(text, column.type)
        except DeltaLakeDbError as error:
            why = error.why
        else:
            why = _value_problem(text, value, column)
        if why:
            raise reject(
                Rule.PARTITION_VALUES,
                f"The partition value {text!r} of {_column(name, column)} in {path!r} is not valid",
                why=why,
                fix=f"Write it as Delta writes a value of type {column.type}, or null",
            )


def _value_problem(text: str | None, value: object, column: PartitionColumn) -> str:
    if value is None:
        return "" if column.nullable else "the column cannot be null"
    if text == NULL_DIRECTORY:
        return "that is the name of a directory; in the log it is null"
    if isinstance(column.type, DecimalType):
        # Most readers fail on a decimal that is not written with its full scale.
        exact = encode_partition_value(value, column.type)
        return "" if text == exact else f"a decimal is written with its full scale: {exact}"
    return ""


# --- removed files, files of changes ------------------------------------------------------


def check_removes(removes: Iterable[RemoveFile], *, append_only: bool) -> None:
    """Numbers of removed files, and that an append-only table loses no data."""
    for remove in removes:
        path = remove.path
        if append_only and remove.data_change:
            raise reject(
                Rule.APPEND_ONLY,
                f"The file {path!r} cannot be removed with dataChange=true",
                why="the table property 'delta.appendOnly' is true",
                fix="Unset the property in a commit of its own first, if rows may go",
            )
        size, time = remove.size, remove.deletion_timestamp
        if (size is not None and size < 0) or (time is not None and time < 0):
            raise _negative("remove", path, {"size": size, "time": time})
        if remove.extended_file_metadata and (size is None or remove.partition_values is None):
            raise reject(
                Rule.REMOVE_METADATA,
                f"The remove of {path!r} lacks its size or partitionValues",
                why="extendedFileMetadata is true",
                fix="Copy both from the add, or leave extendedFileMetadata out",
            )


def check_cdc_files(cdc_files: Sequence[CdcFile], rules: TableRules) -> None:
    """Files of changes: where they lie, and whether the table keeps any."""
    for file in cdc_files:
        why = ""
        if not rules.change_data_feed:
            why = "the table property 'delta.enableChangeDataFeed' is not true"
        elif not file.path.startswith(_CHANGE_DATA):
            why = "files of changes lie under _change_data/"
        elif file.data_change:
            why = "dataChange is true, but the file is not part of the table"
        else:
            why = _segment_problem(file.path)
        if why:
            raise reject(
                Rule.CHANGE_DATA,
                f"The cdc file {file.path!r} cannot be committed",
                why=why,
                fix="Correct the action, or leave it out: readers then derive the changes from "
                "the files added and removed",
            )
        if file.size < 0:
            raise _negative("cdc", file.path, {"size": file.size})
        if file.partition_values.keys() != rules.partitions.keys():
            raise _wrong_partitions(file.path, file.partition_values, rules.partitions)


def _segment_problem(path: str) -> str:
    try:
        check_segments(path, strictly=True)
    except DeltaLakeDbError as error:
        return error.why
    return ""


# --- against the live files ---------------------------------------------------------------


def check_live_files(actions: Iterable[Action], live: Collection[tuple[str, str]]) -> None:
    """Check removes and re-adds against the files that are live just before the commit.

    `live` holds (path, deletion vector id or the empty string) of the live files among those that
    the commit touches. A live file that is added again with the same deletion vector has its
    metadata refreshed; with another, the old one must be removed in the same commit.
    """
    vectors: defaultdict[str, set[str]] = defaultdict(set)
    for path, dv_id in live:
        vectors[path].add(dv_id)
    again: list[AddFile] = []
    removed: set[tuple[str, str]] = set()
    for action in actions:
        if isinstance(action, AddFile):
            if vectors and action.path in vectors:
                again.append(action)
        elif isinstance(action, RemoveFile):
            key = (action.path, action.dv_id)
            if key not in live:
                raise _not_live(action, vectors.get(action.path, set()))
            removed.add(key)
    for add in again:
        others = {v for v in vectors[add.path] - {add.dv_id} if (add.path, v) not in removed}
        if others:
            raise reject(
                Rule.ONE_LIVE,
                f"The file {add.path!r} cannot be added with {_vector(add.dv_id)}",
                why=f"it is live with {_vector(min(others))}, and would be in the table twice",
                fix="Remove that in the same commit",
            )


def other_spellings(adds: Iterable[AddFile], table: TableRecord) -> dict[str, str]:
    """Other ways to write the paths of added files, each with the path of the commit.

    A table whose own location is among its allowed roots has absolute paths to its own files.
    """
    location = table.location if table.location in table.allowed_roots else None
    others: dict[str, str] = {}
    for add in adds:
        path = add.path
        if location is None and _PLAIN(path):
            continue
        for spelled in spellings(path, location):
            if spelled != path:
                others[spelled] = path
    return others


def check_spellings(
    live: Iterable[tuple[str, str]],
    removes: Iterable[RemoveFile],
    others: Mapping[str, str],
) -> None:
    """No file is added that is live under another spelling of its path."""
    removed: set[tuple[str, str]] | None = None
    for path, dv_id in live:
        added = others.get(path)
        if added is None:
            continue
        if removed is None:
            removed = {(remove.path, remove.dv_id) for remove in removes}
        if (path, dv_id) not in removed:
            raise reject(
                Rule.ONE_LIVE,
                f"The file {added!r} cannot be added",
                why=f"it is live as {path!r}, and would be in the table twice",
                fix="Use the path that the table has for it",
            )


def refreshed_paths(actions: Iterable[Action], live: Collection[tuple[str, str]]) -> frozenset[str]:
    """The live paths that the commit adds again: it depends on them, so they count as read."""
    paths = {path for path, _ in live}
    return frozenset(a.path for a in actions if isinstance(a, AddFile) and a.path in paths)


def _not_live(remove: RemoveFile, vectors: Collection[str]) -> CommitRejectedError:
    if vectors:
        why = f"it is live, but with {_vector(min(vectors))}, not with {_vector(remove.dv_id)}"
        fix = "Copy the deletion vector of the file into the remove"
    else:
        why = "no such file is in the table at this version"
        fix = "Use the exact path of the add; it may have been removed already"
    return reject(Rule.REMOVE_LIVE, f"The file {remove.path!r} cannot be removed", why=why, fix=fix)


def _vector(dv_id: str) -> str:
    return f"the deletion vector {dv_id!r}" if dv_id else "no deletion vector"
