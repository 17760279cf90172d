"""The replay of a log whose files come as columns: which are live after each version.

It is `replay.Replay` for files only, a list of paths at a time: the check of what an import writes,
and independent of it. Files are the same when their decoded paths and deletion vectors are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from deltalakedb.deltalog.replay import FileKey, LiveFile, file_key_of
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
    """The live files as versions are applied."""

    files: dict[FileKey, LiveFile] = field(default_factory=dict)
    live_bytes: int = 0

    def apply(
        self, spans: Iterable[Span], adds: Files, removes: Files
    ) -> tuple[list[Sums], dict[int, str], dict[int, str]]:
        """Apply versions in a row; in each, no two actions are about one file.

        Gives back the sums of each, and the adds and removes that spell the path of a live file in
        another way, by position, with its spelling.
        """
        sums: list[Sums] = []
        respelled: tuple[dict[int, str], dict[int, str]] = ({}, {})
        add = remove = 0
        for version, num_adds, num_removes, file in spans:
            del version
            removed = self._remove(range(remove, remove + num_removes), removes, respelled[1])
            added = self._add(range(add, add + num_adds), adds, respelled[0])
            add += num_adds
            remove += num_removes
            if max(added, removed, self.live_bytes) > _MAX_LONG:
                raise InvalidLogError(
                    f"The sizes of the files in {file} add up to more than a long can hold",
                    fix="Correct the sizes, or restore the file from a copy",
                )
            live = len(self.files)
            sums.append(Sums(num_adds, num_removes, added, removed, live, self.live_bytes))
        return sums, *respelled

    def _remove(self, positions: range, given: Files, respelled: dict[int, str]) -> int:
        total = 0
        files = self.files
        for at in positions:
            path = given.paths[at]
            total += given.sizes[at] or 0
            known = files.pop(file_key_of(path, given.dv_ids[at]), None)
            if known is not None:
                self.live_bytes -= known.size
                if known.path != path:
                    respelled[at] = known.path
        return total

    def _add(self, positions: range, given: Files, respelled: dict[int, str]) -> int:
        total = 0
        files = self.files
        for at in positions:
            path = given.paths[at]
            key = file_key_of(path, given.dv_ids[at])
            size = given.sizes[at] or 0
            known = files.get(key)
            if known is not None:
                self.live_bytes -= known.size
                if known.path != path:
                    path = respelled[at] = known.path
            files[key] = LiveFile(path, size)
            total += size
        self.live_bytes += total
        return total
