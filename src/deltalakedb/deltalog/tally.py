"""The replay of a log whose files come as columns: which are live after each version.

It is `replay.Replay` for files only, a list of paths at a time: the check of what an import writes,
and independent of it. Files are the same when the keys of their paths and their deletion vectors
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from deltalakedb.actions.file_paths import file_key
from deltalakedb.deltalog.replay import FileKey
from deltalakedb.errors import InvalidLogError

_MAX_LONG = 2**63 - 1


class Span(NamedTuple):
    """How many of the files belong to one version; `file` is named where it is wrong."""

    version: int
    num_adds: int
    num_removes: int
    file: str


class Files(NamedTuple):
    """Files as columns, in the order of their versions."""

    paths: Sequence[str]
    dv_ids: Sequence[str]
    sizes: Sequence[int | None]


class Sums(NamedTuple):
    """What one version changed, and what was live after it."""

    num_adds: int
    num_removes: int
    bytes_added: int
    bytes_removed: int
    live_files: int
    live_bytes: int

    def then(self, more: Sums) -> Sums:
        """The same with another part of the version."""
        return Sums(
            self.num_adds + more.num_adds,
            self.num_removes + more.num_removes,
            self.bytes_added + more.bytes_added,
            self.bytes_removed + more.bytes_removed,
            more.live_files,
            more.live_bytes,
        )


@dataclass(slots=True)
class Tally:
    """The live files as versions are applied: the path and size of each."""

    files: dict[FileKey, tuple[str, int]] = field(default_factory=dict)
    live_bytes: int = 0

    def apply(
        self, spans: Iterable[Span], adds: Files, removes: Files
    ) -> tuple[list[Sums], dict[int, str], dict[int, str]]:
        """Apply versions in a row; in each, no two actions are about one file.

        Gives back the sums of each, and the adds and removes that spell the path of a live file in
        another way, by position, with its spelling.
        """
        sums: list[Sums] = []
        respelled_adds: dict[int, str] = {}
        respelled_removes: dict[int, str] = {}
        add = remove = 0
        for _, num_adds, num_removes, file in spans:
            removed = self._remove(remove, remove + num_removes, removes, respelled_removes)
            added = self._add(add, add + num_adds, adds, respelled_adds)
            add += num_adds
            remove += num_removes
            if max(added, removed, self.live_bytes) > _MAX_LONG:
                raise InvalidLogError(
                    f"The sizes of the files in {file} add up to more than a long can hold",
                    fix="Correct the sizes, or restore the file from a copy",
                )
            live = len(self.files)
            sums.append(Sums(num_adds, num_removes, added, removed, live, self.live_bytes))
        return sums, respelled_adds, respelled_removes

    # Every file of a history passes here: what both have in common is not taken out of them.

    def _remove(self, start: int, end: int, given: Files, respelled: dict[int, str]) -> int:
        total = 0
        pop = self.files.pop
        some = zip(*(column[start:end] for column in given), strict=True)
        for at, (path, dv_id, size) in enumerate(some, start):
            total += size or 0
            known = pop((file_key(path), dv_id), None)
            if known is not None:
                self.live_bytes -= known[1]
                if known[0] != path:
                    respelled[at] = known[0]
        return total

    def _add(self, start: int, end: int, given: Files, respelled: dict[int, str]) -> int:
        total = 0
        files = self.files
        some = zip(*(column[start:end] for column in given), strict=True)
        for at, (path, dv_id, given_size) in enumerate(some, start):
            key = (file_key(path), dv_id)
            size = given_size or 0
            known = files.get(key)
            if known is None:
                files[key] = (path, size)
            else:
                self.live_bytes -= known[1]
                files[key] = (known[0], size)
                if known[0] != path:
                    respelled[at] = known[0]
            total += size
        self.live_bytes += total
        return total
